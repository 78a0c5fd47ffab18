"""The schemas of the records of a namespace, and the codec that encodes, signs and verifies them.

Records are JSON with a schema version `v`. A change keeps fields that this version does not know
(`unknown_fields`); a record of a newer schema is refused, and the reason names both versions. A
record that does not decode or verify counts as absent and is counted; it never ends a loop.

The stored names are older than the Python names: `member_id` is stored as `coordinator_id` or
`worker_id` where it says so, `boot` as `incarnation`. They never change, because members of two
versions share a store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from squall.coordination.errors import CoordinationError
from squall.coordination.records.unknown_fields import keep_unknown
from squall.coordination.secrets.signing import Keyring

SCHEMA = 1
# Fields that a `repr` leaves out: a signature or a token in a log could be replayed.
PROOFS = ("v", "key_id", "signature", "token")


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every record."""

    given: ClassVar[str] = ""
    """The field that an application fills; it may hold what JSON does not have."""
    signed_as: ClassVar[str] = ""
    """The name that a signature covers, where the class has been renamed since: records that were
    signed under the old name must stay valid."""
    v: int = SCHEMA
    key_id: str = ""
    signature: str = ""

    def __repr__(self) -> str:
        """For logs: without signatures and tokens."""
        fields = (each for each in self.__struct_fields__ if each not in PROOFS)
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
        return f"{type(self).__name__}({shown})"


class HeartbeatRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """The heartbeat of one member. Each beat replaces it; so does the declaration of its death."""

    given: ClassVar[str] = "metadata"
    member_id: str = msgspec.field(name="coordinator_id")
    boot: int = msgspec.field(name="incarnation")
    sequence: int
    timestamp: float
    """The sender's wall clock, for operators. Ages come from the store."""
    status: str = "alive"
    """`alive` or `dead`; a member that left has no heartbeat."""
    pid: int = 0
    hostname: str = ""
    metadata: dict[str, Any] = {}
    eligible: bool = True
    is_coordinator: bool = False
    epoch: int = 0
    """The highest epoch that the member has seen."""
    key_ids: tuple[str, ...] = ()
    """The signing keys that it accepts."""
    driven_by: str = ""
    """The member whose application sends this heartbeat; "" for one that sends its own."""
    transient: bool = False
    """A short-lived client: its silence is no death, and it leaves no records."""
    awaits: tuple[str, ...] = ()
    """Signals that wait for an acknowledgment: cleanup finds the acknowledgments by them."""
    history: tuple[tuple[int, float], ...] = ()
    """Sequence and wall-clock time of the last beats, if the member keeps them."""
    failing: tuple[str, ...] = ()
    """Works of the leader that failed several times in a row."""
    heartbeat_ttl: float = 90.0
    """How old this record may be before its member counts as stale, for observers that do not know
    the profile of the group. The default is that of `normal`."""


class MemberRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """The registration of an id. Its version changes only when the member registers, refreshes the
    registration, leaves or is declared dead, so that writes of one boot can be bound to it."""

    member_id: str
    boot: int = msgspec.field(name="incarnation")
    status: str = "alive"
    """`alive`, `left` or `dead`."""
    hostname: str = ""
    pid: int = 0
    transient: bool = False


class Tombstone(Schema, frozen=True, kw_only=True):
    """The death of one boot of a member, and how far the leader came with it."""

    member_id: str
    boot: int = msgspec.field(name="incarnation")
    death_id: str
    epoch: int
    died_at: float
    """Store time of the decision."""
    reason: str
    consecutive_warnings: int
    announced: bool = False
    cleaned: bool = False


class WarningRecord(Schema, frozen=True, kw_only=True):
    """The open warning about a silent member; shared by successive leaders."""

    member_id: str = msgspec.field(name="coordinator_id")
    boot: int = msgspec.field(name="incarnation")
    consecutive_warnings: int
    health: str
    first_at: float
    last_at: float
    last_sequence: int
    reason: str


