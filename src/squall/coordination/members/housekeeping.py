"""Periodic duties besides the work of the application: the cleanup every five minutes, the gauges
of the store, the age of the secret, and the environment that the store belongs to.

Only the leader cleans up and counts keys, so that N members do not count the same keys N times. The
`meta` record binds a store to one environment and remembers when each signing key was first seen.
Metrics that alerts watch exist with 0 from the start, because an alert sees an increase only from a
value that was there before. No cleanup runs right after an outage of the store: silence then says
nothing about members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from squall.coordination.election.term import Term, Work
from squall.coordination.errors import ConfigurationError, VersionConflict
from squall.coordination.member_parts import MemberParts
from squall.coordination.members.cleanup import STALE_S, clean_up, count, last_report
from squall.coordination.members.health_rules import GracePeriod
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, LeaseRecord, check_schema
from squall.coordination.records.unknown_fields import keep_unknown
from squall.coordination.secrets.sources import REREAD_S, ROTATION_S
from squall.coordination.store_errors import StoreError
from squall.coordination.stores.interface import ABSENT, ANY, Put, Record

CLEANUP_S = 300.0
METRICS_INTERVAL_S = 60.0
# On S3, where counting keys is a list request that costs money.
METRICS_INTERVAL_POLLED_S = 300.0
META_SCHEMA = 1
# Members that start together change the meta record at the same time; each try loses to another.
META_TRIES = 10
REASONS = (
    *("missing", "malformed", "bad_signature", "unknown_key", "expired", "from_future"),
    *("wrong_receiver", "stale_epoch", "unknown_epoch", "fenced_sender"),
)


@runtime_checkable
class MemoryReporter(Protocol):
    """A store that reports its memory (Redis)."""

    async def memory(self) -> tuple[int, int]:
        """Bytes in use, and the limit; 0 without one."""
        ...


class NamespaceMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The `meta` record of a namespace; never expires. Keys appear by their id, which signatures
    show anyway."""

    environment: str
    v: int = META_SCHEMA
    keys_seen_ms: Mapping[str, int] = {}
    signing_since_ms: Mapping[str, int] = {}
    """Since when the leader signs with each key, at most a minute late (S3: five)."""


