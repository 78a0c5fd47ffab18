"""The names of a simulated world: a table that a scenario changes at any time.

It stands for a DNS server that all nodes ask. A lookup takes a while, and fails while the server
is down.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.runtime.addresses import shown_address
from squall.runtime.interfaces import Address, Clock, NotResolved, Resolved, ResolvedTarget

LOOKUP_S = 0.005
DOWN_S = 2.0
"""How long a lookup waits for a server that is down."""
SERVER = "dns:53"


class NameTable:
    def __init__(self) -> None:
        self._answers: dict[Address, Resolved] = {}
        self.is_down = False
        # How long nodes remember that a name does not exist.
        self.missing_s = 5.0
        # By name: lookups that were answered, or failed.
        self.lookups: dict[Address, int] = {}

    def publish(
        self, name: Address, targets: Sequence[Address | ResolvedTarget], ttl_s: float
    ) -> None:
        """No targets: the name exists no longer."""
        made = tuple(
            each if isinstance(each, ResolvedTarget) else ResolvedTarget(each) for each in targets
        )
        self._answers[name] = Resolved(made, ttl_s)

    def answer(self, name: Address) -> Resolved:
        self.lookups[name] = self.lookups.get(name, 0) + 1
        if self.is_down:
            raise NotResolved(f"{shown_address(name)}: no answer in 2 s; asked {SERVER}", 0.0)
        found = self._answers.get(name)
        if found is None or not found.targets:
            raise NotResolved(
                f"{shown_address(name)}: no such name; asked {SERVER}", self.missing_s
            )
        return found


class SimResolver:
    """What one node has of the table."""

    def __init__(self, table: NameTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    async def resolve(self, name: Address) -> Resolved:
        await self._clock.sleep(DOWN_S if self._table.is_down else LOOKUP_S)
        return self._table.answer(name)
