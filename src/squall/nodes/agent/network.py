"""The runtime's network over a store: nobody needs to reach anybody but the store.

    dial("leader") ─► resolve ─► OPEN ─► mail of the leader ─► accept ─► ACCEPT ─► our mail
    connection.send ─► lane of the peer ─► one letter at a time ─► its inbox
    our inbox ─► one reading task ─► parcels ─► connections

A process has one mailbox, named anew at every boot, and one task that reads it; all its
connections share both. Each connection is an ordered byte stream (`network_connection`),
what leaves for one mailbox is gathered (`network_lane`), and how letters lie in a store is
in `network_post` and `network_records`. What a process sends to itself stays in it.

A store that does not answer is waited for; after `pace.give_up_s` all connections end with
an error. A store that lost letters is noticed by the numbers of the parcels: such a
connection is reset. Who is dead is for the keep-alive of the wire to find out, or for
whoever knows better and calls `abandon`.

It must never hand on bytes twice or out of order, nor touch anything of the store but mail.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from squall.coordination.stores.errors import CoordinationError
from squall.coordination.stores.interface import IDENTIFIER, Store, make_key
from squall.nodes.agent.network_connection import State, StoreConnection
from squall.nodes.agent.network_lane import GROUP, Lane
from squall.nodes.agent.network_post import NetworkCounters, Post, StreamPost
from squall.nodes.agent.network_records import RecordPost
from squall.nodes.agent.pace import Pace
from squall.nodes.agent.parcels import Kind, Letter, Parcel, decode_letter, encode_letter
from squall.runtime.interfaces import (
    Address,
    Clock,
    Connection,
    DatagramHandler,
    DatagramSocket,
    Listener,
    StreamHandler,
    TLSContext,
)
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner, TaskToken

LEADER = "leader"
"""The one name that is no mailbox: `resolve` says whose it is at the moment."""
NAME_MAX = 96
KNOWN_MAX = 10_000
CLOSE_POLL_S = 0.01

Resolve = Callable[[str], Awaitable[str]]
"""The mailbox of the present coordinator; `ConnectionError` if there is none."""


def mailbox_name(node: str, boot: str) -> str:
    """Unique per boot, of the characters that keys allow."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "-", node)[:40] or "node"
    digest = hashlib.sha256(f"{node}\n{boot}".encode()).hexdigest()
    return f"{readable}-{digest[:20]}"