class HeartbeatPace(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of members with `profile="auto"`: the limits of `profile` with the heartbeat
    interval of `beats`. `target` differs from them in the middle of a change."""

    profile: str
    beats: str
    target: str
    since: float
    """Store time at which the last change began."""


class LeaseRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """The lease of the leader. With `member_id` "" no member leads until it expires."""

    epoch: int
    member_id: str = msgspec.field(name="worker_id")
    boot: int = msgspec.field(name="incarnation")
    token: str
    elected_at: float
    renewals: int
    lease_ttl: float
    term_ends_at: float
    released: bool = False
    successor: str = ""
    standbys: tuple[str, ...] = ()
    """Live eligible members in the order of succession: smallest id first."""
    live: int = 0
    """How many members the leader saw alive, including itself."""
    signing_key: str = ""
    """The key that all members sign with, once all accept it."""
    pace: HeartbeatPace | None = None
    """With `profile="auto"`, the same for all members."""
    recent: tuple[float, ...] = ()
    """Store times of the last elections, the newest last."""
    min_term: float = 0.0
    """For so long after its election the leader hands over only with `allow_early`."""


class Signal(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """A message from one member to another."""

    given: ClassVar[str] = "payload"
    signal_id: str
    correlation_id: str = ""
    sender_id: str
    sender_boot: int = msgspec.field(name="sender_incarnation")
    receiver_id: str
    type: str
    iteration: int = 0
    payload: Any = None
    epoch: int = 0
    """The epoch of the leader that sent it as an order; 0 for other signals."""
    timestamp: float
    """Store time, as the sender knew it."""
    expires_at: float


class SignalAck(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """The receiver's acknowledgment of one signal."""

    signal_id: str
    receiver_id: str
    sender_id: str
    iteration: int = 0
    received_at: float


class SignalReceipt(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """Says that a consumer of the receiver has the signal and is not done with it, or failed. It
    stands where the acknowledgment would stand."""

    signal_id: str
    receiver_id: str
    sender_id: str
    taken_at: float
    error: str = ""
    """Why the handler gave up; "" while it works."""


class Delivered(Schema, frozen=True, kw_only=True):
    """The idempotency record of one signal and one receiver."""

    signal_id: str
    receiver_id: str
    outcome: str
    delivered_at: float


class WaitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One blocking wait, so that its member can resume it after a restart."""

    member_id: str
    correlation_id: str
    awaiting: tuple[str, ...] = ()
    signal_types: tuple[str, ...] = ()
    started_at: float
    deadline: float
    iteration: int = 0


class WaitStates(Schema, frozen=True, kw_only=True):
    """All blocking waits of one member."""

    waits: dict[str, WaitState] = {}


T = TypeVar("T", bound=Schema)
# Called with the kind of a refused record, its key and the reason.
OnRefused = Callable[[str, str, str], None]


class Codec:
    """Writes and reads records; signs and verifies those kinds that are signed."""

    def __init__(self, keyring: Keyring | None, on_refused: OnRefused | None = None) -> None:
        self.keyring = keyring
        self.refused = 0
        self._on_refused = on_refused

    def encode(self, record: Schema, *, signed: bool = True, over: bytes | None = None) -> bytes:
        """`over` is the verified value that this record changes: fields of a newer version are
        kept. Raises `TypeError` or `ValueError` for data that JSON does not have."""
        fields = msgspec.to_builtins(record)
        if over is not None:
            keep_unknown(type(record), fields, msgspec.json.decode(over))
        if record.given and (given := fields.get(record.given)) is not None:
            check_finite((given,))
        fields["v"] = SCHEMA
        fields.pop("signature", None)
        fields.pop("key_id", None)
        if signed and self.keyring is not None:
            return self.keyring.seal(_signed_name(type(record)), fields)
        return msgspec.json.encode(fields)

    def decode(self, kind: type[T], value: bytes, *, signed: bool = True, key: str = "") -> T | str:
        """The record, or the reason why it is refused. With its key the refusal is reported."""
        found, why = self._decoded(kind, value, signed)
        if isinstance(found, str):
            self.refused += 1
            if key and self._on_refused is not None:
                self._on_refused(kind.__name__, key, why or found)
        return found

    def _decoded(self, kind: type[T], value: bytes, signed: bool) -> tuple[T | str, str]:
        """The second part of the answer describes a refusal in more detail, for the log."""
        try:
            if signed and self.keyring is not None:
                record = self._sealed(kind, value, self.keyring)
                return self._unsealed(kind, value, self.keyring) if record is None else record, ""
            record = _decoder(kind).decode(value)
            check_schema(kind.__name__, record.v)
            return record, ""
        except SchemaError as error:
            return "malformed", str(error)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return "malformed", ""

    def _sealed(self, kind: type[T], value: bytes, keyring: Keyring) -> T | None:
        """The fast path, for bytes as this library writes them: decoded once."""
        try:
            record = _decoder(kind).decode(value)
        except msgspec.MsgspecError:
            return None
        if not keyring.is_sealed(_signed_name(kind), value, record.key_id, record.signature):
            return None
        check_schema(kind.__name__, record.v)
        return record

    def _unsealed(self, kind: type[T], value: bytes, keyring: Keyring) -> T | str:
        """The slow path: the same record in other bytes, or one that is wrong."""
        named = msgspec.json.decode(value, type=dict[str, Any])
        check_schema(kind.__name__, named.get("v", SCHEMA))
        refusal = keyring.refusal(_signed_name(kind), named)
        return msgspec.convert(named, kind) if refusal is None else refusal

    def read(self, kind: type[T], value: bytes, *, signed: bool = True, key: str = "") -> T | None:
        """The record; None if it is refused. With its key the refusal is reported."""
        found = self.decode(kind, value, signed=signed, key=key)
        return None if isinstance(found, str) else found

    def read_shared(self, kind: type[T], value: bytes, *, key: str = "") -> T | None:
        """As `read`, for a record that every member of the process reads, such as the lease: the
        same bytes under the same key are verified once for all of them."""
        keyring = self.keyring
        if keyring is None:
            return self.read(kind, value, key=key)
        known: Any = _VERIFIED.get(kind)
        if known is not None and known[0] == value and keyring.accepts(known[1].key_id):
            return known[1]
        record = self.read(kind, value, key=key)
        if record is not None:
            _VERIFIED[kind] = (value, record)
        return record


_DECODERS: dict[type[Schema], msgspec.json.Decoder[Any]] = {}
# The last record of each kind whose signature was verified.
_VERIFIED: dict[type[Schema], tuple[bytes, Schema]] = {}


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _DECODERS.get(kind)
    if found is None:
        found = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return found


def _signed_name(kind: type[Schema]) -> str:
    return kind.signed_as or kind.__name__


def check_finite(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a number in JSON")
        elif isinstance(value, dict):
            check_finite(cast("dict[str, Any]", value).values())
        elif isinstance(value, list | tuple):
            check_finite(cast("list[Any]", value))


def check_schema(name: str, found: object) -> None:
    if isinstance(found, int) and found > SCHEMA:
        raise SchemaError(
            f"{name} has schema {found}, this version knows up to {SCHEMA}: upgrade this member"
        )


class SchemaError(CoordinationError, ValueError):
    """A record of a newer schema; it counts as absent."""
