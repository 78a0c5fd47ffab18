"""What a member does beside its work so that operators see the truth: the cleanup every five
minutes, the gauges of the store, the age of the secret, the environment of the store.

Cleanup and gauges of the store run on the coordinator only, so that N members do not count
the same keys N times. The `meta` record binds a store to one environment and remembers when
each signing key was first seen. Series that alerts watch exist from the start with 0: an
increase is only seen from a value that was there before.

It must never clean up right after the store was away: then silence says nothing about members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from squall.coordination import keys
from squall.coordination.assembly import Assembly
from squall.coordination.cleanup import STALE_S, clean_up, count, last_report
from squall.coordination.errors import ConfigurationError, VersionConflict
from squall.coordination.health import Grace
from squall.coordination.keeping import keep_unknown
from squall.coordination.records import Codec, LeaseRecord, check_schema
from squall.coordination.secrets import REREAD_S, ROTATION_S
from squall.coordination.stores.errors import StoreError
from squall.coordination.stores.interface import ABSENT, Put, Record
from squall.coordination.terms import Term, Work

CLEANUP_S = 300.0
LOOK_S = 60.0
LOOK_AFAR_S = 300.0
"""Where counting keys is a list that costs money."""
META_SCHEMA = 1
META_TRIES = 10
REASONS = (
    *("missing", "malformed", "bad_signature", "unknown_key", "expired", "from_future"),
    *("wrong_receiver", "stale_epoch", "fenced_sender"),
)


@runtime_checkable
class Measured(Protocol):
    """A store that knows its memory."""

    async def memory(self) -> tuple[int, int]:
        """Bytes in use, and the limit or 0."""
        ...


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Never expires. Keys are named by what signatures show anyway, never by a secret."""

    environment: str
    v: int = META_SCHEMA
    keys_seen_ms: Mapping[str, int] = {}
    signing_since_ms: Mapping[str, int] = {}
    """Since when a coordinator signs with each key, a minute late at most (S3: five)."""


