"""Remembers what stands behind the names of managers and gates.

For each name, at any time:
- at most one lookup is under way; other callers wait for it;
- an answer is used until its TTL ends, within `TTL_S`. If all of its addresses have failed it is
  looked up again sooner, but not within the lower bound: a dead cluster must not flood its DNS
  server;
- an error is remembered like an answer. While there is an error the last answer stays in use:
  the DNS server may be down while the managers are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from squall.runtime.addresses import is_name
from squall.runtime.interfaces import Address, NotResolved, ResolvedTarget, Runtime

TTL_S = (1.0, 300.0)
"""A zone that says 0 asks for a lookup per dial; one that says a day would hide a replaced manager
that long from a worker that lost the others."""
ERROR_TTL_S = (1.0, 30.0)
"""Shorter: a name that does not exist yet is usually about to."""
DIALS_MAX = 10
"""Addresses of one name that are dialled at the same time. With more of them each lookup chooses
others."""


@dataclass(slots=True)
class _Entry:
    lookup: asyncio.Lock = field(default_factory=asyncio.Lock)
    targets: tuple[ResolvedTarget, ...] = ()
    # When the last lookup ended, and until when its outcome holds.
    looked_up_at: float = 0.0
    holds_until: float = float("-inf")
    # Of the last lookup, if it failed.
    error: NotResolved | None = None


class Names:
    """The names that one node has looked up."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._entries: dict[Address, _Entry] = {}

    async def addresses(self, given: Address) -> list[Address]:
        """The addresses to dial, the preferred ones first; a plain address stands for itself.
        Raises `NotResolved`."""
        if not is_name(given):
            return [given]
        entry = self._entries.setdefault(given, _Entry())
        async with entry.lookup:
            if self._clock.now() >= entry.holds_until:
                await self._look_up(given, entry)
        if not entry.targets:
            assert entry.error is not None
            raise entry.error
        return ordered(entry.targets, self._runtime.random)[:DIALS_MAX]

    def failed(self, given: Address) -> None:
        """No address of this name answers: its next use looks it up again."""
        entry = self._entries.get(given)
        if entry is not None and entry.error is None:
            entry.holds_until = min(entry.holds_until, entry.looked_up_at + TTL_S[0])

    async def _look_up(self, name: Address, entry: _Entry) -> None:
        try:
            found = await self._runtime.resolver.resolve(name)
        except NotResolved as error:
            entry.error = error
            holds_s = within(error.ttl_s, ERROR_TTL_S)
        else:
            entry.error, entry.targets = None, found.targets
            holds_s = within(found.ttl_s, TTL_S)
        entry.looked_up_at = self._clock.now()
        entry.holds_until = entry.looked_up_at + holds_s


def within(seconds: float, bounds: tuple[float, float]) -> float:
    return min(max(seconds, bounds[0]), bounds[1])


def ordered(targets: Sequence[ResolvedTarget], draw: Random) -> list[Address]:
    """Each address once: by priority, and at random by weight within one. A target without weight
    still has a small chance, as RFC 2782 wants."""
    drawn = [
        (target.priority, -(draw.random() ** (1.0 / (target.weight or 0.1))), target.address)
        for target in targets
    ]
    return list(dict.fromkeys(address for _, _, address in sorted(drawn)))
