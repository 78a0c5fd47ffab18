"""The blobs of a group: durable on a quorum before a command names them (R9).

`put` stores a blob on this member, offers it to the others, and returns when a quorum holds
it, counted by storage id. `ensure` does the same for a blob that a member already has, for
example one that a former boot received and did not spread. Each call asks all members again,
because a member may have lost or deleted a blob since it last confirmed it. Members pull the
blobs they lack (`wire.blob_transfer`). A member whose disk cannot store a blob stops, so that a
primary without room leaves the lead to others. Before the members change, this member brings its
blobs to a quorum of the new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from squall.cluster.ledger.blobs.on_disk import BlobStore
from squall.cluster.ledger.group_member.bulk_messages import (
    BlobHeld,
    BlobOffer,
    Message,
    Transport,
)
from squall.cluster.ledger.interface import Digest, LedgerFailed, NotPrimary, TryLater
from squall.cluster.ledger.replica.types import Member, Status
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.wire.blob_transfer import BlobFetcher
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import WireError
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.tasks import TaskRunner

if TYPE_CHECKING:
    from squall.cluster.ledger.group_member.group_ledger import GroupLedger

OFFER_AGAIN_BEATS = 4
CHUNK_BEATS = 40
"""A chunk that takes longer is requested again, at the next offer or from another member."""
ENSURE_WAIT_S = 30.0
"""`ensure` gives up after this long without a quorum; the members that pull the blob go on."""
CHANGE_WAIT_S = 5.0
"""The primary refuses a change of members if a blob takes longer to reach the new members."""


class GroupBlobs:
    """Stores blobs on this member and spreads them over the group; see `interface.Blobs`."""

    def __init__(
        self,
        ledger: GroupLedger,
        tasks: TaskRunner,
        runtime: Runtime,
        settings: LedgerSettings,
        transport: Transport | None,
    ) -> None:
        self._ledger = ledger
        self._transport = transport
        self._tasks = tasks
        self._clock = runtime.clock
        self._keep_ms = int(settings.blob_keep_s * 1000.0)
        # The blobs on this member's disk.
        self.own = BlobStore(
            runtime.disk,
            f"{settings.directory}/blobs",
            lambda: int(ledger.group_ms()),
            max_bytes=settings.blob_max_bytes,
            keep_ms=int(settings.blob_keep_s * 1000.0),
        )
        # Returns the blobs that the state machine references.
        self.references: Callable[[], Iterable[Digest]] = tuple
        # The members after a change that is under way. A blob put meanwhile must reach a quorum
        # of them too.
        self.next_members: tuple[Member, ...] = ()
        self._fetcher = BlobFetcher(
            self.own,
            WireCounters(),
            tasks,
            blob_max_bytes=settings.blob_max_bytes,
            chunk_timeout_s=CHUNK_BEATS * ledger.replica.core.timers.heartbeat_s,
            own=True,
        )
        # The blobs put by this boot, with their group time: a command may name them soon.
        self._put: dict[Digest, int] = {}
        # By open question: the blob, and the storage ids that confirmed it.
        self._asks: dict[str, tuple[Digest, set[str]]] = {}
        self._asked = 0
        self._boot = runtime.boot
        self._changed = asyncio.Event()
        # By blob that is being pulled: the questions to answer once it is durable.
        self._pulling: dict[str, set[tuple[NodeId, str]]] = {}

    async def open(self) -> None:
        await self.own.open()

    async def put(self, data: bytes) -> Digest:
        with self._room():
            digest = await self.own.put(data)
        await self._spread_new(digest, len(data))
        return digest

    async def store(self, blob: str, content: bytes) -> None:
        with self._room():
            await self.own.store(blob, content)
        await self._spread_new(Digest(blob), len(content))

    async def get(self, digest: Digest) -> bytes:
        try:
            return await self.own.get(digest)
        except KeyError:
            await self._fetch(digest)
            return await self.own.get(digest)

    async def has(self, digest: Digest) -> bool:
        return await self.own.has(digest)

    async def ensure(self, digest: Digest) -> bool:
        size = await self.size(digest)
        if size is None:
            return False
        if not await self._spread_new(digest, size, ENSURE_WAIT_S):
            text = f"blob {digest[:12]} is not on a quorum of the members"
            raise TryLater(self._ledger.member.node, text)
        return True

    async def size(self, blob: str) -> int | None:
        """The blob's size, after fetching the blob if this member lacks it; None if no member
        has it."""
        size = await self.own.size(blob)
        if size is not None:
            return size
        try:
            await self._fetch(Digest(blob))
        except KeyError:
            return None
        return await self.own.size(blob)

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        return await self.own.read(blob, offset, length)

    @contextmanager
    def _room(self) -> Generator[None]:
        """Stops the ledger on a disk error if other members can lead; then raises the error."""
        try:
            yield
        except OSError as error:
            if self._ledger.replica.core.others():
                self._ledger.fail(_no_room(error))
            raise

    async def _spread_new(self, digest: Digest, size: int, within_s: float | None = None) -> bool:
        config = self._ledger.replica.core.config
        members = config.members if config is not None else (self._ledger.member,)
        self._put[digest] = int(self._ledger.group_ms())
        done = await self._spread(digest, size, members, within_s)
        if done and self.next_members:
            done = await self._spread(digest, size, self.next_members, within_s)
        return done

    async def missing_on(self, members: tuple[Member, ...]) -> int:
        """Brings every blob that is referenced, or that a command may name soon, to a quorum
        of `members`; returns how many did not reach one."""
        missing = 0
        for digest in sorted({*self.references(), *self._put}):
            size = await self.size(digest)
            if size is None:
                missing += digest not in self._put
                self._put.pop(digest, None)
                continue
            if not await self._spread(digest, size, members, CHANGE_WAIT_S):
                missing += 1
        return missing

    def members_changed(self) -> None:
        """An epoch has begun: a change of members that was under way is over."""
        self.next_members = ()
        self._changed.set()

    async def collect(self) -> int:
        if not await self.may_collect():
            return 0
        gone = await self.own.collect(self.references())
        old = int(self._ledger.group_ms()) - self._keep_ms
        for digest in [known for known, since in self._put.items() if since < old]:
            del self._put[digest]
        return gone

    async def may_collect(self) -> bool:
        """Whether the state is recent enough to tell what is unreferenced (R9): a primary that was
        just heard has named no commit number above what is applied here. A member that is cut off
        must keep everything, because any command since then may name any blob."""
        core = self._ledger.replica.core
        if core.leading:
            try:
                await self._ledger.confirm()
            except (NotPrimary, LedgerFailed):
                return False
        elif core.status is not Status.NORMAL or not core.hears_primary():
            return False
        return int(self._ledger.applied) >= max(core.commit, core.heard_commit)

    async def _spread(
        self, digest: Digest, size: int, members: tuple[Member, ...], within_s: float | None
    ) -> bool:
        """Offers the blob until a quorum of `members` holds it; False after `within_s`."""
        self._asked += 1
        # The boot makes the name unique: an answer to a former boot may still be under way.
        ask = f"{self._boot}.{self._asked}"
        holders: set[str] = {self._ledger.member.storage}
        self._asks[ask] = (digest, holders)
        try:
            return await self._offer(BlobOffer(digest, size, ask), members, holders, within_s)
        finally:
            del self._asks[ask]

    async def _offer(
        self,
        offer: BlobOffer,
        members: tuple[Member, ...],
        holders: set[str],
        within_s: float | None,
    ) -> bool:
        began = self._clock.now()
        quorum = len(members) // 2 + 1
        offered = float("-inf")
        beats_s = OFFER_AGAIN_BEATS * self._ledger.replica.core.timers.heartbeat_s
        while sum(member.storage in holders for member in members) < quorum:
            if within_s is not None and self._clock.now() - began > within_s:
                return False
            others = tuple(
                member.node
                for member in members
                if member.node != self._ledger.member.node and member.storage not in holders
            )
            if self._clock.now() - offered >= beats_s:
                offered = self._clock.now()
                self._ledger.send_message(others, offer)
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
                asks = self._pulling.get(message.digest)
                if asks is not None:
                    asks.add((sender, message.ask))
                    return
                self._pulling[message.digest] = {(sender, message.ask)}
                self._tasks.start("blob", self._pull(sender, message), group="ledger")
            case BlobHeld():
                digest, holders = self._asks.get(message.ask, (None, set[str]()))
                if digest == message.digest:
                    holders.add(message.storage)
                    self._changed.set()
            case _:
                pass

    async def _pull(self, sender: NodeId, offer: BlobOffer) -> None:
        """Fetches an offered blob and confirms it once it is durable. The next offer resumes a
        fetch that failed."""
        asks: set[tuple[NodeId, str]] = set()
        try:
            # `size` looks at the file: the answer must not rest on what this boot remembers.
            if await self.own.size(offer.digest) is None and self._transport is not None:
                holder = self._transport.holder(sender)
                await self._fetcher.fetch(offer.digest, offer.size, [holder])
            asks = self._pulling[offer.digest]
        except WireError:
            pass
        except OSError as error:
            self._ledger.fail(_no_room(error))
        finally:
            del self._pulling[offer.digest]
        for node, ask in sorted(asks):
            held = BlobHeld(offer.digest, self._ledger.member.storage, ask)
            self._ledger.send_message((node,), held)

    async def _fetch(self, digest: Digest) -> None:
        """Fetches the blob from any other member. Raises KeyError if none provides it."""
        for node in self._ledger.replica.core.others():
            if self._transport is None:
                break
            holder = self._transport.holder(node)
            try:
                size = await self._fetcher.size(digest, holder)
                await self._fetcher.fetch(digest, size, [holder])
            except WireError:
                continue
            return
        raise KeyError(digest)


def _no_room(error: OSError) -> LedgerFailed:
    return LedgerFailed(f"cannot store a blob: {error.strerror or error}")
