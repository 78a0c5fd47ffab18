"""`Coordinator`: the object through which a service takes part in a group.

    async with Coordinator("memory:", namespace="reports") as coordinator:
        async with coordinator.lead() as term:        # waits; cancelled when the term ends
            await term.write(Put("report/today", body, expect=ANY, ttl_s=3600))

This module connects the parts of a member and owns the order of their start and stop; the rules are
in `election`, `members` and `signals`. No task is left after `stop`, and no registration after a
start that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from squall.coordination.election.health_check import HealthChecker
from squall.coordination.election.leadership import Leadership
from squall.coordination.election.single_instance import SingleInstance
from squall.coordination.election.term import LeadScope, Term, TermRunner, Work
from squall.coordination.errors import NotRunningError, StoreError, StoreUnavailableError
from squall.coordination.events import Event, Handler
from squall.coordination.instrumentation import Instrumentation
from squall.coordination.member_parts import (
    MEASURE_S,
    MemberParts,
    open_member_parts,
)
from squall.coordination.member_stats import MemberStats
from squall.coordination.members.auto_profile import AutoProfile
from squall.coordination.members.boots import BootLoop
from squall.coordination.members.external_heartbeats import ExternalHeartbeats
from squall.coordination.members.health_rules import GracePeriod
from squall.coordination.members.housekeeping import Housekeeping
from squall.coordination.members.monitor import Monitor, MonitorStatistics
from squall.coordination.operations.handover import Handover
from squall.coordination.operations.member_watcher import MemberWatcher
from squall.coordination.options import (
    AUTO,
    Options,
    OptionValues,
    check_arguments,
    check_names,
    check_options,
    check_values,
    with_environment,
)
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.secrets.keyrings import DEFAULT_ENVIRONMENT, check_secret_options
from squall.coordination.shutdown import stop_member
from squall.coordination.signals.member_context import MemberContext
from squall.coordination.signals.member_signals import Signals
from squall.coordination.start_retry import retry_start
from squall.coordination.startup_warnings import log_startup_warnings
from squall.coordination.stores.interface import Check, Store
from squall.coordination.stores.open import capabilities_of
from squall.coordination.timing import Timing
from squall.coordination.value_rules import Rule, async_function, check, or_none
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.log import Log, PythonLogger
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import MetricsServer
from squall.runtime.process_identity import variable

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)
PLUGIN_RULE = Rule(
    "it must be an object of a plugin, not its class",
    lambda value: isinstance(value, CoordinatorPlugin),
    "Queue('mail')",
)
NOT_RUNNING = "the coordinator is not running: use `async with`, or start()"


def _of_signals(
    method: Callable[Concatenate[Signals, P], R],
) -> Callable[Concatenate[Coordinator, P], R]:
    """A method of `Signals` as a method of `Coordinator`, with its signature and its text."""

    @functools.wraps(method)
    def forward(self: Coordinator, *arguments: P.args, **options: P.kwargs) -> R:
        return method(self.signals, *arguments, **options)

    return forward


class Coordinator:
    """One member of a group: it sends heartbeats, takes part in elections, leads when elected, and
    sends and receives signals.

    `store` is a URL or a store object; members of one process that pass the same object share its
    connections. Failures are logged to `log`, which may be a logger of Python's `logging`; the
    default is the logger `squall.coordination`. `runtime` replaces clock, random source and
    network, for simulations. `options` are the fields of `Options`.
    """

    def __init__(
        self,
        store: str | Store,
        *plugins: CoordinatorPlugin,
        member_id: str | None = None,
        on_become: Callable[[Term], Awaitable[None]] | None = None,
        on_stop: Callable[[Term], Awaitable[None]] | None = None,
        work: Callable[[Term], Awaitable[None]] | None = None,
        work_interval: float | None = None,
        runtime: Runtime | None = None,
        log: Log | PythonLogger | None = None,
        registry: Registry | None = None,
        **options: Unpack[OptionValues],
    ) -> None:
        check_names(options)
        self.options = with_environment(Options(**options), variable("COORD_ENVIRONMENT"))
        check_values(self.options)
        check_arguments(store, member_id, work_interval, log, registry)
        for plugin in plugins:
            check("plugin", plugin, PLUGIN_RULE)
        for name, given in (("on_become", on_become), ("on_stop", on_stop), ("work", work)):
            check(name, given, or_none(async_function("f")))
        can = capabilities_of(store) if isinstance(store, str) else store.capabilities
        check_options(self.options, self.options.timing_for(can), can)
        check_secret_options(self.options)
        self._given = (store, member_id, runtime, log, registry)
        self._own = (on_become, on_stop, work, work_interval)
        self.plugins: list[CoordinatorPlugin] = list(plugins)
        self._parts: MemberParts | None = None
        # Works that the application added stay over a restart; `_works` are those of this start.
        self._added: list[Work] = []
        self._works: list[Work] = []
        # Plugins whose `on_start` returned: only these are stopped.
        self._started: list[CoordinatorPlugin] = []
        # After a start exactly one of the two exists, by `enable_coordinator`.
        self._boots: BootLoop | None = None
        self._single_instance: SingleInstance | None = None
        self._signals: Signals | None = None
        self._external_heartbeats: ExternalHeartbeats | None = None
        self._member_watcher: MemberWatcher | None = None
        # A second `stop` waits until the first is done.
        self._ending = asyncio.Lock()
        # The epoch in the store at the start, until the first boot knows better.
        self._known_epoch = 0
        self._scrape: MetricsServer | None = None
        # Where Prometheus finds `/metrics`, if `metrics_port` was given.
        self.metrics_address: Address | None = None

    # Start and stop.

    async def __aenter__(self) -> Coordinator:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Registers the member and starts its heartbeats. A start that raises
        `DuplicateMemberError`, `ConfigurationError` or `StoreUnavailableError` leaves nothing
        behind."""
        store, member_id, runtime, log, registry = self._given
        self._parts = parts = await open_member_parts(
            store, self.options, member_id, runtime=runtime, log=log, registry=registry
        )
        self._instrumentation = Instrumentation(parts, self.plugins)
        self._works, self._started = [], []
        self._boots = self._single_instance = None
        try:
            await self._begin(parts)
        except BaseException:
            await self._end(parts)
            raise

    async def _begin(self, parts: MemberParts) -> None:
        self._make_components(parts)
        await self._retry(parts.measure)
        await self._retry(self._auto_profile.begin)
        transient = self.options.transient
        await self._retry(lambda: self._housekeeping.begin(transient=transient))
        # Set before the first signal is read: orders of an older epoch are refused from the start.
        self._known_epoch = self._housekeeping.epoch
        self._signals = Signals(parts, self._signal_context(), self.options)
        self._external_heartbeats = ExternalHeartbeats(
            parts, lambda: self.current_epoch, self._monitor.note_sequence
        )
        if not self.options.enable_coordinator:
            group = parts.tasks.group("terms")
            single_instance = SingleInstance(parts, self._instrumentation.election)
            await single_instance.begin(
                TermRunner(self._all_works, group, parts.on_failure, lambda: None)
            )
            self._single_instance = single_instance
        else:
            self._boots = boots = self._make_boots(parts, self._signals)
            await self._retry(boots.registration.register)
            boots.begin()
        parts.tasks.every("store time", MEASURE_S, self._measure)
        parts.tasks.start("advice", log_startup_warnings(parts, self.options))
        self._health_check.start()
        self._instrumentation.follow(
            p99=lambda: self.heartbeat_p99,
            active=lambda: self.is_coordinator + self.signals.blocked,
            led=lambda: self.leadership.is_led if self.leadership else self.is_coordinator,
            isolated=lambda: self.isolated,
        )
        self._signals.start()
        if self.options.metrics_port is not None:
            self._scrape = MetricsServer(parts.runtime.network, parts.metrics.families.registry)
            address = (self.options.metrics_host, self.options.metrics_port)
            self.metrics_address = await self._scrape.start(address)
        for plugin in self.plugins:
            await plugin.on_start()
            self._started.append(plugin)

    def _make_components(self, parts: MemberParts) -> None:
        """Makes what runs on the leader or beside it; starts nothing."""
        on_become, on_stop, work, interval = self._own
        timing = parts.timing
        if on_become or on_stop or work:
            self._works.append(
                Work(
                    "application",
                    become=on_become,
                    stop=on_stop,
                    periodic=work,
                    interval=interval or timing.work_interval,
                )
            )
        self._grace = GracePeriod(timing, parts.clock.boot_time())
        self._monitor = Monitor(
            parts,
            self._grace,
            auto_cleanup=self.options.auto_cleanup,
            cleanup_delay=self.options.cleanup_delay,
        )
        self._auto_profile = AutoProfile(
            parts, self._monitor.statistics, auto=self.options.profile == AUTO
        )
        self._member_watcher = MemberWatcher(parts)
        self._handover = Handover(self, parts)
        self._health_check = HealthChecker(parts, self.options.health_check)
        environment = self.options.environment or DEFAULT_ENVIRONMENT
        # `auto_cleanup=False` keeps the records of the dead from the periodic cleanup as well.
        delay_s = self.options.cleanup_delay if self.options.auto_cleanup else math.inf
        self._housekeeping = Housekeeping(parts, self._grace, environment, cleanup_delay=delay_s)
        self._watch = self._monitor.work()
        self._works += [self._watch, self._handover.work(), self._housekeeping.work()]
        self._works += self._auto_profile.works()
        self._works += [plugin.work(self, timing.work_interval) for plugin in self.plugins]

    async def stop(self) -> None:
        """Ends the work, releases the lease and leaves, within 10 s even if nothing answers. A
        further call returns when the first is done."""
        async with self._ending:
            parts = self._parts
            if parts is None:
                return
            await self._end(parts)

    async def _end(self, parts: MemberParts) -> None:
        leads = self._boots.leadership if self._boots is not None else self._single_instance
        left_s = await stop_member(self._started, leads, self._boots, parts.on_failure)
        await self._stop_serving()
        await parts.close(left_s)
        self._parts = None

    async def _stop_serving(self) -> None:
        scrape, self._scrape = self._scrape, None
        if scrape is not None:
            await scrape.close()

    # State.

    @property
    def member_id(self) -> str:
        return self._running.member_id

    @property
    def namespace(self) -> str:
        return self.options.namespace

    @property
    def timing(self) -> Timing:
        """The timing in force; with `profile="auto"` it follows the number of members."""
        return self._running.timing

    @property
    def boot(self) -> int:
        """The number of the present registration of this member; it grows with each one."""
        return self._boots.registration.boot if self._boots is not None else 1

    @property
    def store(self) -> Store:
        """The store for records of the application: it retries calls that got no answer, and
        refuses writes to the records of the library."""
        return self._running.application_store

    @property
    def parts(self) -> MemberParts:
        """The parts that plugins use: clock, tasks, events, metrics, signing."""
        return self._running

    @property
    def is_coordinator(self) -> bool:
        """Whether this member leads; False from the local limit of its lease on."""
        if self._single_instance is not None:
            return self._single_instance.leads
        return self.leadership is not None and self.leadership.leads

    @property
    def term(self) -> Term | None:
        """The term in which this member leads; None if it does not."""
        if self._single_instance is not None:
            return self._single_instance.term if self._single_instance.leads else None
        term = self.leadership.term if self.leadership is not None else None
        return term if term is not None and term.valid else None

    @property
    def current_epoch(self) -> int:
        """The highest epoch that this member knows of."""
        if self._single_instance is not None:
            return self._single_instance.epoch
        return self._boots.highest_epoch if self._boots is not None else self._known_epoch

    @property
    def current_coordinator(self) -> str | None:
        """The id of the leader, as far as this member knows; None if no member leads, or if the
        leader did not renew its lease in time."""
        if self._single_instance is not None:
            return self.member_id if self._single_instance.leads else None
        leadership = self.leadership
        if leadership is None or not leadership.is_led:
            return None
        lease = leadership.election.seen_lease
        return (lease.member_id or None) if lease is not None else None

    @property
    def leadership(self) -> Leadership | None:
        """The election of the present boot; None while stopped and in single-instance mode."""
        return (
            self._boots.leadership if self._boots is not None and self._parts is not None else None
        )

    @property
    def protected_for(self) -> float:
        """For so many seconds more the leader hands over only with `allow_early`: until
        `min_epoch_duration` after its election."""
        lease = self.leadership.election.seen_lease if self.leadership is not None else None
        if lease is None or self.current_coordinator is None:
            return 0.0
        return max(0.0, lease.elected_at + lease.min_term - self._running.store_time())

    @property
    def phase(self) -> str:
        """The phase of the cold start: observing, election, preparation, ready."""
        return self.leadership.election.cold_start.phase if self.leadership else "ready"

    @property
    def isolated(self) -> bool:
        """No heartbeat reached the store for `heartbeat_ttl`, or this boot was declared dead: take
        no new work."""
        heartbeats = self._boots.heartbeats if self._boots is not None else None
        return heartbeats is not None and heartbeats.isolated

    @property
    def heartbeat_p99(self) -> float:
        """The p99 of the last 100 heartbeats, in seconds."""
        heartbeats = self._boots.heartbeats if self._boots is not None else None
        return heartbeats.latencies.percentile(0.99) if heartbeats is not None else 0.0

    @property
    def alive_check(self) -> Check | None:
        """The first write of a batch that only a live boot may write."""
        return self._boots.registration.alive if self._boots is not None else None

    async def active_workers(self) -> tuple[str, ...]:
        """Ids of the members with a fresh heartbeat, sorted."""
        ids = await self._running.live_members(pages=1000)
        return tuple(sorted(ids))

    def get_statistics(self) -> MonitorStatistics:
        """What this member counted as the monitor of the group, while it led."""
        return self._monitor.statistics

    def get_metrics(self) -> MemberStats:
        """Counts of heartbeats, elections, fencing and contention of this member."""
        return self._instrumentation.statistics(self.heartbeat_p99)

    def metrics_text(self) -> str:
        """The metrics in Prometheus format, for an application with its own HTTP server."""
        return self._running.metrics.families.registry.exposition()

    async def cleanup_dead_coordinator(self, member_id: str, *, force: bool = False) -> bool:
        """Removes the records of a dead member, for a group with `auto_cleanup=False`. Only the
        leader may call it. Returns whether there were any."""
        term = self.term
        if term is None:
            raise NotRunningError(
                f"{self.member_id} does not lead, and only the leader cleans up;"
                " `squall coord cleanup` does it from anywhere"
            )
        return await self._monitor.clean_up_member(term, member_id, force=force)

    def lead(self) -> LeadScope:
        """`async with coordinator.lead() as term`: waits until this member leads."""
        return LeadScope(self._next_term)

    def validate_epoch(self, task_epoch: int) -> bool:
        """Whether an order of this epoch may be obeyed: none below the highest known one."""
        if not self.options.epoch_fencing_enabled:
            return True
        valid = task_epoch >= self.current_epoch
        if not valid:
            self._instrumentation.stale_order(task_epoch, self.current_epoch)
        return valid

    async def ensure_coordinator(
        self,
        *,
        force: bool = False,
        desired_coordinator: str | None = None,
        allow_early: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """Waits for a leader and returns its id. `force` asks the present leader to hand over, to
        `desired_coordinator` if it is given."""
        failover_s = 3.0 * self.timing.failover + self.timing.cold_start_observation_window
        async with asyncio.timeout(failover_s if timeout_s is None else timeout_s):
            if force:
                await self._handover.force(desired_coordinator, allow_early=allow_early)
            return await self._handover.led(desired_coordinator)

    async def hand_over(self, to: str | None = None, *, allow_early: bool = False) -> None:
        """Ends the term of this member, which must lead; the next leader is elected as usual."""
        leadership = self.leadership
        if leadership is None:
            raise NotRunningError(f"{self.member_id} does not lead: only the leader hands over")
        await self._handover.resign(leadership, to, allow_early=allow_early)

    def add_work(self, work: Work) -> None:
        """Adds work of the leader; from the next term on if the member runs."""
        self._added.append(work)

    def reload_secrets(self, secrets: Sequence[str]) -> None:
        """Accepts these secrets from now on, the newest last. All members sign with the newest
        once every live one accepts it, so no record is refused on the way."""
        keyring = self._running.codec.keyring
        if keyring is not None:
            keyring.replace(secrets)

    async def reread_secrets(self) -> bool:
        """Reads `secret_source` now instead of within five minutes, as on SIGHUP. Returns whether
        the secrets changed."""
        return self._running.secret_reloader is not None and await self._housekeeping.reread()

    # Signals; `Signals` has the rest.

    @property
    def signals(self) -> Signals:
        return self._present(self._signals)

    send_signal = _of_signals(Signals.send_signal)
    send_signal_with_retry = _of_signals(Signals.send_signal_with_retry)
    block_until_signal = _of_signals(Signals.block_until_signal)
    wait_all = _of_signals(Signals.wait_all)
    wait_any = _of_signals(Signals.wait_any)
    on_signal = _of_signals(Signals.on_signal)

    # Other members.

    async def register_heartbeat(
        self, member_id: str, sequence: int, metadata: Mapping[str, Any] | None = None
    ) -> int:
        """Sends a heartbeat for a member that does not run this library, and returns its boot;
        sequence 1 begins a new one. The leader watches it like any other member."""
        return await self._present(self._external_heartbeats).register(
            member_id, sequence, metadata
        )

    async def unregister_heartbeat(self, member_id: str) -> None:
        """Marks such a member as left, so that it is not declared dead."""
        await self._present(self._external_heartbeats).leave(member_id)

    def start_monitoring(self) -> None:
        """Emits `member:joined`, `member:left` and `member:changed` on this member. It reads the
        members every `monitor_interval`. A second call does nothing."""
        self._present(self._member_watcher).start()

    def stop_monitoring(self) -> None:
        self._present(self._member_watcher).stop()

    # Events.

    @overload
    def on(self, event: type[E], handler: Callable[[E], object]) -> None: ...
    @overload
    def on(self, event: str, handler: Handler) -> None: ...
    def on(self, event: str | type[Event], handler: Callable[[Any], Any]) -> None:
        """Calls `handler(event)` for each event of this type or name; "*" takes all."""
        self._running.bus.on(event, handler)

    @overload
    def once(self, event: type[E], handler: Callable[[E], object]) -> None: ...
    @overload
    def once(self, event: str, handler: Handler) -> None: ...
    def once(self, event: str | type[Event], handler: Callable[[Any], Any]) -> None:
        self._running.bus.once(event, handler)

    def off(self, event: str | type[Event], handler: Handler) -> None:
        self._running.bus.off(event, handler)

    @overload
    def events(self, event: type[E]) -> AsyncIterator[E]: ...
    @overload
    def events(self, event: str = "*") -> AsyncIterator[Event]: ...
    def events(self, event: str | type[Event] = "*") -> AsyncIterator[Any]:
        """Iterates over events of this type or name from now on; leaving the loop ends it."""
        return self._running.bus.iterate(event)

    # Internal.

    @property
    def _running(self) -> MemberParts:
        if self._parts is None:
            raise NotRunningError(NOT_RUNNING)
        return self._parts

    def _present(self, part: T | None) -> T:
        if part is None or self._parts is None:
            raise NotRunningError(NOT_RUNNING)
        return part

    async def _next_term(self) -> Term:
        if self._single_instance is not None:
            return self._single_instance.term
        return await self._present(self._boots).next_term()

    async def _retry(self, call: Callable[[], Awaitable[None]]) -> None:
        await retry_start(self._running.clock, call, StoreUnavailableError)

    async def _beat_now(self) -> None:
        if self._boots is not None:
            await self._boots.registration.extra_beat()

    async def _measure(self) -> None:
        with contextlib.suppress(StoreError):
            await self._running.measure_if_due()

    def _signal_context(self) -> MemberContext:
        return MemberContext(
            alive=lambda: self.alive_check,
            isolated=lambda: self.isolated,
            boot=lambda: self.boot,
            known_epoch=lambda: self.current_epoch,
            max_clock_skew=self.options.max_clock_skew,
            beat=self._beat_now,
            stale_order=self._instrumentation.stale_order,
        )

    def _all_works(self) -> list[Work]:
        return [*self._works, *self._added]

    def _make_boots(self, parts: MemberParts, signals: Signals) -> BootLoop:
        def state_lost() -> None:
            parts.state_losses += 1
            signals.receiver.state_lost()

        return BootLoop(
            parts,
            self.options,
            self._instrumentation,
            grace=self._grace,
            monitor=self._monitor,
            watch=self._watch,
            auto_profile=self._auto_profile,
            health_check=self._health_check,
            works=self._all_works,
            on_state_lost=state_lost,
            before_register=self._housekeeping.bind_environment,
            highest_epoch=self._known_epoch,
        )