class Housekeeping:
    """Runs the periodic duties of one member; some of them only while it leads."""

    def __init__(
        self,
        parts: MemberParts,
        grace: GracePeriod,
        environment: str,
        *,
        cleanup_delay: float = 0.0,
    ) -> None:
        self._parts = parts
        self._grace = grace
        self._environment = environment
        # Counted from a death; infinite if the application cleans up by hand.
        self._cleanup_delay = cleanup_delay
        # The epoch in the store when this member started.
        self.epoch = 0
        self._meta: NamespaceMeta | None = None
        self._cleaned_at = parts.clock.now()
        # End of the last cleanup that is in the metrics; -1 before the first read.
        self._counted_ms = -1
        self._kinds: set[str] = set()
        self._refused_at = -math.inf

    async def begin(self, *, transient: bool = False) -> None:
        """Call before the member registers. Raises `ConfigurationError` in the store of another
        environment, and for a transient member whose secret differs from the leader's."""
        self._start_at_zero()
        parts = self._parts
        # Check the environment first: in another one the secret differs as well, and the message
        # about it would mislead.
        await self._note((), ())
        (lease,) = await parts.patient.get(keys.LEADER)
        self.epoch = 0 if lease is None else lease.epoch
        differs = differing_secret(parts, lease)
        if differs and transient:
            raise ConfigurationError(differs)
        if differs:
            parts.log.warning("secret_differs", message=differs)
        await self._note_keys()
        metrics = parts.metrics
        metrics.gauge(metrics.families.secret_age_s).follow(self._secret_age_s)
        limit_s = ROTATION_S.get(self._environment)
        metrics.gauge(metrics.families.secret_age_limit_s).set(limit_s or 0.0)
        if limit_s is not None and self._secret_age_s() > limit_s:
            parts.log.warning(
                "secret_too_old", age_days=round(self._secret_age_s() / 86_400), limit_s=limit_s
            )
        if parts.secret_reloader is not None:
            parts.tasks.every("secrets", REREAD_S, self.reread)

    async def reread(self) -> bool:
        """Reads the source of the secret again; whether it changed."""
        secret_reloader = self._parts.secret_reloader
        if secret_reloader is None or not await secret_reloader.reload():
            return False
        await self._note_keys()
        return True

    def work(self) -> Work:
        capabilities = self._parts.patient.capabilities
        is_polled = capabilities.cross_host and not capabilities.blocking_wait
        interval = METRICS_INTERVAL_POLLED_S if is_polled else METRICS_INTERVAL_S
        return Work("upkeep", stop=self._end, periodic=self._turn, interval=interval)

    async def _end(self, term: Term) -> None:
        """The next leader counts now; an old value must not keep an alert firing."""
        metrics, families = self._parts.metrics, self._parts.metrics.families
        for kind in self._kinds:
            metrics.gauge(families.keys, kind).set(0.0)
        metrics.gauge(families.store_bytes).set(0.0)
        metrics.gauge(families.store_bytes_max).set(0.0)

    async def _turn(self, term: Term) -> None:
        parts = self._parts
        try:
            await self._set_store_gauges()
            await self._note_signing()
            now = parts.clock.now()
            if now - self._cleaned_at >= CLEANUP_S and self._grace.may_warn(
                parts.clock.boot_time()
            ):
                self._cleaned_at = now
                await clean_up(parts.patient, parts.clock, stale_s=self._stale_s)
            await self._count_cleanup()
        except (StoreError, ConfigurationError) as error:
            # Not a failure of the leader's work: renewals decide whether it can still lead.
            parts.on_failure("upkeep_failed", error)

    @property
    def _stale_s(self) -> float:
        """Well after the monitor would have declared a death."""
        dead_after = self._parts.timing.dead_after
        return max(STALE_S, 2.0 * dead_after, dead_after + self._cleanup_delay)

    async def _set_store_gauges(self) -> None:
        parts, metrics = self._parts, self._parts.metrics
        found = await parts.patient.count()
        self._kinds.update(found)
        for kind in self._kinds:
            metrics.gauge(metrics.families.keys, kind).set(found.get(kind, 0))
        if isinstance(parts.patient.inner, MemoryReporter):
            used, limit = await parts.patient.inner.memory()
            metrics.gauge(metrics.families.store_bytes).set(used)
            metrics.gauge(metrics.families.store_bytes_max).set(limit)

    async def _count_cleanup(self) -> None:
        """Counts cleanups of every process: those that a timer starts have no metrics endpoint."""
        report = await last_report(self._parts.patient)
        ended_ms = 0 if report is None else report.ended_ms
        if report is not None and -1 < self._counted_ms < ended_ms:
            count(self._parts.metrics, report)
        self._counted_ms = max(self._counted_ms, ended_ms)

    # The meta record.

    async def bind_environment(self) -> None:
        """Writes the record again if the store lost it. Call before a member comes back: it must
        not join a namespace that now belongs to another environment.

        A member of another environment may have come first. It keeps the namespace while any of
        its members lives; then this member takes it back. Only a member that was registered here
        may do so: one that starts is refused, or a wrong `environment` would take each namespace
        whose members are stopped.
        """
        await self._note_keys(takes_back=True)

    async def _note_keys(self, *, takes_back: bool = False) -> None:
        """Reads the record and adds the keys that it does not know."""
        keyring = self._parts.codec.keyring
        known = () if keyring is None else keyring.key_ids
        await self._note(known, (), takes_back=takes_back)

    async def _note_signing(self) -> None:
        """On the leader: all members sign with the key that it signs with. Reads the record each
        time, and so writes it again if the store lost it."""
        keyring = self._parts.codec.keyring
        if keyring is None:
            await self._note((), ())
        else:
            await self._note(keyring.key_ids, (keyring.signing_id,))

    async def _note(
        self, known: Sequence[str], signing: Sequence[str], *, takes_back: bool = False
    ) -> None:
        parts = self._parts
        for _ in range(META_TRIES):
            (record,) = await parts.patient.get(keys.META)
            meta = None if record is None else read_meta(record.value)
            if meta is not None:
                check_schema("meta", meta.v)
            if meta is not None and meta.environment != self._environment:
                if not takes_back or await parts.live_members(pages=1):
                    await self._show_refusal(takes_back)
                    raise ConfigurationError(
                        f"environment is {self._environment!r}, but this namespace belongs to"
                        f" {meta.environment!r}; set environment={meta.environment!r}, use another"
                        f" namespace, or stop the members of {meta.environment!r} and delete the"
                        " record `meta`"
                    )
                parts.log.warning("environment_taken_back", was=meta.environment)
                meta = None
            now_ms = round(parts.store_time() * 1000.0)
            # A store that lost the record gets it back with what this member knows.
            found = meta or self._meta or NamespaceMeta(environment=self._environment)
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

    async def _show_refusal(self, was_registered: bool) -> None:
        """Leaves a record for the doctor, which sees the store and not the logs of members."""
        now = self._parts.clock.now()
        if not was_registered or now - self._refused_at < keys.REFUSED_TTL_S / 2.0:
            return
        self._refused_at = now
        refused = msgspec.json.encode({"v": META_SCHEMA, "member_id": self._parts.member_id})
        key, ttl_s = keys.refused(self._environment), keys.REFUSED_TTL_S
        await self._parts.patient.write(Put(key, refused, expect=ANY, ttl_s=ttl_s, silent=True))

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


def write_meta(meta: NamespaceMeta, over: bytes | None) -> bytes:
    """`over` is the record before: fields that this version does not know are kept."""
    fields = msgspec.to_builtins(meta)
    if over is not None:
        keep_unknown(NamespaceMeta, fields, msgspec.json.decode(over))
    return msgspec.json.encode(fields)


def differing_secret(parts: MemberParts, record: Record | None) -> str:
    """The message if the present leader signs with a key that this member does not accept: neither
    would accept the other's records. "" if the keys fit, or no member leads."""
    keyring = parts.codec.keyring
    lease = None if record is None else Codec(None).read(LeaseRecord, record.value, signed=False)
    if record is None or lease is None or keyring is None or not lease.key_id:
        return ""
    is_led = not lease.released and record.age_s <= lease.lease_ttl
    if not is_led or keyring.accepts(lease.key_id):
        return ""
    return (
        f"secret is not the one of this namespace: its leader {lease.member_id} signs with key"
        f" {lease.key_id}, this member knows {', '.join(keyring.key_ids)}; use the secret of the"
        " other members"
    )


def read_meta(value: bytes) -> NamespaceMeta | None:
    """None for a record that does not decode; it is replaced."""
    try:
        return msgspec.json.decode(value, type=NamespaceMeta)
    except msgspec.MsgspecError:
        return None
