"""The parts that a member stands on: runtime, store, keys, events, tasks, metrics.

Made in one place and closed in one place. A store that was given as an object belongs to its
giver; one that was opened from a URL is closed here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from weakref import WeakKeyDictionary

import msgspec

from squall.coordination import keys
from squall.coordination.errors import ConfigurationError
from squall.coordination.events import Event, EventBus, OnFailure
from squall.coordination.keyrings import open_keyring
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.opening import open_store
from squall.coordination.options import Options
from squall.coordination.records import Codec
from squall.coordination.refusals import Refusals
from squall.coordination.rolling import Contention
from squall.coordination.secrets import SecretKeeper
from squall.coordination.stores.errors import StoreUnavailableError
from squall.coordination.stores.guard import GuardedStore
from squall.coordination.stores.interface import Store, make_key
from squall.coordination.timing import Timing
from squall.runtime.identity import ProcessIdentity, this_process
from squall.runtime.interfaces import Clock, Runtime
from squall.runtime.log import Log, LoggingSink, PythonLogger, StreamSink
from squall.runtime.metrics import Registry
from squall.runtime.real import RealRuntime
from squall.runtime.tasks import TaskFailure, TaskRunner

SHUTDOWN_S = 5.0
START_DELAYS_S = (1.0, 2.0, 4.0)
"""Before each further try of what a start needs of the store."""
LOGGER = "squall.coordination"
MEASURE_S = 60.0
"""Between two looks at the clock of the store."""
OVERHEARD_S = 0.1
"""An answer that took longer is no measure."""
ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_RANDOM = 7


@dataclass
class Assembly:
    """What one member is made of."""

    member_id: str
    timing: Timing
    clock: Clock
    random: Random
    runtime: Runtime
    identity: ProcessIdentity
    store: Store
    patient: GuardedStore
    urgent: GuardedStore
    codec: Codec
    tasks: TaskRunner
    bus: EventBus
    metrics: CoordinationMetrics
    contention: Contention
    on_failure: OnFailure
    log: Log
    signs_heartbeats: bool
    owns_store: bool
    owned_runtime: RealRuntime | None
    debug: bool = False
    keeper: SecretKeeper | None = None
    """Reads the secret again, if it comes from a source."""

    awaited: dict[str, None] = field(default_factory=dict[str, None])
    """Signals whose acknowledgment is waited for; heartbeats name them."""
    offset_s: float = 0.0
    """Store time minus our clock; measured every minute."""
    measured_at: float = -math.inf

    def store_time(self) -> float:
        return self.clock.now() + self.offset_s

    def trace(self, event: str, **fields: object) -> None:
        """What happens again and again: only with `debug`."""
        if self.debug:
            self.log.info(event, **fields)

    def say_in_log(self, **context: object) -> None:
        """From now on every line of the log says this, too."""
        self.log = self.log.bind(**context)

    async def measure(self) -> None:
        """Half of the round trip is the error."""
        begun = self.clock.now()
        self._measured(await self.urgent.now_ms(), begun, self.clock.now())

    async def measure_again(self) -> None:
        """Unless it was overheard lately."""
        if self.clock.now() - self.measured_at >= MEASURE_S * 0.75:
            await self.measure()

    def overheard(self, store_ms: int, begun: float, ended: float) -> None:
        """An answer to something else told the time of the store: that saves a question."""
        is_due = ended - self.measured_at >= MEASURE_S * 0.5
        if is_due and ended - begun <= OVERHEARD_S:
            self._measured(store_ms, begun, ended)

    def _measured(self, store_ms: int, begun: float, ended: float) -> None:
        self.offset_s = store_ms / 1000.0 - (begun + ended) / 2.0
        self.measured_at = ended

    async def live_members(self, *, pages: int) -> list[str]:
        """Ids with a fresh heartbeat, in the order of the store."""
        found: list[str] = []
        limit_ms = self.timing.heartbeat_ttl * 1000.0
        after = ""
        for _ in range(pages):
            page = await self.patient.list(keys.HEARTBEAT, after=after, limit=1000)
            found += [
                keys.member_id_of(entry.key) for entry in page.entries if entry.idle_ms <= limit_ms
            ]
            after = page.after
            if not after:
                break
        return found

    async def close(self) -> None:
        await self.tasks.shutdown(SHUTDOWN_S)
        self.bus.close()
        if self.owns_store:
            await self.store.close()
        if self.owned_runtime is not None:
            await self.owned_runtime.close()


_namespaces: WeakKeyDictionary[Store, str] = WeakKeyDictionary()
"""Of store objects that applications gave: one has one prefix, so it is of one namespace."""


async def assemble(
    given: str | Store,
    options: Options,
    member_id: str | None,
    *,
    runtime: Runtime | None,
    log: Log | PythonLogger | None,
    registry: Registry | None,
) -> Assembly:
    owned = RealRuntime(member_id or "coordination") if runtime is None else None
    world: Runtime = owned if owned is not None else _present(runtime)
    name = make_key(member_id or make_member_id(world))
    bound = _bound(log, options, world, name)
    store = _opened(given, options, world, bound)
    timing = options.timing_for(store.capabilities)
    metrics = CoordinationMetrics.of_registry(registry, options.namespace)
    patient = _guarded(store, world, metrics, bound)
    try:
        await _tried(store, world.clock)
        keyring, keeper = await open_keyring(options, patient, world, metrics, bound)
    except BaseException:
        if isinstance(given, str):
            await store.close()
        raise

    def on_failure(what: str, error: Exception) -> None:
        assembled.log.error(what, error=error)

    tasks = TaskRunner(world.clock, world.random, on_failure=_task_failed(on_failure))

    def stamp(event: Event) -> Event:
        return msgspec.structs.replace(
            event, namespace=options.namespace, timestamp=world.clock.wall(), observer_id=name
        )

    def on_dropped() -> None:
        metrics.counter(metrics.families.events_dropped).add()

    sign = options.sign_heartbeats
    assembled = Assembly(
        member_id=name,
        timing=timing,
        clock=world.clock,
        random=world.random,
        runtime=world,
        identity=this_process(),
        store=store,
        patient=patient,
        urgent=patient.urgent,
        codec=Codec(keyring, Refusals(metrics, lambda: assembled.log)),
        tasks=tasks,
        bus=EventBus(tasks.group("handlers"), stamp, on_failure, on_dropped),
        metrics=metrics,
        contention=Contention(
            options.contention_threshold if options.contention_detection_enabled else math.inf,
            timing.heartbeat_interval,
        ),
        on_failure=on_failure,
        log=bound,
        signs_heartbeats=store.capabilities.cross_host if sign is None else sign,
        owns_store=isinstance(given, str),
        owned_runtime=owned,
        debug=options.debug,
        keeper=keeper,
    )
    return assembled


async def _tried(store: Store, clock: Clock) -> None:
    """A start lives through a short absence of the store."""
    for delay_s in START_DELAYS_S:
        try:
            await store.probe()
            return
        except StoreUnavailableError:
            await clock.sleep(delay_s)
    await store.probe()


def _bound(given: Log | PythonLogger | None, options: Options, runtime: Runtime, name: str) -> Log:
    """What every line says. Python's logging has it if nothing else was given: code of the
    application that fails is never silent."""
    if given is None and options.debug:
        log = Log(StreamSink(sys.stderr), runtime.clock)
    elif isinstance(given, Log):
        log = given
    else:
        log = Log(LoggingSink(given or LOGGER), runtime.clock)
    return log.bind(namespace=options.namespace, member=name)


def _opened(given: str | Store, options: Options, runtime: Runtime, log: Log | None) -> Store:
    if not isinstance(given, str):
        first = _namespaces.setdefault(given, options.namespace)
        if first != options.namespace:
            raise ConfigurationError(
                f"namespace is {options.namespace!r}: this store object belongs to {first!r}, and"
                " its records with it; the URL of the store is right, or an object of its own"
            )
        return given
    prefix = keys.prefix_of(options.namespace)
    return open_store(given, prefix, runtime, options.environment or "", log)


def _guarded(
    store: Store, runtime: Runtime, metrics: CoordinationMetrics, log: Log | None
) -> GuardedStore:
    if isinstance(store, GuardedStore):
        return store
    return GuardedStore(store, runtime.clock, runtime.random, metrics=metrics, log=log)


def _task_failed(on_failure: OnFailure) -> Callable[[TaskFailure], None]:
    return lambda failure: on_failure(f"task_failed_{failure.name.split()[0]}", failure.error)


def make_member_id(runtime: Runtime) -> str:
    """Fixed width, so that ids sort by the time of their making."""
    entropy = runtime.entropy(ID_RANDOM)
    tail = "".join(ID_CHARACTERS[byte % len(ID_CHARACTERS)] for byte in entropy)
    return f"worker-{int(runtime.clock.wall() * 1000.0):013d}-{tail}"


def _present(runtime: Runtime | None) -> Runtime:
    assert runtime is not None
    return runtime
