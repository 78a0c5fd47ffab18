"""The parts that everything in a member uses: runtime, store, signing keys, events, tasks, metrics.

`open_member_parts` makes them and `MemberParts.close` closes them. A store that the application
passed as an object stays open; one that was opened from a URL is closed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from weakref import WeakKeyDictionary

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.events import Event, EventBus, OnFailure
from squall.coordination.member_stats import ContentionDetector
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.options import Options
from squall.coordination.records import keys
from squall.coordination.records.rejected_records import RejectedRecords
from squall.coordination.records.schemas import Codec, HeartbeatRecord, MemberRecord
from squall.coordination.secrets.keyrings import open_keyring
from squall.coordination.secrets.sources import SecretReloader
from squall.coordination.start_retry import retry_start
from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import Record, Store, make_key
from squall.coordination.stores.shared_memory_store import open_store
from squall.coordination.timing import Timing
from squall.runtime.interfaces import Clock, Runtime
from squall.runtime.log import Log, LoggingSink, PythonLogger, StreamSink
from squall.runtime.metrics import Registry
from squall.runtime.process_identity import ProcessIdentity, this_process
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskFailure, TaskRunner

SHUTDOWN_S = 5.0
LOGGER = "squall.coordination"
# How often the clock of the store is read. Two clocks drift apart by less than 3 s in a minute.
MEASURE_S = 60.0
# Half of the round trip is the error of a reading: answers that took longer are ignored.
ROUND_TRIP_MAX_S = 0.1
ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_RANDOM = 7


@dataclass
class MemberParts:
    """The parts of one member; each component takes what it needs from here."""

    member_id: str
    timing: Timing
    clock: Clock
    random: Random
    runtime: Runtime
    identity: ProcessIdentity
    store: Store
    """As it was given or opened, without retries."""
    patient: GuardedStore
    """Retries calls without an answer, and fails fast while the circuit breaker is open."""
    application_store: GuardedStore
    """As `patient`, and refuses writes to the library's own records."""
    urgent: GuardedStore
    """Tries once, also while the breaker is open: for heartbeats and the lease."""
    codec: Codec
    tasks: TaskRunner
    bus: EventBus
    metrics: CoordinationMetrics
    contention: ContentionDetector
    on_failure: OnFailure
    log: Log
    signs_heartbeats: bool
    owns_store: bool
    owned_runtime: RealRuntime | None
    debug: bool = False
    secret_reloader: SecretReloader | None = None
    """None if the secret was given as an option."""

    awaited: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of signals that wait for an acknowledgment. Heartbeats carry them, so that cleanup finds
    the acknowledgments of a dead member."""
    offset_s: float = 0.0
    """Store time minus our clock, measured every minute."""
    measured_at: float = -math.inf
    state_losses: int = 0
    """How often this member found that the store had lost its data."""

    def store_time(self) -> float:
        return self.clock.now() + self.offset_s

    def trace(self, event: str, **fields: object) -> None:
        """Logs what happens in every cycle, only with `debug`."""
        if self.debug:
            self.log.info(event, **fields)

    def add_to_log(self, **context: object) -> None:
        """Adds fields to every later log line."""
        self.log = self.log.bind(**context)

    async def measure(self) -> None:
        """Reads the clock of the store."""
        begun = self.clock.now()
        self._measured(await self.urgent.now_ms(), begun, self.clock.now())

    async def measure_if_due(self) -> None:
        """Reads the clock of the store, unless `note_store_time` did lately."""
        if self.clock.now() - self.measured_at >= MEASURE_S * 0.75:
            await self.measure()

    def note_store_time(self, store_ms: int, begun: float, ended: float) -> None:
        """Takes the store time from the answer to another call, which saves a request."""
        is_due = ended - self.measured_at >= MEASURE_S * 0.5
        if is_due and ended - begun <= ROUND_TRIP_MAX_S:
            self._measured(store_ms, begun, ended)

    def _measured(self, store_ms: int, begun: float, ended: float) -> None:
        self.offset_s = store_ms / 1000.0 - (begun + ended) / 2.0
        self.measured_at = ended

    async def live_members(self, *, pages: int) -> list[str]:
        """Ids of members with a fresh heartbeat, in the order of the store."""
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

    def read_heartbeat(self, record: Record | None) -> HeartbeatRecord | None:
        """None for no record, and for one that does not decode or verify."""
        if record is None:
            return None
        signed = self.signs_heartbeats
        return self.codec.read(HeartbeatRecord, record.value, signed=signed, key=record.key)

    def read_member(self, record: Record | None) -> MemberRecord | None:
        """None for no record, and for one that does not decode or verify."""
        if record is None:
            return None
        return self.codec.read(MemberRecord, record.value, key=record.key)

    async def close(self, within_s: float) -> None:
        await self.tasks.shutdown(min(within_s, SHUTDOWN_S))
        self.bus.close()
        if self.owns_store:
            await self.store.close()
        if self.owned_runtime is not None:
            await self.owned_runtime.close()


# The namespace of each store object that an application passed. A store object has one key prefix,
# so members of two namespaces must not share it.
_namespaces: WeakKeyDictionary[Store, str] = WeakKeyDictionary()


async def open_member_parts(
    given: str | Store,
    options: Options,
    member_id: str | None,
    *,
    runtime: Runtime | None,
    log: Log | PythonLogger | None,
    registry: Registry | None,
) -> MemberParts:
    owned = RealRuntime(member_id or "coordination") if runtime is None else None
    actual: Runtime = owned if owned is not None else _present(runtime)
    name = make_key(member_id or make_member_id(actual))
    bound = _bound(log, options, actual, name)
    store = _opened(given, options, actual, bound)
    timing = options.timing_for(store.capabilities)
    metrics = CoordinationMetrics.of_registry(registry, options.namespace)
    patient = _guarded(store, actual, metrics, bound)
    try:
        await retry_start(actual.clock, store.probe, StoreUnavailableError)
        keyring, secret_reloader = await open_keyring(options, patient, actual, metrics, bound)
    except BaseException:
        if isinstance(given, str):
            await store.close()
        raise

    def on_failure(what: str, error: Exception) -> None:
        assembled.log.error(what, error=error)

    tasks = TaskRunner(actual.clock, actual.random, on_failure=_task_failed(on_failure))

    def stamp(event: Event) -> Event:
        return msgspec.structs.replace(
            event, namespace=options.namespace, timestamp=actual.clock.wall(), observer_id=name
        )

    def on_dropped() -> None:
        metrics.counter(metrics.families.events_dropped).add()

    sign = options.sign_heartbeats
    assembled = MemberParts(
        member_id=name,
        timing=timing,
        clock=actual.clock,
        random=actual.random,
        runtime=actual,
        identity=this_process(),
        store=store,
        patient=patient,
        application_store=patient.for_application,
        urgent=patient.urgent,
        codec=Codec(keyring, RejectedRecords(metrics, lambda: assembled.log)),
        tasks=tasks,
        bus=EventBus(tasks.group("handlers"), stamp, on_failure, on_dropped),
        metrics=metrics,
        contention=ContentionDetector(
            options.contention_threshold if options.contention_detection_enabled else math.inf,
            timing.heartbeat_interval,
        ),
        on_failure=on_failure,
        log=bound,
        signs_heartbeats=store.capabilities.cross_host if sign is None else sign,
        owns_store=isinstance(given, str),
        owned_runtime=owned,
        debug=options.debug,
        secret_reloader=secret_reloader,
    )
    return assembled


def _bound(given: Log | PythonLogger | None, options: Options, runtime: Runtime, name: str) -> Log:
    """The log with the fields of every line. By default it writes to Python's `logging`, so that a
    failure in code of the application is never silent."""
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
                f"namespace is {options.namespace!r}, but this store object belongs to {first!r};"
                " pass the URL of the store, or a store object of its own"
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
    """An id of fixed width, so that ids sort by the time at which they were made."""
    entropy = runtime.entropy(ID_RANDOM)
    tail = "".join(ID_CHARACTERS[byte % len(ID_CHARACTERS)] for byte in entropy)
    return f"worker-{int(runtime.clock.wall() * 1000.0):013d}-{tail}"


def _present(runtime: Runtime | None) -> Runtime:
    assert runtime is not None
    return runtime
