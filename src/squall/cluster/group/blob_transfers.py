"""Pulls the blobs that clients and workers offer to a manager, and serves the manager's blobs."""

from __future__ import annotations

from collections.abc import Callable

from squall.api.errors import SquallError
from squall.cluster.ledger.interface import Blobs, Digest, TryLater
from squall.cluster.protocol.messages import BlobHeld, OfferBlob
from squall.cluster.protocol.submission import BUNDLE_MAX_BYTES
from squall.cluster.wire.blob_transfer import BlobFetcher, Holder, serve_blobs
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import BlobError, RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.tasks import TaskRunner
from squall.stats.attempt_record import AttemptRecord
from squall.stats.record_builder import decode_record

PULL_AGAIN_S = 0.3
"""When a transfer that broke off may be asked for again: it goes on where it was."""


class Transfers:
    """Pulls offered blobs over the offering node's link, and answers requests for blobs."""

    def __init__(self, blobs: Blobs, counters: WireCounters, tasks: TaskRunner) -> None:
        self.blobs = blobs
        self._fetcher = BlobFetcher(blobs, counters, tasks, blob_max_bytes=BUNDLE_MAX_BYTES)

    def register(self, handlers: Handlers) -> None:
        serve_blobs(handlers, self.blobs, self.blobs.own)
        handlers.on(OfferBlob, self._offered)

    async def pull(self, digest: str, size: int, holder: Holder) -> None:
        """Returns when the blob is durable on a quorum (R9).

        Raises BlobError, OSError, TryLater."""
        if not await self.blobs.has(Digest(digest)):
            await self._fetcher.fetch(digest, size, [holder])
        # An earlier transfer may have stored it here and broken off before a quorum had it.
        await self.blobs.ensure(Digest(digest))

    async def pull_for(
        self,
        digest: str,
        size: int,
        holder: Holder,
        *,
        full: str,
        answer: Callable[[SquallError], RemoteError],
    ) -> None:
        """`pull` for a request that names the blob: raises what answers the request. `full` begins
        the text when the disk takes nothing, `answer` translates an error of the log."""
        try:
            await self.pull(digest, size, holder)
        except BlobError as error:
            raise RemoteError(
                ErrorCode.RETRY_LATER, str(error), retry_after_s=PULL_AGAIN_S
            ) from None
        except OSError as error:
            text = f"{full}: {error.strerror or error}"
            raise RemoteError(ErrorCode.RETRY_LATER, text, retry_after_s=1.0) from None
        except SquallError as error:
            raise answer(error) from None

    async def record(self, digest: str) -> AttemptRecord | None:
        """Reads an attempt record; None if the blob is missing or cannot be decoded."""
        try:
            return decode_record(await self.blobs.get(Digest(digest)))
        except (KeyError, OSError, SquallError):
            return None

    async def _offered(self, message: OfferBlob, incoming: Incoming) -> BlobHeld:
        if message.size > BUNDLE_MAX_BYTES:
            raise RemoteError(
                ErrorCode.BAD_MESSAGE,
                f"a blob of {message.size:,} bytes; at most {BUNDLE_MAX_BYTES:,} are allowed",
            )
        try:
            await self.pull(message.blob, message.size, incoming.channel)
        except BlobError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        except TryLater as error:
            raise RemoteError(ErrorCode.RETRY_LATER, str(error), retry_after_s=1.0) from None
        except OSError as error:
            # The disk is full: the sender keeps the blob and offers it again.
            text = f"the manager cannot store the blob: {error.strerror or error}"
            raise RemoteError(ErrorCode.RETRY_LATER, text, retry_after_s=1.0) from None
        return BlobHeld(message.blob)
