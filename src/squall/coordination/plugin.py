"""The base class of plugins: code that runs on the leader only.

    class Reports(CoordinatorPlugin):
        name = "reports"

        async def coordinator_work(self) -> None:
            await self.term.write(...)

`Coordinator` calls the methods. The end of a term cancels them, and the store refuses what they
write through `self.term` after that.
"""

from __future__ import annotations

from typing import Protocol

from squall.coordination.election.term import Term, Work
from squall.coordination.errors import ConfigurationError, NotRunningError
from squall.coordination.events import Event
from squall.coordination.member_parts import MemberParts
from squall.coordination.signals.member_signals import Signals
from squall.coordination.stores.interface import Check, Store
from squall.coordination.timing import Timing


class PluginHost(Protocol):
    """The member that runs a plugin: the part of `Coordinator` that plugins use."""

    @property
    def member_id(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def boot(self) -> int: ...
    @property
    def timing(self) -> Timing: ...
    @property
    def store(self) -> Store: ...
    @property
    def parts(self) -> MemberParts: ...
    @property
    def signals(self) -> Signals: ...
    @property
    def is_coordinator(self) -> bool: ...
    @property
    def current_coordinator(self) -> str | None: ...
    @property
    def current_epoch(self) -> int: ...
    @property
    def isolated(self) -> bool: ...
    @property
    def alive_check(self) -> Check | None: ...
    async def active_workers(self) -> tuple[str, ...]: ...


class CoordinatorPlugin:
    """Override the methods that you need.

    `on_become_coordinator` and `on_stop_being_coordinator` alternate and never overlap.
    `coordinator_work` is called every `work_interval` seconds while the member leads, one call at
    a time.
    """

    name = "plugin"
    work_interval: float | None = None
    """In seconds; None takes the interval of the profile."""

    def __init__(self) -> None:
        self._coordinator: PluginHost | None = None
        self._term: Term | None = None

    @property
    def kind(self) -> str:
        """The first word of the name; it is part of the names of the plugin's events."""
        return self.name.partition(" ")[0]

    @property
    def coordinator(self) -> PluginHost:
        if self._coordinator is None:
            raise NotRunningError(f"{self.name} belongs to no coordinator yet: pass it to one")
        return self._coordinator

    @property
    def term(self) -> Term:
        """The present or the last term in which this member led."""
        if self._term is None:
            raise NotRunningError(f"{self.name} has not led yet")
        return self._term

    def emit(self, event: Event) -> None:
        """Emits an event of this plugin to the listeners of this member. Its name begins with
        `plg:`, the kind of the plugin and a colon. Namespace, time and member are filled in. It
        never raises because of a listener."""
        if not event.name.startswith(f"plg:{self.kind}:"):
            raise ConfigurationError(
                f"name is {event.name!r}: an event of this plugin begins with 'plg:{self.kind}:';"
                f" use name: ClassVar[str] = 'plg:{self.kind}:...'"
            )
        self.coordinator.parts.bus.emit(event)

    async def on_start(self) -> None:
        """Called once on every member, after it registered."""

    async def before_stop(self) -> None:
        """Called once when the member begins to stop, while it may still lead: end what waits for
        work, and return what other members could take."""

    async def on_stop(self) -> None:
        """Called once when the member stops, or when its start failed after `on_start`. Its term
        has ended by then: `coordinator_work` and `on_stop_being_coordinator` have returned, so
        that what they use can be closed here. Only work that ignores its cancellation for more
        than a second may still run."""

    async def on_become_coordinator(self) -> None:
        """Called when this member begins to lead, before the first `coordinator_work`."""

    async def on_stop_being_coordinator(self) -> None:
        """Called at the end of the term, when the work has ended or ignored its cancellation."""

    async def coordinator_work(self) -> None:
        """Called every `work_interval` seconds while this member leads."""

    def work(self, coordinator: PluginHost, default_interval: float) -> Work:
        """The plugin as work of the leader."""
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
