"""The blobs of a group: durable on a quorum before they are named.

`put` stores here, offers the blob to the members, and returns when a quorum (by storage)
holds it. Members pull what they lack in parts. A disk that takes no blob ends its member,
so that a primary without room leaves the lead to others. Before the members change, every blob that
is here is brought to a quorum of the new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from squall.ledger.blobs import BlobStore
from squall.ledger.interface import Digest, LedgerFailed
from squall.ledger.replica.exchange import (
    PART_BYTES,
    BlobAsk,
    BlobHeld,
    BlobOffer,
    BlobPart,
    Message,
)
from squall.ledger.replica.types import Member
from squall.ledger.settings import LedgerSettings
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.tasks import TaskRunner

if TYPE_CHECKING:
    from squall.ledger.replica.ledger import GroupLedger

OFFER_AGAIN_BEATS = 4
PART_WAIT_BEATS = 4
CHANGE_WAIT_S = 5.0
"""A change of members waits so long for the blobs, then is refused."""


class GroupBlobs:
    def __init__(
        self, ledger: GroupLedger, tasks: TaskRunner, runtime: Runtime, settings: LedgerSettings
    ) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self._clock = runtime.clock
        self._keep_ms = int(settings.blob_keep_s * 1000.0)
        self.store = BlobStore(
            runtime.disk,
            f"{settings.directory}/blobs",
            lambda: int(ledger.group_ms()),
            max_bytes=settings.blob_max_bytes,
            keep_ms=int(settings.blob_keep_s * 1000.0),
            fetches=settings.blob_fetches,
            fetch=self._fetch,
        )
        self.references: Callable[[], Iterable[Digest]] = tuple
        """The blobs that the state machine names."""
        self.next_members: tuple[Member, ...] = ()
        """Of a change under way: what is put meanwhile must be there too."""
        self._put: dict[Digest, int] = {}
        """Put by this boot, and when: a command may name them later."""
        self._holders: dict[str, set[str]] = {}
        self._changed = asyncio.Event()
        self._parts: dict[tuple[NodeId, str, int], asyncio.Future[BlobPart]] = {}
        self._pulling: set[str] = set()

    async def open(self) -> None:
        await self.store.open()

    async def put(self, data: bytes) -> Digest:
        try:
            digest = await self.store.put(data)
        except OSError as error:
            if self._ledger.replica.core.others():
                # Another member has room: it must not wait for this one's disk.
                self._ledger.fail(_no_room(error))
            raise
        config = self._ledger.replica.core.config
        members = config.members if config is not None else (self._ledger.member,)
        self._put[digest] = int(self._ledger.group_ms())
        await self._spread(digest, len(data), members, None)
        if self.next_members:
            await self._spread(digest, len(data), self.next_members, None)
        return digest

    async def get(self, digest: Digest) -> bytes:
        return await self.store.get(digest)

    async def has(self, digest: Digest) -> bool:
        return await self.store.has(digest)

    async def missing_on(self, members: tuple[Member, ...]) -> int:
        """Brings every blob that is referenced, or may be named by a command soon, to a quorum
        of these; how many are not there yet."""
        missing = 0
        for digest in sorted({*self.references(), *self._put}):
            try:
                data = await self.store.get(digest)
            except KeyError:
                missing += digest not in self._put
                self._put.pop(digest, None)
                continue
            # A holder may have restarted with an empty disk: ask again.
            self._holders.pop(digest, None)
            if not await self._spread(digest, len(data), members, CHANGE_WAIT_S):
                missing += 1
        return missing

    def members_changed(self) -> None:
        self._changed.set()

    async def collect(self) -> int:
        core = self._ledger.replica.core
        if int(self._ledger.applied) < core.commit:
            return 0
        gone = await self.store.collect(self.references())
        old = int(self._ledger.group_ms()) - self._keep_ms
        for digest in [known for known, since in self._put.items() if since < old]:
            del self._put[digest]
            self._holders.pop(digest, None)
        return gone

    async def _spread(
        self, digest: Digest, size: int, members: tuple[Member, ...], within_s: float | None
    ) -> bool:
        """Until a quorum of `members` holds it; False when that takes too long."""
        me = self._ledger.member
        began = self._clock.now()
        holders = self._holders.setdefault(digest, set())
        holders.add(me.storage)
        quorum = len(members) // 2 + 1
        offered = float("-inf")
        beats_s = OFFER_AGAIN_BEATS * self._ledger.replica.core.timers.heartbeat_s
        while sum(member.storage in holders for member in members) < quorum:
            if within_s is not None and self._clock.now() - began > within_s:
                return False
            others = tuple(
                m.node for m in members if m.node != me.node and m.storage not in holders
            )
            if self._clock.now() - offered >= beats_s:
                offered = self._clock.now()
                self._ledger.tell(others, BlobOffer(digest, size))
            await self._wait(offered + beats_s - self._clock.now())
        return True

    async def _wait(self, seconds: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._changed.wait()
        except TimeoutError:
            pass

    # Messages.

    def handle(self, sender: NodeId, message: Message) -> None:
        match message:
            case BlobOffer():
                if message.digest not in self._pulling:
                    self._pulling.add(message.digest)
                    self._tasks.start("blob", self._pull(sender, message.digest), group="ledger")
            case BlobHeld():
                self._holders.setdefault(message.digest, set()).add(message.storage)
                self._changed.set()
            case BlobAsk():
                self._tasks.start("blob part", self._give(sender, message), group="ledger")
            case BlobPart():
                future = self._parts.pop((sender, message.digest, message.offset), None)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                pass

    async def _pull(self, sender: NodeId, digest: str) -> None:
        try:
            if not await self.store.has(Digest(digest)):
                data = await self._from(sender, digest)
                if await self.store.put(data) != digest:
                    return
            self._ledger.tell((sender,), BlobHeld(digest, self._ledger.member.storage))
        except (KeyError, TimeoutError):
            pass
        except OSError as error:
            self._ledger.fail(_no_room(error))
        finally:
            self._pulling.discard(digest)

    async def _give(self, sender: NodeId, ask: BlobAsk) -> None:
        data = None
        if await self.store.has(Digest(ask.digest)):
            try:
                data = await self.store.get(Digest(ask.digest))
            except KeyError:
                data = None
        if data is None:
            part = BlobPart(ask.digest, ask.offset, -1, b"")
        else:
            piece = data[ask.offset : ask.offset + PART_BYTES]
            part = BlobPart(ask.digest, ask.offset, len(data), piece)
        self._ledger.tell((sender,), part)

    async def _fetch(self, digest: Digest) -> bytes:
        for node in self._ledger.replica.core.others():
            try:
                return await self._from(node, digest)
            except (KeyError, TimeoutError):
                continue
        raise KeyError(digest)

    async def _from(self, node: NodeId, digest: str) -> bytes:
        """All of it from one holder. Raises KeyError, TimeoutError."""
        data = bytearray()
        wait_s = PART_WAIT_BEATS * self._ledger.replica.core.timers.heartbeat_s
        while True:
            future: asyncio.Future[BlobPart] = asyncio.get_running_loop().create_future()
            self._parts[(node, digest, len(data))] = future
            self._ledger.tell((node,), BlobAsk(digest, len(data)))
            async with asyncio.timeout(wait_s):
                part = await future
            if part.total < 0:
                raise KeyError(digest)
            data += part.data
            if len(data) >= part.total:
                return bytes(data)
            if not part.data:
                raise KeyError(digest)


def _no_room(error: OSError) -> LedgerFailed:
    return LedgerFailed(f"cannot store a blob: {error.strerror or error}")
