"""One member of a namespace: it beats, elects, leads when it is its turn, sends and waits.

    async with Coordinator("memory:", namespace="reports") as coordinator:
        async with coordinator.lead() as term:        # waits; cancelled when the term ends
            await term.write(Put("report/today", body, expect=ANY, ttl_s=3600))

This file puts the parts together and owns their order at start and stop. The rules
are in the parts: `election`, `life`, `health`, `inbox`. It must never leave a task behind after
`stop`, nor a registration after a start that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Unpack

from squall.coordination.advice import advise
from squall.coordination.alone import Alone
from squall.coordination.assembly import MEASURE_S, START_DELAYS_S, Assembly, assemble
from squall.coordination.driven import DrivenHeartbeats
from squall.coordination.errors import NotRunningError, StoreError, StoreUnavailableError
from squall.coordination.fitness import Fitness
from squall.coordination.handover import HandOver
from squall.coordination.health import Grace
from squall.coordination.keyrings import DEFAULT_ENVIRONMENT
from squall.coordination.leadership import Leadership
from squall.coordination.leaving import leave
from squall.coordination.life import Life
from squall.coordination.mailbox import Context
from squall.coordination.monitor import Monitor, Statistics
from squall.coordination.onlooking import Onlooker
from squall.coordination.options import (
    AUTO,
    Options,
    OptionValues,
    check_names,
    check_options,
    with_environment,
)
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.rolling import Figures
from squall.coordination.scaling import Pacer
from squall.coordination.signals import Signals
from squall.coordination.speaking import Speaking
from squall.coordination.stores.interface import Check, Store
from squall.coordination.stores.opening import capabilities_of
from squall.coordination.telling import Teller
from squall.coordination.terms import LeadScope, Term, TermRunner, Work
from squall.coordination.timing import Timing
from squall.coordination.upkeep import Upkeep
from squall.runtime.identity import variable
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.log import Log, PythonLogger
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import MetricsServer


class Coordinator(Speaking):
    """A member. `store` is a URL or a store object; members of one process that pass the
    same object share its connections. What goes wrong is written to `log`, which may be a logger of
    Python's `logging`; by default it is the logger `squall.coordination`. All options have the
    defaults of `Options`."""

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
        can = capabilities_of(store) if isinstance(store, str) else store.capabilities
        check_options(self.options, self.options.timing_for(can), can)
        self._given = (store, member_id, runtime, log, registry)
        self._own = (on_become, on_stop, work, work_interval)
        self.plugins: list[CoordinatorPlugin] = list(plugins)
        self._parts: Assembly | None = None
        self._added: list[Work] = []
        self._works: list[Work] = []
        """Of this start; those that were added come beside."""
        self._started: list[CoordinatorPlugin] = []
        self._life: Life | None = None
        self._alone: Alone | None = None
        self._signals: Signals | None = None
        self._driven: DrivenHeartbeats | None = None
        self._onlooker: Onlooker | None = None
        self._ending = asyncio.Lock()
        self._known_epoch = 0
        self._scrape: MetricsServer | None = None
        self.metrics_address: Address | None = None
        """Where Prometheus finds `/metrics`, if `metrics_port` was given; 0 takes a free one."""

    # The life of a member.

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
        """Registers and begins to beat. `DuplicateMemberError`, `ConfigurationError` and
        `StoreUnavailableError` leave nothing behind."""
        store, member_id, runtime, log, registry = self._given
        self._parts = parts = await assemble(
            store, self.options, member_id, runtime=runtime, log=log, registry=registry
        )
        self._teller = Teller(parts, self.plugins)
        self._works, self._started = [], []
        self._life = self._alone = None
        try:
            await self._begin(parts)
        except BaseException:
            await self._end(parts)
            raise

    async def _begin(self, parts: Assembly) -> None:
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
        self._grace = Grace(timing, parts.clock.boot_time())
        self._monitor = Monitor(
            parts,
            self._grace,
            auto_cleanup=self.options.auto_cleanup,
            cleanup_delay=self.options.cleanup_delay,
        )
        self._pacer = Pacer(parts, self._monitor.statistics, auto=self.options.profile == AUTO)
        self._onlooker = Onlooker(parts)
        self._hand_over = HandOver(self, parts)
        self._fitness = Fitness(parts, self.options.health_check)
        environment = self.options.environment or DEFAULT_ENVIRONMENT
        # Without a cleanup of its own a group keeps what its dead left, here too.
        delay_s = self.options.cleanup_delay if self.options.auto_cleanup else math.inf
        self._upkeep = Upkeep(parts, self._grace, environment, cleanup_delay=delay_s)
        self._watch = self._monitor.work()
        self._works += [self._watch, self._hand_over.work(), self._upkeep.work()]
        self._works += self._pacer.works()
        self._works += [plugin.work(self, timing.work_interval) for plugin in self.plugins]
        await self._patiently(parts.measure)
        await self._patiently(self._pacer.begin)
        transient = self.options.transient
        await self._patiently(lambda: self._upkeep.begin(transient=transient))
        # Before anything is believed: orders of an older epoch are refused from the start.
        self._known_epoch = self._upkeep.epoch
        self._signals = Signals(parts, self._signal_context(), self.options)
        self._driven = DrivenHeartbeats(
            parts, lambda: self.current_epoch, self._monitor.note_sequence
        )
        if not self.options.enable_coordinator:
            alone, group = Alone(parts, self._teller.election), parts.tasks.group("terms")
            await alone.begin(TermRunner(self._all_works, group, parts.on_failure, lambda: None))
            self._alone = alone
        else:
            self._life = life = self._make_life(parts, self._signals)
            await self._patiently(life.pulse.register)
            life.begin()
        parts.tasks.every("store time", MEASURE_S, self._measure)
        parts.tasks.start("advice", advise(parts, self.options))
        self._fitness.start()
        self._teller.follow(
            lambda: self.heartbeat_p99,
            lambda: self.is_coordinator + self.signals.blocked,
            lambda: self.leadership.is_led if self.leadership else self.is_coordinator,
        )
        self._signals.start()
        if self.options.metrics_port is not None:
            self._scrape = MetricsServer(parts.runtime.network, parts.metrics.families.registry)
            address = (self.options.metrics_host, self.options.metrics_port)
            self.metrics_address = await self._scrape.start(address)
        for plugin in self.plugins:
            await plugin.on_start()
            self._started.append(plugin)

    async def stop(self) -> None:
        """Ends work, gives up leadership, leaves; within 10 s also when nothing answers. May be
        called again: it returns when all of that is done."""
        async with self._ending:
            parts = self._parts
            if parts is None:
                return
            await self._end(parts)

    async def _end(self, parts: Assembly) -> None:
        leads = self._life.leadership if self._life is not None else self._alone
        await leave(self._started, leads, self._life, parts.on_failure)
        await self._stop_serving()
        await parts.close()
        self._parts = None

    async def _stop_serving(self) -> None:
        scrape, self._scrape = self._scrape, None
        if scrape is not None:
            await scrape.close()

    # What people ask.

    @property
    def member_id(self) -> str:
        return self._running.member_id

    @property
    def namespace(self) -> str:
        return self.options.namespace

    @property
    def timing(self) -> Timing:
        """In force; with `profile="auto"` it changes with the number of members."""
        return self._running.timing

    @property
    def incarnation(self) -> int:
        return self._life.pulse.incarnation if self._life is not None else 1

    @property
    def store(self) -> Store:
        """The store with patience, for components: it repeats what got no answer."""
        return self._running.patient

    @property
    def parts(self) -> Assembly:
        """What a component stands on: clock, tasks, events, metrics, signing."""
        return self._running

    @property
    def is_coordinator(self) -> bool:
        """False as soon as the local limit of the lease has passed."""
        if self._alone is not None:
            return self._alone.leads
        return self.leadership is not None and self.leadership.leads

    @property
    def term(self) -> Term | None:
        """The one that this member leads in, if it does."""
        if self._alone is not None:
            return self._alone.term if self._alone.leads else None
        term = self.leadership.term if self.leadership is not None else None
        return term if term is not None and term.valid else None

    @property
    def current_epoch(self) -> int:
        """The highest epoch that this member knows of."""
        if self._alone is not None:
            return self._alone.epoch
        return self._life.highest_epoch if self._life is not None else self._known_epoch

    @property
    def current_coordinator(self) -> str | None:
        """Who leads as far as this member saw; None when nobody does, or when the last one has
        not renewed its lease in time."""
        if self._alone is not None:
            return self.member_id if self._alone.leads else None
        leadership = self.leadership
        if leadership is None or not leadership.is_led:
            return None
        lease = leadership.election.seen_lease
        return (lease.worker_id or None) if lease is not None else None

    @property
    def leadership(self) -> Leadership | None:
        """What drives the election for this incarnation; None unless it runs, and alone."""
        return self._life.leadership if self._life is not None and self._parts is not None else None

    @property
    def protected_for(self) -> float:
        """For so many seconds more the present coordinator hands over only with `allow_early`:
        until `min_epoch_duration` from its election."""
        lease = self.leadership.election.seen_lease if self.leadership is not None else None
        if lease is None or self.current_coordinator is None:
            return 0.0
        return max(0.0, lease.elected_at + lease.min_term - self._running.store_time())

    @property
    def phase(self) -> str:
        """Of the start: observing, election, preparation, ready."""
        return self.leadership.election.phase if self.leadership is not None else "ready"

    @property
    def isolated(self) -> bool:
        """No beat reached the store for `heartbeat_ttl`, or this incarnation was declared dead:
        take no new work."""
        heart = self._life.heart if self._life is not None else None
        return heart is not None and heart.isolated

    @property
    def heartbeat_p99(self) -> float:
        """Over the last 100 cycles, in seconds."""
        heart = self._life.heart if self._life is not None else None
        return heart.latencies.percentile(0.99) if heart is not None else 0.0

    @property
    def alive_check(self) -> Check | None:
        """To be put first into a batch that only a live incarnation may write."""
        return self._life.pulse.alive if self._life is not None else None

    async def active_workers(self) -> tuple[str, ...]:
        """Ids of the members whose heartbeat is fresh, in their order."""
        ids = await self._running.live_members(pages=1000)
        return tuple(sorted(ids))

    def get_statistics(self) -> Statistics:
        """What the monitor of this member did while it led."""
        return self._monitor.statistics

    def get_metrics(self) -> Figures:
        """Heartbeats, elections, fencing and contention of this member, as numbers."""
        return self._teller.figures(self.heartbeat_p99)

    def metrics_text(self) -> str:
        """As Prometheus reads it, for an application that has an HTTP server of its own."""
        return self._running.metrics.families.registry.exposition()

    async def cleanup_dead_coordinator(self, member_id: str, *, force: bool = False) -> bool:
        """Of the coordinator: removes what a dead member left, by hand, for a group with
        `auto_cleanup=False`. Whether there was anything."""
        term = self.term
        if term is None:
            raise NotRunningError(
                f"{self.member_id} does not lead: only a coordinator cleans up;"
                " `squall coord cleanup` does it from anywhere"
            )
        return await self._monitor.clean_by_hand(term, member_id, force=force)

    def lead(self) -> LeadScope:
        """`async with coordinator.lead() as term`: waits until this member leads."""
        return LeadScope(self._next_term)

    def validate_epoch(self, task_epoch: int) -> bool:
        """Whether an order of that epoch may be obeyed: not one below the highest known."""
        if not self.options.epoch_fencing_enabled:
            return True
        valid = task_epoch >= self.current_epoch
        if not valid:
            self._teller.stale_order(task_epoch, self.current_epoch)
        return valid

    async def ensure_coordinator(
        self,
        *,
        force: bool = False,
        desired_coordinator: str | None = None,
        allow_early: bool = False,
        within: float | None = None,
    ) -> str:
        """Waits until somebody leads and names it. With `force`, the present coordinator is
        asked to hand over, to the one that is desired if one is named."""
        limit_s = within or 3.0 * self.timing.failover + self.timing.cold_start_observation_window
        async with asyncio.timeout(limit_s):
            if force:
                await self._hand_over.force(desired_coordinator, allow_early=allow_early)
            return await self._hand_over.led(desired_coordinator)

    async def hand_over(self, to: str | None = None, *, allow_early: bool = False) -> None:
        """Of the coordinator itself: ends its term by the normal, fenced way."""
        leadership = self.leadership
        if leadership is None:
            raise NotRunningError(f"{self.member_id} does not lead: only a coordinator hands over")
        await self._hand_over.resign(leadership, to, allow_early=allow_early)

    def add_work(self, work: Work) -> None:
        """Before the start, or while running: from the next term on."""
        self._added.append(work)

    def reload_secrets(self, secrets: Sequence[str]) -> None:
        """Accepts these from now on, the newest last. All members sign with the newest when
        every live one accepts it; no restart, nothing is refused on the way."""
        keyring = self._running.codec.keyring
        if keyring is not None:
            keyring.replace(secrets)

    async def reread_secrets(self) -> bool:
        """Reads `secret_source` now instead of within five minutes; for a SIGHUP. Whether
        the secrets changed."""
        return self._running.keeper is not None and await self._upkeep.reread()

    # Inside.

    async def _next_term(self) -> Term:
        if self._alone is not None:
            return self._alone.term
        return await self._present(self._life).next_term()

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        """A start lives through a short absence of the store."""
        for delay_s in (*START_DELAYS_S, None):
            try:
                await call()
                return
            except StoreUnavailableError:
                if delay_s is None:
                    raise
                await self._running.clock.sleep(delay_s)

    async def _beat_now(self) -> None:
        if self._life is not None:
            await self._life.pulse.beat_beside()

    async def _measure(self) -> None:
        with contextlib.suppress(StoreError):
            await self._running.measure_again()

    def _signal_context(self) -> Context:
        return Context(
            alive=lambda: self.alive_check,
            isolated=lambda: self.isolated,
            incarnation=lambda: self.incarnation,
            known_epoch=lambda: self.current_epoch,
            max_clock_skew=self.options.max_clock_skew,
            beat=self._beat_now,
            stale_order=self._teller.stale_order,
        )

    def _all_works(self) -> list[Work]:
        return [*self._works, *self._added]

    def _make_life(self, parts: Assembly, signals: Signals) -> Life:
        return Life(
            parts,
            self.options,
            self._teller,
            grace=self._grace,
            monitor=self._monitor,
            watch=self._watch,
            pacer=self._pacer,
            fitness=self._fitness,
            works=self._all_works,
            on_state_lost=signals.mailbox.state_lost,
            highest_epoch=self._known_epoch,
        )
