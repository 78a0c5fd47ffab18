"""The records of a log in a store (slots, head, checkpoints), their keys and limits.

    head/<scope>                              the id of the log, and where reading can start
    log/<scope>/<log id>/<number>             a slot: entries that were written together
    checkpoint/<scope>/<log id>/<name>.<part> the state as of one entry, in parts

A slot is created once (`ABSENT`) and never replaced, so each number is decided once, even if
several agents believe that they lead. Only the head is replaced, and only if it still has the
version that was read. None of these records expires. This module only defines data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from squall.api.errors import ConfigError
from squall.cluster.ledger.interface import Digest, Fence, LedgerFailed
from squall.cluster.ledger.replica.types import Base, LogEntry
from squall.coordination.stores.interface import Capabilities, make_key
from squall.runtime.backoff import Backoff

FIRST = 1
"""Number of the first slot."""
MIB = 1 << 20
FORMAT = 1
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
References = Callable[[], Iterable[Digest]]
"""Returns the blobs that the state machine refers to now."""


class LeadCheck(Protocol):
    """The right to lead that an election gives, such as
    `squall.coordination.election.term.Term`."""

    @property
    def epoch(self) -> int:
        """The epoch of the election; it grows from one leader to the next."""
        ...

    @property
    def valid(self) -> bool:
        """False once the lease has ended by the local clock; sends no request."""
        ...


class StoreLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and intervals of a log. Leaders may use different values, except that `retain_s`
    of each must be at least twice `trust_s` of all."""

    pace_s: float = 0.0
    """Least time between the starts of two requests; S3 charges for each."""
    slot_bytes: Count = 512 * 1024
    """Size at which a slot is full; small enough not to delay other requests on the same
    connection."""
    slot_entries: Count = 1024
    max_command_bytes: Count = 256 * 1024
    max_waiting: Count = 8192
    unknown_after_s: Seconds = 5.0
    """After this long without an answer, the commands in a slot have an unknown outcome."""
    retry: Backoff = Backoff(0.25, factor=1.0)
    """Delay before a slot is sent again. It need not grow: only one leader retries at a time,
    and the store limits the rate of its clients itself."""
    head_check_interval_s: Seconds = 20.0
    """How often the head is read on a store without transactions, where a write does not check
    the slot before it."""
    checkpoint_slots: Count = 512
    """Most slots between two checkpoints, which a new leader must read; some seconds on S3."""
    checkpoint_bytes: Count = 8 * MIB
    """Bytes of slots after which a checkpoint is due, or half the size of the last checkpoint
    if that is more."""
    checkpoint_interval_s: Seconds = 300.0
    checkpoints_kept: Annotated[int, Meta(ge=1)] = 2
    part_bytes: Count = 4 * MIB
    """Bytes of a checkpoint or blob in one record; stores take at most 16 MiB."""
    trust_s: Seconds = 300.0
    """For this long after a check of the log, an absent slot certainly was never written."""
    retain_s: Seconds = 900.0
    """Records are deleted this long after the head declared them obsolete."""
    read_at_once: Count = 16
    apply_slice: Count = 128
    blob_max_bytes: Count = 256 * MIB
    blob_keep_s: Seconds = 3600.0
    collect_every_s: Seconds = 600.0
    """How often unreferenced blobs and leftover parts are collected; each time lists keys."""

    def __post_init__(self) -> None:
        if self.retain_s < 2.0 * self.trust_s:
            raise ConfigError(
                f"retain_s is {self.retain_s:g}: it must be at least twice trust_s "
                f"({self.trust_s:g}), else a slot that was deleted looks like one never written"
            )


S3_PACE_S = 0.25
BOUND_RETAIN_S = 60.0
"""Long enough for a reader to finish a checkpoint that has just become obsolete."""


def settings_for(capabilities: Capabilities) -> StoreLogSettings:
    """Returns settings for a kind of store. With transactions safety does not depend on
    retained slots, and memory is scarce (Redis); without them each request costs (S3)."""
    if capabilities.transactions:
        return StoreLogSettings(trust_s=BOUND_RETAIN_S / 2.0, retain_s=BOUND_RETAIN_S)
    return StoreLogSettings(pace_s=S3_PACE_S)


class LogSlot(msgspec.Struct, frozen=True, array_like=True):
    """Log entries that one leader wrote together."""

    writer: str
    """Unique to one opening of the log, so that a leader recognises its own slots."""
    fence: Fence
    entries: tuple[LogEntry, ...]
    format: int = FORMAT


class CheckpointRef(msgspec.Struct, frozen=True, array_like=True):
    """Names a checkpoint; its parts are `name.0`, `name.1` and so on."""

    name: str
    slot: int
    """The slot that holds `base.op`; replay continues there, after that entry."""
    base: Base
    fence: Fence
    parts: int
    size: int
    digest: bytes


class Head(msgspec.Struct, frozen=True):
    """The record that names the log and its checkpoints; each change replaces it."""

    id: str
    """Random name of the log; another id means another log."""
    first_slot: int = FIRST
    """All slots from here to the end of the log exist; earlier ones may be deleted."""
    swept: int = FIRST
    """All slots below this one have been deleted."""
    checkpoints: tuple[CheckpointRef, ...] = ()
    """Oldest first."""
    retired: tuple[CheckpointRef, ...] = ()
    """Checkpoints that are to be deleted."""
    format: int = FORMAT


class Keys:
    """The keys of the records of one log."""

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
_slot_decoder = msgspec.msgpack.Decoder(LogSlot)
_head_decoder = msgspec.msgpack.Decoder(Head)
_slices_decoder = msgspec.msgpack.Decoder(list[bytes])


def encode(record: LogSlot | Head | list[bytes]) -> bytes:
    return _encoder.encode(record)


def slot_of(key: str, value: bytes) -> LogSlot:
    return _decoded(key, value, _slot_decoder)


def head_of(key: str, value: bytes) -> Head:
    return _decoded(key, value, _head_decoder)


T = TypeVar("T", LogSlot, Head)


def _decoded(key: str, value: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        found = decoder.decode(value)
    except msgspec.DecodeError as error:
        raise LedgerFailed(f"{key} cannot be decoded: {error}") from None
    if found.format > FORMAT:
        raise LedgerFailed(f"{key} was written by a newer Squall (format {found.format})")
    return found


def parts_of(slices: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """Packs the slices of a state into records of about `part_bytes`."""
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
