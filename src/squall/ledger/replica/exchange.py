"""Messages between drivers beside the core's packets: checkpoints, blobs, digests.

None of them carries a promise: what they bring is checked by checksum, hash or quorum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from squall.ledger.replica.messages import Packet
from squall.ledger.replica.types import Base
from squall.runtime.interfaces import NodeId


class SnapshotAsk(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Of the checkpoint `op` (0: your newest), the part from `offset` on."""

    op: int
    offset: int


class SnapshotPart(msgspec.Struct, frozen=True, tag=2, array_like=True):
    base: Base
    offset: int
    total: int
    data: bytes


class BlobOffer(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """I hold it: take it, and say when you do."""

    digest: str
    size: int


class BlobHeld(msgspec.Struct, frozen=True, tag=4, array_like=True):
    digest: str
    storage: str


class BlobAsk(msgspec.Struct, frozen=True, tag=5, array_like=True):
    digest: str
    offset: int


class BlobPart(msgspec.Struct, frozen=True, tag=6, array_like=True):
    digest: str
    offset: int
    total: int
    """Negative: not here."""
    data: bytes


class StateDigest(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """Of the state after the commands up to `op`."""

    op: int
    storage: str
    digest: bytes


Message = (
    Packet | SnapshotAsk | SnapshotPart | BlobOffer | BlobHeld | BlobAsk | BlobPart | StateDigest
)

PART_BYTES = 48_000


class Transport(Protocol):
    """Best effort: a message may be lost, late, repeated; the sender's name is proven."""

    def send(self, to: NodeId, data: bytes) -> None: ...

    def listen(self, receive: Callable[[NodeId, bytes], None]) -> None: ...