class StoreNetwork:
    """See `runtime.interfaces.Network`. `close` ends everything that it started."""

    def __init__(
        self,
        store: Store,
        *,
        own: str,
        clock: Clock,
        random: random.Random,
        tasks: TaskRunner,
        pace: Pace,
        resolve: Resolve,
        log: Log | None = None,
    ) -> None:
        if len(make_key(own)) > NAME_MAX or own == LEADER:
            raise ValueError(f"{own!r} cannot be the name of a mailbox: see mailbox_name")
        self.own = own
        self.counters = NetworkCounters()
        self._store = store
        self._clock = clock
        self._random = random
        self._tasks = tasks
        self._pace = pace
        self._resolve = resolve
        self._log = log or Log(MemorySink(), clock)
        layout = StreamPost if store.capabilities.transactions else RecordPost
        self._post: Post = layout(
            store, own=own, clock=clock, tasks=tasks, pace=pace, counters=self.counters
        )
        self._lanes: dict[str, Lane] = {}
        self._dialled: dict[int, StoreConnection] = {}
        self._accepted: dict[tuple[str, int], StoreConnection] = {}
        self._opened: OrderedDict[str, int] = OrderedDict()
        """By dialler: the newest number that was opened; an older OPEN is a repeat."""
        self._listener: StoreListener | None = None
        self._letters = 0
        self._dials = 0
        self._reading: TaskToken | None = None
        self._wanted = asyncio.Event()
        self._closed = False

    @property
    def open_count(self) -> int:
        """Connections and listeners that are open."""
        return len(self._dialled) + len(self._accepted) + (self._listener is not None)

    # What the runtime's network can do.

    async def listen(
        self,
        address: Address,
        accept: Callable[[], StreamHandler],
        *,
        tls: TLSContext | None = None,
    ) -> Listener:
        if address[0] != self.own:
            raise OSError(f"{address[0]} is not the mailbox of this process, {self.own}")
        if self._listener is not None:
            raise OSError(f"somebody listens at {self.own} already")
        self._check_open()
        self._listener = StoreListener(self, accept)
        self._read_mail()
        return self._listener

    async def dial(
        self,
        address: Address,
        handler: StreamHandler,
        *,
        timeout_s: float,
        tls: TLSContext | None = None,
    ) -> Connection:
        self._check_open()
        name = address[0]
        connection: StoreConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._open(await self._mailbox_of(name))
                if connection.accepted is not None:
                    await connection.accepted
        except TimeoutError as error:
            self._forsake(connection)
            raise TimeoutError(f"{name} did not answer in {timeout_s:g} s") from error
        except BaseException:
            self._forsake(connection)
            raise
        if connection.state is State.OVER:
            raise ConnectionResetError("the peer closed while it was dialled")
        connection.begin(handler)
        return connection

    async def bind_datagrams(self, address: Address, handler: DatagramHandler) -> DatagramSocket:
        raise OSError("there are no datagrams in a store")

    # What only this network can do.

    def abandon(self, mailbox: str) -> int:
        """Resets all connections that were dialled to it, because it is known to be dead or
        deposed. Who is there may still have dialled us: those stay."""
        error = ConnectionResetError(f"{mailbox} was given up")
        lane = self._lanes.get(mailbox)
        ended = [one for one in lane.connections if one.number > 0] if lane is not None else []
        for connection in ended:
            connection.fail(error)
        return len(ended)

    async def close(self) -> None:
        """Aborts everything, tells handlers and, if the store answers soon, the peers."""
        if self._closed:
            return
        self._closed = True
        self._listener = None
        for connection in self._connections():
            connection.fail(ConnectionAbortedError("this network was closed"))
        until = self._clock.now() + self._pace.close_s
        while not all(lane.is_idle for lane in self._lanes.values()):
            if self._clock.now() >= until:
                break
            await self._clock.sleep(CLOSE_POLL_S)
        for lane in list(self._lanes.values()):
            await lane.stop()
        if self._reading is not None:
            self._tasks.cancel(self._reading)
            await self._tasks.stopped(self._reading)
        await self._post.close()

    # What connections and the listener tell.

    def ready(self, connection: StoreConnection) -> None:
        self._lane(connection.peer[0]).ready(connection)

    def over(self, connection: StoreConnection, error: Exception | None, tell: bool) -> None:
        number, peer = connection.number, connection.peer[0]
        self.counters.resets += error is not None
        if number > 0:
            self._dialled.pop(number, None)
        else:
            self._accepted.pop((peer, -number), None)
        lane = self._lane(peer)
        lane.forget(connection)
        if tell and connection.greeted:
            lane.say(number, Kind.RESET)
        elif lane.is_idle:
            self._idle(lane)

    def stopped_listening(self, listener: StoreListener) -> None:
        if self._listener is listener:
            self._listener = None

    # Dialling.

    async def _mailbox_of(self, name: str) -> str:
        try:
            mailbox = await self._resolve(name) if name == LEADER else name
        except CoordinationError as error:
            raise ConnectionError(f"who leads is not known: {error}") from error
        if IDENTIFIER.fullmatch(mailbox) is None:
            raise OSError(f"{mailbox!r} is not the name of a mailbox")
        return mailbox

    def _open(self, peer: str) -> StoreConnection:
        self._dials += 1
        connection = self._connection(self._dials, peer)
        connection.accepted = asyncio.get_running_loop().create_future()
        self._dialled[self._dials] = connection
        connection.greet(Kind.OPEN)
        self._read_mail()
        return connection

    def _forsake(self, connection: StoreConnection | None) -> None:
        if connection is None:
            return
        accepted = connection.accepted
        if accepted is not None and accepted.done() and not accepted.cancelled():
            accepted.exception()
        connection.accepted = None
        connection.abort_later()

    def _connection(self, number: int, peer: str) -> StoreConnection:
        connection = StoreConnection(self, number, self.own, peer, linger_s=self._pace.give_up_s)
        self._lane(peer).connections[connection] = None
        return connection

    def _connections(self) -> list[StoreConnection]:
        return [*self._dialled.values(), *self._accepted.values()]

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("this network was closed")

    # Sending.

    def _lane(self, peer: str) -> Lane:
        lane = self._lanes.get(peer)
        if lane is None:
            is_own = peer == self.own
            lane = self._lanes[peer] = Lane(
                peer,
                ship=self._ship_home if is_own else self._ship,
                name_letter=self._name_letter,
                clock=self._clock,
                tasks=self._tasks,
                pace=msgspec.structs.replace(self._pace, flush_s=0.0) if is_own else self._pace,
                on_idle=self._idle,
            )
        return lane

    def _idle(self, lane: Lane) -> None:
        if lane.is_idle and not lane.connections:
            self._lanes.pop(lane.peer, None)

    def _name_letter(self) -> str:
        self._letters += 1
        return str(self._letters)

    async def _ship(self, peer: str, letter: str, parcels: list[Parcel]) -> None:
        content = encode_letter(self.own, parcels)
        await self._post.append(peer, letter, content)
        self.counters.letters_out += 1
        self.counters.bytes_out += len(content)
        self._post.expect()

    async def _ship_home(self, peer: str, letter: str, parcels: list[Parcel]) -> None:
        """In a turn of its own, as if it had been away."""
        await asyncio.sleep(0)
        self._arrived(Letter(0, self.own, parcels))

    # Reading.

    def _read_mail(self) -> None:
        self._wanted.set()
        self._post.expect()
        if self._reading is None:
            self._reading = self._tasks.start(
                "mail", self._read(), group=GROUP, essential=True, on_error=self._deaf
            )

    def _deaf(self, error: Exception) -> None:
        self._give_up(ConnectionError(f"reading of mail failed: {error}"))

    async def _read(self) -> None:
        pace = self._pace
        lost_since: float | None = None
        pause_s = pace.retry_s
        while True:
            if not self.open_count:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._post.wait()
                contents = await self._post.read(
                    self._senders(), listens=self._listener is not None
                )
            except CoordinationError as error:
                if lost_since is None:
                    lost_since = self._clock.now()
                    self.counters.outages += 1
                    self._log.warning("store_lost", store=self._store.url, error=str(error))
                elif self._clock.now() - lost_since > pace.give_up_s:
                    self._give_up(ConnectionError(f"no store for {pace.give_up_s:g} s: {error}"))
                await self._clock.sleep(pause_s * self._random.uniform(0.5, 1.0))
                pause_s = min(2.0 * pause_s, pace.retry_max_s)
                continue
            if lost_since is not None:
                self._log.info("store_back", store=self._store.url)
            lost_since, pause_s = None, pace.retry_s
            for content in contents:
                self._open_letter(content)

    def _senders(self) -> list[str]:
        return [peer for peer, lane in self._lanes.items() if lane.connections and peer != self.own]

    def _give_up(self, error: Exception) -> None:
        for connection in self._connections():
            if connection.peer[0] != self.own:
                connection.fail(error, tell=False)

    def _open_letter(self, content: bytes) -> None:
        letter = decode_letter(content)
        if letter is None or IDENTIFIER.fullmatch(letter.sender) is None:
            self._log.warning("not_a_letter", size=len(content))
            return
        self.counters.letters_in += 1
        self.counters.bytes_in += len(content)
        self._arrived(letter)

    def _arrived(self, letter: Letter) -> None:
        sender = letter.sender
        for parcel in letter.parcels:
            if parcel.kind is Kind.OPEN:
                self._asked(sender, parcel)
                continue
            known = self._known(sender, parcel.connection)
            if known is not None:
                known.arrived(parcel)
            elif parcel.kind in (Kind.DATA, Kind.ACCEPT):
                self._lane(sender).say(-parcel.connection, Kind.RESET)

    def _known(self, sender: str, number: int) -> StoreConnection | None:
        """What the sender dialled was accepted here, and the other way round."""
        if number > 0:
            return self._accepted.get((sender, number))
        dialled = self._dialled.get(-number)
        return dialled if dialled is not None and dialled.peer[0] == sender else None

    def _asked(self, sender: str, parcel: Parcel) -> None:
        number = parcel.connection
        if number <= self._opened.get(sender, 0):
            return
        self._opened[sender] = number
        self._opened.move_to_end(sender)
        while len(self._opened) > KNOWN_MAX:
            self._opened.popitem(last=False)
        if self._listener is None:
            self._lane(sender).say(-number, Kind.REFUSE)
            return
        handler = self._listener.accept()
        connection = self._connection(-number, sender)
        self._accepted[sender, number] = connection
        connection.arrived(parcel)
        connection.greet(Kind.ACCEPT)
        connection.begin(handler)


class StoreListener:
    def __init__(self, network: StoreNetwork, accept: Callable[[], StreamHandler]) -> None:
        self.address: Address = (network.own, 0)
        self.accept = accept
        self._network = network

    async def close(self) -> None:
        self._network.stopped_listening(self)
