"""What the records of a namespace say, and how they are written down.

JSON with a version `v`; fields that this version does not know are kept when it changes a
record, a newer major version is refused with both named. A record that does not decode or
does not verify is as good as absent to whoever reads it, and is counted; it must never end a
loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from squall.coordination.errors import CoordinationError
from squall.coordination.keeping import keep_unknown
from squall.coordination.signing import Keyring

SCHEMA = 1
PROOFS = ("v", "key_id", "signature", "token")
"""Fields that nobody has to read."""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """What every record has."""

    given: ClassVar[str] = ""
    """The field that an application fills; it may hold what JSON does not have."""
    v: int = SCHEMA
    key_id: str = ""
    signature: str = ""

    def __repr__(self) -> str:
        """For logs, so without what proves something."""
        fields = (each for each in self.__struct_fields__ if each not in PROOFS)
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
        return f"{type(self).__name__}({shown})"


class HeartbeatRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """Replaced at every beat; whoever declares the member dead replaces it too."""

    given: ClassVar[str] = "metadata"
    coordinator_id: str
    incarnation: int
    sequence: int
    timestamp: float
    """The sender's wall clock, for people. Nobody computes an age with it."""
    status: str = "alive"
    """`alive` or `dead`; a member that left has no heartbeat."""
    pid: int = 0
    hostname: str = ""
    metadata: dict[str, Any] = {}
    eligible: bool = True
    is_coordinator: bool = False
    epoch: int = 0
    """The highest that the member has seen."""
    key_ids: tuple[str, ...] = ()
    """Which signing keys it accepts."""
    driven_by: str = ""
    """The member whose application says that this one lives; "" for one that beats itself."""
    transient: bool = False
    """A client for a moment: its silence is no death, and nothing is left of it."""
    awaits: tuple[str, ...] = ()
    """Signals whose acknowledgment it waited for: cleanup finds them by this."""
    history: tuple[tuple[int, float], ...] = ()
    """Sequence and sender's time of the beats before, if the member keeps them."""
    failing: tuple[str, ...] = ()
    """What it does as coordinator and failed several times in a row: it leads without work."""


class MemberRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """The registration of an id. Its version changes only when the member registers, leaves
    or is declared dead, so that a write of one incarnation can be bound to it."""

    member_id: str
    incarnation: int
    status: str = "alive"
    """`alive`, `left` or `dead`."""
    hostname: str = ""
    pid: int = 0
    transient: bool = False


class Tombstone(Schema, frozen=True, kw_only=True):
    member_id: str
    incarnation: int
    death_id: str
    epoch: int
    died_at: float
    """Store time of the decision."""
    reason: str
    consecutive_warnings: int
    announced: bool = False
    cleaned: bool = False


class WarningRecord(Schema, frozen=True, kw_only=True):
    coordinator_id: str
    incarnation: int
    consecutive_warnings: int
    health: str
    first_at: float
    last_at: float
    last_sequence: int
    reason: str


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How members with `profile="auto"` beat. Limits are those of `profile`, the interval is
    that of `beats`; `target` differs from them in the middle of a change."""

    profile: str
    beats: str
    target: str
    since: float
    """Store time at which the last change began."""


class LeaseRecord(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """Who leads. `worker_id` is "" when nobody may act until the lease has passed."""

    epoch: int
    worker_id: str
    incarnation: int
    token: str
    elected_at: float
    renewals: int
    lease_ttl: float
    term_ends_at: float
    released: bool = False
    successor: str = ""
    standbys: tuple[str, ...] = ()
    """Live eligible members, smallest id first: the order in which they stand."""
    live: int = 0
    """How many members the coordinator saw alive, itself among them."""
    signing_key: str = ""
    """The key that everybody signs with, once all have it."""
    pace: Pace | None = None
    """With `profile="auto"`, the same for all."""
    recent: tuple[float, ...] = ()
    """Store times of the last elections, this one last."""
    min_term: float = 0.0
    """For so long from the election on nobody hands over unless somebody insists."""


class Signal(Schema, frozen=True, kw_only=True, omit_defaults=True):
    given: ClassVar[str] = "payload"
    signal_id: str
    correlation_id: str = ""
    sender_id: str
    sender_incarnation: int
    receiver_id: str
    type: str
    iteration: int = 0
    payload: Any = None
    epoch: int = 0
    """That of the coordinator that issued it; 0 for signals of members."""
    timestamp: float
    """Store time, as the sender knew it."""
    expires_at: float


class SignalAck(Schema, frozen=True, kw_only=True, omit_defaults=True):
    signal_id: str
    receiver_id: str
    sender_id: str
    iteration: int = 0
    received_at: float


class Delivered(Schema, frozen=True, kw_only=True):
    """The idempotency record of one signal and one receiver."""

    signal_id: str
    receiver_id: str
    outcome: str
    delivered_at: float


class WaitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller waits for, so that it can go on after a restart."""

    member_id: str
    correlation_id: str
    awaiting: tuple[str, ...] = ()
    signal_types: tuple[str, ...] = ()
    started_at: float
    deadline: float
    iteration: int = 0


