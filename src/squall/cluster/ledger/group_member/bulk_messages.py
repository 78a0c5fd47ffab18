"""Messages between ledgers besides the core's packets: checkpoints, blob offers, digests.

None of them carries a promise (R11), so none waits for the disk: the receiver checks their
content by checksum, hash or quorum. Tags 5 and 6 belonged to an earlier blob transfer and must
not be reused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from squall.cluster.ledger.replica.messages import Packet
from squall.cluster.ledger.replica.types import Base
from squall.cluster.wire.blob_transfer import Holder
from squall.runtime.interfaces import NodeId


class SnapshotAsk(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Requests the part at `offset` of the checkpoint at `op`, or of the newest one if 0."""

    op: int
    offset: int


class SnapshotPart(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """One part of an encoded checkpoint of `total` bytes."""

    base: Base
    offset: int
    total: int
    data: bytes


class BlobOffer(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Offers a blob: the receiver fetches it and answers `BlobHeld` once it is durable."""

    digest: str
    size: int
    ask: str = ""
    """Names the question; the answer repeats it."""


class BlobHeld(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Confirms that the blob is durable on the sender's storage, which keeps it an hour more."""

    digest: str
    storage: str
    ask: str = ""


class StateDigest(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """The digest of the sender's state after the commands up to `op`."""

    op: int
    storage: str
    digest: bytes


Message = Packet | SnapshotAsk | SnapshotPart | BlobOffer | BlobHeld | StateDigest

PART_BYTES = 48_000


class Transport(Protocol):
    """Sends messages with best effort: they may be lost, late or repeated, but the sender's
    name is authenticated."""

    def send(self, to: NodeId, data: bytes) -> None: ...

    def listen(self, receive: Callable[[NodeId, bytes], None]) -> None: ...

    def holder(self, node: NodeId) -> Holder:
        """The source from which to fetch another member's blobs."""
        ...
