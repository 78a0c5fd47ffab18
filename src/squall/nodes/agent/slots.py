"""What a log in a store is made of: slots, the head, checkpoints; their keys and limits.

    head/<scope>                              which log there is, and where it can be read from
    log/<scope>/<log id>/<number>             a slot: entries that were written together
    checkpoint/<scope>/<log id>/<name>.<part> the state as of one entry, in parts

A slot is created once (`ABSENT`) and never replaced, so that each number is decided once,
whoever believes to lead. Only the head is replaced, always on the version that was read.
None of these records expires. Nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from squall.api.errors import ConfigError
from squall.coordination.stores.interface import Capabilities, make_key
from squall.ledger.interface import Digest, Fence, LedgerFailed
from squall.ledger.replica.types import Base, LogEntry

FIRST = 1
"""Number of the first slot."""
MIB = 1 << 20
FORMAT = 1
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
References = Callable[[], Iterable[Digest]]
"""The blobs that the state machine refers to now."""


class LeadCheck(Protocol):
    """Leave to lead, from an election; `squall.coordination.terms.Term` is one."""

    @property
    def epoch(self) -> int:
        """Of the election; it grows from one leader to the next."""
        ...

    @property
    def valid(self) -> bool:
        """False from the local end of the lease on, without asking anybody."""
        ...


class StoreLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """None of them needs to be equal among leaders, but `retain_s` of each must be at
    least twice `trust_s` of all."""

    pace_s: float = 0.0
    """The least time between the begins of two requests of the log: on S3 they cost."""
    slot_bytes: Count = 512 * 1024
    """A slot is closed when it holds so much: below what delays others on one connection."""
    slot_entries: Count = 1024
    max_command_bytes: Count = 256 * 1024
    max_waiting: Count = 8192
    unknown_after_s: Seconds = 5.0
    """A command whose slot got no answer for so long has an unknown outcome."""
    retry_s: Seconds = 0.25
    """Between two tries to learn what became of a slot."""
    head_look_s: Seconds = 20.0
    """How often the head is looked at where slots cannot be bound to the one before."""
    checkpoint_slots: Count = 512
    """A new leader reads so many at most; on S3 some seconds."""
    checkpoint_bytes: Count = 8 * MIB
    """Of slots since the last checkpoint; half the size of the state when that is more."""
    checkpoint_interval_s: Seconds = 300.0
    checkpoints_kept: Annotated[int, Meta(ge=1)] = 2
    part_bytes: Count = 4 * MIB
    """Of a checkpoint or blob in one record; the limit of stores is 16 MiB."""
    trust_s: Seconds = 300.0
    """Absent means "never written" for so long after the log was last seen to be whole."""
    retain_s: Seconds = 900.0
    """What is obsolete is deleted so long after the head said so."""
    read_at_once: Count = 16
    apply_slice: Count = 128
    blob_max_bytes: Count = 256 * MIB
    blob_keep_s: Seconds = 3600.0
    collect_every_s: Seconds = 600.0
    """Blobs and leftovers are looked for so often; each look lists keys."""

    def __post_init__(self) -> None:
        if self.retain_s < 2.0 * self.trust_s:
            raise ConfigError(
                f"retain_s is {self.retain_s:g}: it must be at least twice trust_s "
                f"({self.trust_s:g}), else a slot that was deleted looks like one never written"
            )


S3_PACE_S = 0.25
BOUND_RETAIN_S = 60.0
"""Long enough for one that reads a checkpoint while it becomes obsolete."""


def settings_for(capabilities: Capabilities) -> StoreLogSettings:
    """What suits a store: with transactions safety does not rest on what is retained, and
    memory is dear; without them each request costs."""
    if capabilities.transactions:
        return StoreLogSettings(trust_s=BOUND_RETAIN_S / 2.0, retain_s=BOUND_RETAIN_S)
    return StoreLogSettings(pace_s=S3_PACE_S)


class Slot(msgspec.Struct, frozen=True, array_like=True):
    writer: str
    """Unique to one opening of the log: by it a leader knows its own slots."""
    fence: Fence
    entries: tuple[LogEntry, ...]
    format: int = FORMAT


class CheckpointRef(msgspec.Struct, frozen=True, array_like=True):
    """Names a checkpoint; its parts are `name.0`, `name.1` and so on."""

    name: str
    slot: int
    """The slot that holds `base.op`: reading goes on there, after that entry."""
    base: Base
    fence: Fence
    parts: int
    size: int
    digest: bytes


class Head(msgspec.Struct, frozen=True):
    id: str
    """Of the log; random. Another id is another log."""
    first_slot: int = FIRST
    """All slots from here to the end of the log exist. Those below may be deleted."""
    swept: int = FIRST
    """All slots below this are deleted."""
    checkpoints: tuple[CheckpointRef, ...] = ()
    """Oldest first."""
    retired: tuple[CheckpointRef, ...] = ()
    """To be deleted."""
    format: int = FORMAT


class Keys:
    """Of one log."""

    def __init__(self, scope: str, log_id: str) -> None:
        self.scope = scope
        self.log_id = log_id
        self.head = head_key(scope)
        self._slots = make_key("log", scope, log_id)
        self.checkpoints = make_key("checkpoint", scope, log_id)

    def slot(self, number: int) -> str:
        return f"{self._slots}/{number:012d}"

    def part(self, name: str, number: int) -> str:
        return f"{self.checkpoints}/{name}.{number}"


def head_key(scope: str) -> str:
    return make_key("head", scope)


_encoder = msgspec.msgpack.Encoder()
_slot_decoder = msgspec.msgpack.Decoder(Slot)
_head_decoder = msgspec.msgpack.Decoder(Head)
_slices_decoder = msgspec.msgpack.Decoder(list[bytes])


def encode(record: Slot | Head | list[bytes]) -> bytes:
    return _encoder.encode(record)


def slot_of(key: str, value: bytes) -> Slot:
    return _decoded(key, value, _slot_decoder)


def head_of(key: str, value: bytes) -> Head:
    return _decoded(key, value, _head_decoder)


T = TypeVar("T", Slot, Head)


def _decoded(key: str, value: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        found = decoder.decode(value)
    except msgspec.DecodeError as error:
        raise LedgerFailed(f"{key} cannot be understood: {error}") from None
    if found.format > FORMAT:
        raise LedgerFailed(f"{key} was written by a newer Squall (format {found.format})")
    return found


def parts_of(slices: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The slices of a state in records of about `part_bytes`."""
    kept: list[bytes] = []
    size = 0
    for piece in slices:
        if kept and size + len(piece) > part_bytes:
            yield encode(kept)
            kept, size = [], 0
        kept.append(piece)
        size += len(piece)
    if kept:
        yield encode(kept)


def slices_of(part: bytes) -> list[bytes]:
    return _slices_decoder.decode(part)