class WaitStates(Schema, frozen=True, kw_only=True):
    waits: dict[str, WaitState] = {}


T = TypeVar("T", bound=Schema)
OnRefused = Callable[[str, str, str], None]
"""Kind of the record, its key, and why it is not believed."""


class Codec:
    """Writes and reads records; signs and verifies those kinds that are signed."""

    def __init__(self, keyring: Keyring | None, on_refused: OnRefused | None = None) -> None:
        self.keyring = keyring
        self.refused = 0
        self._on_refused = on_refused

    def encode(self, record: Schema, *, signed: bool = True, over: bytes | None = None) -> bytes:
        """`over` is the value that was read and believed, and of which this is a change: what a
        newer version wrote into it stays. `TypeError` or `ValueError` for what JSON does not
        have."""
        fields = msgspec.to_builtins(record)
        if over is not None:
            keep_unknown(type(record), fields, msgspec.json.decode(over))
        if record.given and (given := fields.get(record.given)) is not None:
            check_finite((given,))
        fields["v"] = SCHEMA
        fields.pop("signature", None)
        fields.pop("key_id", None)
        if signed and self.keyring is not None:
            return self.keyring.seal(type(record).__name__, fields)
        return msgspec.json.encode(fields)

    def decode(self, kind: type[T], value: bytes, *, signed: bool = True, key: str = "") -> T | str:
        """The record, or why it is refused; with its key that is told, too."""
        found, why = self._decoded(kind, value, signed)
        if isinstance(found, str):
            self.refused += 1
            if key and self._on_refused is not None:
                self._on_refused(kind.__name__, key, why or found)
        return found

    def _decoded(self, kind: type[T], value: bytes, signed: bool) -> tuple[T | str, str]:
        """The second says more about a refusal, for people."""
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
        """As this library writes it: read once."""
        try:
            record = _decoder(kind).decode(value)
        except msgspec.MsgspecError:
            return None
        if not keyring.is_sealed(kind.__name__, value, record.key_id, record.signature):
            return None
        check_schema(kind.__name__, record.v)
        return record

    def _unsealed(self, kind: type[T], value: bytes, keyring: Keyring) -> T | str:
        """In other bytes, or wrong."""
        named = msgspec.json.decode(value, type=dict[str, Any])
        check_schema(kind.__name__, named.get("v", SCHEMA))
        refusal = keyring.refusal(kind.__name__, named)
        return msgspec.convert(named, kind) if refusal is None else refusal

    def read(self, kind: type[T], value: bytes, *, signed: bool = True, key: str = "") -> T | None:
        """The record; None if it cannot be believed. One that has a key is logged, once."""
        found = self.decode(kind, value, signed=signed, key=key)
        return None if isinstance(found, str) else found

    def read_shared(self, kind: type[T], value: bytes, *, key: str = "") -> T | None:
        """The same, for a record that every member of the process reads, as the lease: the
        same bytes of the same key are verified once for all of them."""
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
_VERIFIED: dict[type[Schema], tuple[bytes, Schema]] = {}
"""The last one of a kind. Only what a signature was checked on."""


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _DECODERS.get(kind)
    if found is None:
        found = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return found


def check_finite(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"{value} is no number in JSON")
        elif isinstance(value, dict):
            check_finite(cast("dict[str, Any]", value).values())
        elif isinstance(value, list | tuple):
            check_finite(cast("list[Any]", value))


def check_schema(name: str, found: object) -> None:
    if isinstance(found, int) and found > SCHEMA:
        raise SchemaError(
            f"{name} has schema {found} and this version knows {SCHEMA}: upgrade this member"
        )


class SchemaError(CoordinationError, ValueError):
    """A record of a newer version; as good as absent."""
