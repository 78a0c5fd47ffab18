"""The class that an application extends to do something on the coordinator only.

    class Reports(CoordinatorPlugin):
        name = "reports"

        async def coordinator_work(self) -> None:
            await self.term.write(...)

It decides nothing; `Coordinator` calls it. Its work is cancelled at the end of a term, and
what it writes through `self.term` is refused by the store after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.coordination.errors import NotRunningError
from squall.coordination.terms import Term, Work

if TYPE_CHECKING:
    from squall.coordination.coordinator import Coordinator


class CoordinatorPlugin:
    """`on_become_coordinator` and `on_stop_being_coordinator` alternate and never overlap;
    `coordinator_work` is called every `work_interval` seconds while leading, one call at a
    time."""

    name = "plugin"
    work_interval: float | None = None
    """None takes the one of the profile."""

    def __init__(self) -> None:
        self._coordinator: Coordinator | None = None
        self._term: Term | None = None

    @property
    def kind(self) -> str:
        """The first word of its name; events are named by it."""
        return self.name.partition(" ")[0]

    @property
    def coordinator(self) -> Coordinator:
        if self._coordinator is None:
            raise NotRunningError(f"{self.name} belongs to no coordinator yet: add it to one")
        return self._coordinator

    @property
    def term(self) -> Term:
        """Of the present or last time that this member led."""
        if self._term is None:
            raise NotRunningError(f"{self.name} has not led yet")
        return self._term

    async def on_start(self) -> None:
        """The member has registered; called once, on every member."""

    async def on_stop(self) -> None:
        """The member stops, or its start failed after `on_start` of this plugin; called once."""

    async def on_become_coordinator(self) -> None: ...

    async def on_stop_being_coordinator(self) -> None: ...

    async def coordinator_work(self) -> None: ...

    def work(self, coordinator: Coordinator, default_interval: float) -> Work:
        """How the coordinator runs it."""
        self._coordinator = coordinator

        async def become(term: Term) -> None:
            self._term = term
            await self.on_become_coordinator()

        async def stop(term: Term) -> None:
            await self.on_stop_being_coordinator()

        async def periodic(term: Term) -> None:
            await self.coordinator_work()

        return Work(
            self.name,
            become=become,
            stop=stop,
            periodic=periodic,
            interval=self.work_interval or default_interval,
        )