class Upkeep:
    """Of one member."""

    def __init__(
        self, parts: Assembly, grace: Grace, environment: str, *, cleanup_delay: float = 0.0
    ) -> None:
        self._parts = parts
        self._grace = grace
        self._environment = environment
        self._cleanup_delay = cleanup_delay
        """After a death; infinite where the dead are left as they are."""
        self.epoch = 0
        """The one in the store when this member started."""
        self._meta: Meta | None = None
        self._cleaned_at = parts.clock.now()
        self._counted_ms = -1
        """When the last cleanup ended that is in the metrics."""
        self._kinds: set[str] = set()

    async def begin(self, *, transient: bool = False) -> None:
        """Before the member registers. `ConfigurationError` in the store of another
        environment, and for a transient member whose secret is not that of the coordinator."""
        self._start_at_zero()
        parts = self._parts
        # The environment comes first: in another one, every secret is a different one.
        await self._note((), ())
        (lease,) = await parts.patient.get(keys.LEADER)
        self.epoch = 0 if lease is None else lease.epoch
        differs = differing_secret(parts, lease)
        if differs and transient:
            raise ConfigurationError(differs)
        if differs:
            parts.log.warning("secret_differs", message=differs)
        await self._meet()
        metrics = parts.metrics
        metrics.gauge(metrics.families.secret_age_s).follow(self._secret_age_s)
        limit_s = ROTATION_S.get(self._environment)
        metrics.gauge(metrics.families.secret_age_limit_s).set(limit_s or 0.0)
        if limit_s is not None and self._secret_age_s() > limit_s:
            parts.log.warning(
                "secret_too_old", age_days=round(self._secret_age_s() / 86_400), limit_s=limit_s
            )
        if parts.keeper is not None:
            parts.tasks.every("secrets", REREAD_S, self.reread)

    async def reread(self) -> bool:
        """Reads the source of the secret again. Whether it changed."""
        keeper = self._parts.keeper
        if keeper is None or not await keeper.reload():
            return False
        await self._meet()
        return True

    def work(self) -> Work:
        capabilities = self._parts.patient.capabilities
        is_afar = capabilities.cross_host and not capabilities.blocking_wait
        interval = LOOK_AFAR_S if is_afar else LOOK_S
        return Work("upkeep", stop=self._end, periodic=self._turn, interval=interval)

    async def _end(self, term: Term) -> None:
        """Another one counts now; an old count must not keep an alert awake."""
        metrics, families = self._parts.metrics, self._parts.metrics.families
        for kind in self._kinds:
            metrics.gauge(families.keys, kind).set(0.0)
        metrics.gauge(families.store_bytes).set(0.0)
        metrics.gauge(families.store_bytes_max).set(0.0)

    async def _turn(self, term: Term) -> None:
        parts = self._parts
        try:
            await self._look()
            await self._note_signing()
            now = parts.clock.now()
            if now - self._cleaned_at >= CLEANUP_S and self._grace.may_warn(
                parts.clock.boot_time()
            ):
                self._cleaned_at = now
                await clean_up(parts.patient, parts.clock, stale_s=self._stale_s)
            await self._count_cleanup()
        except StoreError as error:
            # No reason to give up leadership: renewals decide about that.
            parts.on_failure("upkeep_failed", error)

    @property
    def _stale_s(self) -> float:
        """Long after a death would have been decided."""
        dead_after = self._parts.timing.dead_after
        return max(STALE_S, 2.0 * dead_after, dead_after + self._cleanup_delay)

    async def _look(self) -> None:
        parts, metrics = self._parts, self._parts.metrics
        found = await parts.patient.count()
        self._kinds.update(found)
        for kind in self._kinds:
            metrics.gauge(metrics.families.keys, kind).set(found.get(kind, 0))
        if isinstance(parts.patient.inner, Measured):
            used, limit = await parts.patient.inner.memory()
            metrics.gauge(metrics.families.store_bytes).set(used)
            metrics.gauge(metrics.families.store_bytes_max).set(limit)

    async def _count_cleanup(self) -> None:
        """Also those of the timer, which nobody can scrape."""
        report = await last_report(self._parts.patient)
        ended_ms = 0 if report is None else report.ended_ms
        if report is not None and -1 < self._counted_ms < ended_ms:
            count(self._parts.metrics, report)
        self._counted_ms = max(self._counted_ms, ended_ms)

    # The meta record.

    async def _meet(self) -> None:
        """Reads it, and adds the keys that it does not know."""
        keyring = self._parts.codec.keyring
        await self._note(() if keyring is None else keyring.key_ids, ())

    async def _note_signing(self) -> None:
        """On the coordinator: what it signs with, all others do."""
        keyring = self._parts.codec.keyring
        if keyring is None or self._meta is None:
            return
        if keyring.signing_id not in self._meta.signing_since_ms:
            await self._note(keyring.key_ids, (keyring.signing_id,))

    async def _note(self, known: Sequence[str], signing: Sequence[str]) -> None:
        parts = self._parts
        for _ in range(META_TRIES):
            (record,) = await parts.patient.get(keys.META)
            meta = None if record is None else read_meta(record.value)
            if meta is not None:
                check_schema("meta", meta.v)
            if meta is not None and meta.environment != self._environment:
                raise ConfigurationError(
                    f"environment is {self._environment!r}: this store belongs to"
                    f" {meta.environment!r}; environment={meta.environment!r} is right,"
                    " or another namespace"
                )
            now_ms = round(parts.store_time() * 1000.0)
            found = meta or Meta(environment=self._environment)
            self._meta = msgspec.structs.replace(
                found,
                keys_seen_ms=dict.fromkeys(known, now_ms) | dict(found.keys_seen_ms),
                signing_since_ms=dict.fromkeys(signing, now_ms) | dict(found.signing_since_ms),
            )
            if self._meta == meta:
                return
            put = Put(
                keys.META,
                write_meta(self._meta, None if record is None or meta is None else record.value),
                expect=ABSENT if record is None else record.version,
                ttl_s=None,
                silent=True,
            )
            try:
                await parts.patient.write(put)
                return
            except VersionConflict:
                continue

    def _secret_age_s(self) -> float:
        keyring = self._parts.codec.keyring
        if keyring is None or self._meta is None:
            return 0.0
        seen_ms = self._meta.keys_seen_ms.get(keyring.signing_id)
        return 0.0 if seen_ms is None else max(0.0, self._parts.store_time() - seen_ms / 1000.0)

    def _start_at_zero(self) -> None:
        metrics, families = self._parts.metrics, self._parts.metrics.families
        for gauge in (families.is_leader, families.leader_seen, families.isolated):
            metrics.gauge(gauge)
        for counter in (
            *(families.deaths, families.timeouts, families.leader_changes),
            *(families.secret_failures, families.warnings, families.fencing_rejections),
        ):
            metrics.counter(counter)
        for reason in REASONS:
            metrics.counter(families.signals_rejected, reason)
        for histogram in (families.cleanup_s, families.signal_latency_s):
            metrics.histogram(histogram)
        metrics.gauge(families.lease_ttl_s).set(self._parts.timing.lease_ttl)
        metrics.gauge(families.active_coordinators)


def write_meta(meta: Meta, over: bytes | None) -> bytes:
    """`over` is what it was before."""
    fields = msgspec.to_builtins(meta)
    if over is not None:
        keep_unknown(Meta, fields, msgspec.json.decode(over))
    return msgspec.json.encode(fields)


def differing_secret(parts: Assembly, record: Record | None) -> str:
    """Says so if a coordinator leads now whose signatures this member does not accept: then
    nobody believes the other. "" if all is well, or nobody leads."""
    keyring = parts.codec.keyring
    lease = None if record is None else Codec(None).read(LeaseRecord, record.value, signed=False)
    if record is None or lease is None or keyring is None or not lease.key_id:
        return ""
    is_led = not lease.released and record.age_s <= lease.lease_ttl
    if not is_led or keyring.accepts(lease.key_id):
        return ""
    return (
        f"secret is not the one of this namespace: its coordinator {lease.worker_id} signs with key"
        f" {lease.key_id}, and {', '.join(keyring.key_ids)} is known here; the secret of the other"
        " members is right"
    )


def read_meta(value: bytes) -> Meta | None:
    """One that does not decode is replaced."""
    try:
        return msgspec.json.decode(value, type=Meta)
    except msgspec.MsgspecError:
        return None
