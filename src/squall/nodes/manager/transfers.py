"""Blobs that come to a manager: offered by a client or a worker, pulled over its link."""

from __future__ import annotations

from squall.api.errors import SquallError
from squall.ledger.interface import Blobs, Digest
from squall.nodes.messages import BlobHeld, OfferBlob
from squall.nodes.shelf import BlobShelf
from squall.nodes.submission import BUNDLE_MAX_BYTES
from squall.runtime.tasks import TaskRunner
from squall.stats.record import AttemptRecord
from squall.stats.record_builder import decode_record
from squall.wire.blobs import BlobFetcher, Holder, serve_blobs
from squall.wire.counters import WireCounters
from squall.wire.dispatch import Handlers, Incoming
from squall.wire.errors import BlobError, RemoteError
from squall.wire.messages import ErrorCode


class Transfers:
    """Fetches what is offered into the manager's own blobs, and serves them."""

    def __init__(self, blobs: Blobs, counters: WireCounters, tasks: TaskRunner) -> None:
        self.blobs = blobs
        self._shelf = BlobShelf(blobs)
        self._fetcher = BlobFetcher(self._shelf, counters, tasks, blob_max_bytes=BUNDLE_MAX_BYTES)

    def register(self, handlers: Handlers) -> None:
        serve_blobs(handlers, self._shelf)
        handlers.on(OfferBlob, self._offered)

    async def pull(self, digest: str, size: int, holder: Holder) -> None:
        """Returns when the blob is durable here; BlobError or OSError if it cannot be."""
        if not await self.blobs.has(Digest(digest)):
            await self._fetcher.fetch(digest, size, [holder])

    async def record(self, digest: str) -> AttemptRecord | None:
        """A record that is held; None if it is not, or cannot be read."""
        try:
            return decode_record(await self.blobs.get(Digest(digest)))
        except (KeyError, OSError, SquallError):
            return None

    async def _offered(self, message: OfferBlob, incoming: Incoming) -> BlobHeld:
        if message.size > BUNDLE_MAX_BYTES:
            raise RemoteError(
                ErrorCode.BAD_MESSAGE,
                f"{message.size} bytes are too large: at most {BUNDLE_MAX_BYTES} are taken",
            )
        try:
            await self.pull(message.blob, message.size, incoming.channel)
        except BlobError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        except OSError as error:
            # A full disk: the sender keeps it and asks again.
            text = f"the manager cannot store it: {error.strerror or error}"
            raise RemoteError(ErrorCode.RETRY_LATER, text, retry_after_s=1.0) from None
        return BlobHeld(message.blob)
