"""Single-instance mode: a member that leads at once, without heartbeats and without elections.

It writes the lease record all the same, under the next epoch, because a fenced write needs an
epoch in the store. That also keeps it safe: whoever takes the lead beside it, against the rule,
does so under a higher epoch, and the first write of this member that is refused ends its term.

It must never begin where another member is known to live.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from squall.coordination import election_messages as messages
from squall.coordination import keys, leases
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    ConfigurationError,
    LeadershipLost,
    StaleEpochError,
    StoreError,
    VersionConflict,
)
from squall.coordination.records import LeaseRecord
from squall.coordination.stores.interface import ABSENT, Fence, Put
from squall.coordination.terms import Term, TermRunner

TRIES = 10


class Alone:
    """The only term of such a member; `tell(effect)` hears what people want to know."""

    def __init__(self, parts: Assembly, tell: Callable[[messages.Effect], None]) -> None:
        self._parts = parts
        self._tell = tell
        self._lease: LeaseRecord | None = None
        self._version = ""
        self._running: asyncio.Task[None] | None = None
        self._term: Term | None = None

    @property
    def term(self) -> Term:
        """`LeadershipLost` when it is over: it does not come back."""
        term = self._term
        assert term is not None, "begin() comes first"
        if not term.valid:
            raise LeadershipLost(term.epoch, term.reason)
        return term

    @property
    def epoch(self) -> int:
        return self._term.epoch if self._term is not None else 0

    @property
    def leads(self) -> bool:
        return self._term is not None and self._term.valid

    async def begin(self, runner: TermRunner) -> None:
        parts = self._parts
        capabilities = parts.patient.capabilities
        if capabilities.cross_process and await parts.live_members(pages=1):
            raise ConfigurationError(
                "enable_coordinator is False: another live member is registered in this"
                " namespace, and two would act; enable_coordinator=True is right"
            )
        self._lease = lease = await self._take()
        term = self._term = Term(lease.epoch, parts.patient, lambda: True, self._end_fenced)
        self._tell(messages.HolderChanged("", lease))
        self._tell(messages.Promote(lease.epoch))
        token = parts.tasks.start("alone", runner.run(term))
        self._running = token.task

    async def end(self) -> None:
        """Work ends, then the lease is given up, so that others need not wait for its end."""
        self._end("stopped")
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._lease is None or self._term is None or self._term.reason != "stopped":
            return
        given_up = leases.given_up(self._lease, number=1, successor="", standbys=())
        put = Put(keys.LEADER, self._parts.codec.encode(given_up), expect=self._version, ttl_s=None)
        with contextlib.suppress(VersionConflict, StaleEpochError, StoreError):
            await self._parts.urgent.write(put, fence=Fence(keys.LEADER, self._lease.epoch))

    def excuse(self, task: asyncio.Task[Any] | None) -> None:
        if self._term is not None:
            self._term.excuse(task)

    def cancel_scopes(self) -> None:
        if self._term is not None:
            self._term.cancel_scopes()

    async def _take(self) -> LeaseRecord:
        parts = self._parts
        for _ in range(TRIES):
            (record,) = await parts.patient.get(keys.LEADER)
            now = parts.store_time()
            lease = leases.stood_for(
                None,
                epoch=1 if record is None else record.epoch + 1,
                member_id=parts.member_id,
                incarnation=round(now * 1000.0),
                number=1,
                elected_at=now,
                term_ends_at=now,
                lease_ttl=parts.timing.lease_ttl,
                pace=None,
            )
            expect = ABSENT if record is None else record.version
            put = Put(keys.LEADER, parts.codec.encode(lease), expect=expect, ttl_s=None)
            try:
                (self._version,) = await parts.patient.write(
                    put, fence=Fence(keys.LEADER, lease.epoch)
                )
            except (VersionConflict, StaleEpochError):
                continue
            return lease
        raise ConfigurationError(
            "enable_coordinator is False: somebody else changes the lease of this namespace;"
            " enable_coordinator=True is right"
        )

    def _end_fenced(self, epoch: int) -> None:
        self._tell(messages.WriteFenced(epoch))
        self._end("fenced")

    def _end(self, reason: str) -> None:
        term = self._term
        if term is not None and term.valid:
            term.end(reason)
            self._tell(messages.Demote(term.epoch, reason))
