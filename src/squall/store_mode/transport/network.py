"""The runtime's network over a store: processes need to reach the store, not one another.

    dial("leader") ─► resolve ─► OPEN ─► leader's mailbox ─► accept ─► ACCEPT ─► our mailbox
    connection.send ─► MailboxSender of the peer ─► one envelope at a time ─► its inbox
    our inbox ─► one reading task ─► stream parts ─► connections

A process has one mailbox, with a new name at every boot, and one task that reads it; all its
connections share both. Each connection is an ordered byte stream (`connection`), outgoing data
for one mailbox is gathered (`mailbox_sender`), and `stream_mailbox` and `record_mailbox` lay
envelopes out in a store. What a process sends to itself does not go through the store.

While a store does not answer, connections wait; after `tuning.give_up_s` all of them end with an
error. The sequence numbers of the stream parts reveal envelopes that the store lost: such a
connection is reset. The wire's keep-alive detects dead peers; a caller that already knows of one
calls `abandon`.

It must never deliver bytes twice or out of order, nor touch anything in the store but mail.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from squall.coordination.store_errors import CoordinationError
from squall.coordination.stores.interface import IDENTIFIER, Store, make_key
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
from squall.store_mode.transport.connection import ConnectionState, StoreConnection
from squall.store_mode.transport.envelope import (
    Envelope,
    PartKind,
    StreamPart,
    decode_envelope,
    encode_envelope,
)
from squall.store_mode.transport.mailbox import GROUP, Mailbox, NetworkCounters
from squall.store_mode.transport.mailbox_sender import MailboxSender
from squall.store_mode.transport.record_mailbox import RecordMailbox
from squall.store_mode.transport.stream_mailbox import StreamMailbox
from squall.store_mode.transport.tuning import TransportTuning

LEADER = "leader"
"""The only address that is not a mailbox; `resolve` returns the current leader's mailbox."""
NAME_MAX = 96
KNOWN_MAX = 10_000
CLOSE_POLL_S = 0.01

Resolve = Callable[[str], Awaitable[str]]
"""Returns the mailbox of the current coordinator; raises `ConnectionError` if there is none."""


def mailbox_name(node: str, boot: str) -> str:
    """Returns a name that is unique per boot and uses only characters that keys allow."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "-", node)[:40] or "node"
    digest = hashlib.sha256(f"{node}\n{boot}".encode()).hexdigest()
    return f"{readable}-{digest[:20]}"


class StoreNetwork:
    """Implements `runtime.interfaces.Network` with mailboxes in a store. `close` ends everything
    that it started."""

    def __init__(
        self,
        store: Store,
        *,
        own: str,
        clock: Clock,
        random: random.Random,
        tasks: TaskRunner,
        tuning: TransportTuning,
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
        self._tuning = tuning
        self._resolve = resolve
        self._log = log or Log(MemorySink(), clock)
        layout = StreamMailbox if store.capabilities.transactions else RecordMailbox
        self._mailbox: Mailbox = layout(
            store, own=own, clock=clock, tasks=tasks, tuning=tuning, counters=self.counters
        )
        self._outgoing: dict[str, MailboxSender] = {}
        self._dialled: dict[int, StoreConnection] = {}
        self._accepted: dict[tuple[str, int], StoreConnection] = {}
        # By dialling mailbox: the highest number opened. An OPEN up to it is a repeat.
        self._opened: OrderedDict[str, int] = OrderedDict()
        self._listener: StoreListener | None = None
        self._envelopes_sent = 0
        self._dials = 0
        self._reading: TaskToken | None = None
        self._wanted = asyncio.Event()
        self._closed = False

    @property
    def open_count(self) -> int:
        """The number of open connections and listeners; mail is read only while there are any."""
        return len(self._dialled) + len(self._accepted) + (self._listener is not None)

    # The interface of `Network`.

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
            raise OSError(f"there is already a listener at {self.own}")
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
            self._abandon_dial(connection)
            raise TimeoutError(f"{name} did not answer in {timeout_s:g} s") from error
        except BaseException:
            self._abandon_dial(connection)
            raise
        if connection.state is ConnectionState.OVER:
            raise ConnectionResetError("the peer closed the connection before it was open")
        connection.begin(handler)
        return connection

    async def bind_datagrams(self, address: Address, handler: DatagramHandler) -> DatagramSocket:
        raise OSError("there are no datagrams in a store")

    # Beyond the interface of `Network`.

    def abandon(self, mailbox: str) -> int:
        """Resets all connections that this process dialled to a mailbox whose owner is known to
        be dead or deposed. Connections that the owner dialled stay."""
        error = ConnectionResetError(f"{mailbox} is dead or was replaced")
        outgoing = self._outgoing.get(mailbox)
        ended = (
            [one for one in outgoing.connections if one.number > 0] if outgoing is not None else []
        )
        for connection in ended:
            connection.fail(error)
        return len(ended)

    async def close(self) -> None:
        """Aborts everything and notifies the handlers and, if the store answers soon, the
        peers."""
        if self._closed:
            return
        self._closed = True
        self._listener = None
        for connection in self._connections():
            connection.fail(ConnectionAbortedError("this network was closed"))
        until = self._clock.now() + self._tuning.close_s
        while not all(outgoing.is_idle for outgoing in self._outgoing.values()):
            if self._clock.now() >= until:
                break
            await self._clock.sleep(CLOSE_POLL_S)
        for outgoing in list(self._outgoing.values()):
            await outgoing.stop()
        if self._reading is not None:
            self._tasks.cancel(self._reading)
            await self._tasks.stopped(self._reading)
        await self._mailbox.close()

    # Called by connections and the listener.

    def ready(self, connection: StoreConnection) -> None:
        self._outgoing_to(connection.peer[0]).ready(connection)

    def ended(
        self, connection: StoreConnection, error: Exception | None, notify_peer: bool
    ) -> None:
        number, peer = connection.number, connection.peer[0]
        self.counters.resets += error is not None
        if number > 0:
            self._dialled.pop(number, None)
        else:
            self._accepted.pop((peer, -number), None)
        outgoing = self._outgoing_to(peer)
        outgoing.forget(connection)
        if notify_peer and connection.greeted:
            outgoing.queue_reply(number, PartKind.RESET)
        elif outgoing.is_idle:
            self._drop_if_unused(outgoing)

    def stopped_listening(self, listener: StoreListener) -> None:
        if self._listener is listener:
            self._listener = None

    # Dialling.

    async def _mailbox_of(self, name: str) -> str:
        try:
            mailbox = await self._resolve(name) if name == LEADER else name
        except CoordinationError as error:
            raise ConnectionError(f"the leader cannot be found: {error}") from error
        if IDENTIFIER.fullmatch(mailbox) is None:
            raise OSError(f"{mailbox!r} is not the name of a mailbox")
        return mailbox

    def _open(self, peer: str) -> StoreConnection:
        self._dials += 1
        connection = self._connection(self._dials, peer)
        connection.accepted = asyncio.get_running_loop().create_future()
        self._dialled[self._dials] = connection
        connection.greet(PartKind.OPEN)
        self._read_mail()
        return connection

    def _abandon_dial(self, connection: StoreConnection | None) -> None:
        if connection is None:
            return
        accepted = connection.accepted
        if accepted is not None and accepted.done() and not accepted.cancelled():
            accepted.exception()
        connection.accepted = None
        connection.abort_later()

    def _connection(self, number: int, peer: str) -> StoreConnection:
        connection = StoreConnection(self, number, self.own, peer, linger_s=self._tuning.give_up_s)
        self._outgoing_to(peer).connections[connection] = None
        return connection

    def _connections(self) -> list[StoreConnection]:
        return [*self._dialled.values(), *self._accepted.values()]

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("this network was closed")

    # Sending.

    def _outgoing_to(self, peer: str) -> MailboxSender:
        outgoing = self._outgoing.get(peer)
        if outgoing is None:
            is_own = peer == self.own
            outgoing = self._outgoing[peer] = MailboxSender(
                peer,
                send=self._deliver_locally if is_own else self._send_envelope,
                next_envelope_id=self._next_envelope_id,
                clock=self._clock,
                tasks=self._tasks,
                tuning=msgspec.structs.replace(self._tuning, flush_s=0.0)
                if is_own
                else self._tuning,
                on_idle=self._drop_if_unused,
            )
        return outgoing

    def _drop_if_unused(self, outgoing: MailboxSender) -> None:
        if outgoing.is_idle and not outgoing.connections:
            self._outgoing.pop(outgoing.peer, None)

    def _next_envelope_id(self) -> str:
        self._envelopes_sent += 1
        return str(self._envelopes_sent)

    async def _send_envelope(self, peer: str, envelope: str, parts: list[StreamPart]) -> None:
        content = encode_envelope(self.own, parts)
        await self._mailbox.append(peer, envelope, content)
        self.counters.envelopes_out += 1
        self.counters.bytes_out += len(content)
        self._mailbox.expect()

    async def _deliver_locally(self, peer: str, envelope: str, parts: list[StreamPart]) -> None:
        # Deliver in a later turn of the loop, like a message from another process.
        await asyncio.sleep(0)
        self._arrived(Envelope(0, self.own, parts))

    # Reading.

    def _read_mail(self) -> None:
        self._wanted.set()
        self._mailbox.expect()
        if self._reading is None:
            self._reading = self._tasks.start(
                "mail", self._read(), group=GROUP, essential=True, on_error=self._reading_failed
            )

    def _reading_failed(self, error: Exception) -> None:
        self._give_up(ConnectionError(f"the mailbox cannot be read: {error}"))

    async def _read(self) -> None:
        tuning = self._tuning
        lost_since: float | None = None
        failures = 0
        while True:
            if not self.open_count:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._mailbox.wait()
                contents = await self._mailbox.read(
                    self._senders(), listens=self._listener is not None
                )
            except CoordinationError as error:
                if lost_since is None:
                    lost_since = self._clock.now()
                    self.counters.outages += 1
                    self._log.warning("store_lost", store=self._store.url, error=str(error))
                elif self._clock.now() - lost_since > tuning.give_up_s:
                    self._give_up(
                        ConnectionError(
                            f"the store did not answer for {tuning.give_up_s:g} s: {error}"
                        )
                    )
                failures += 1
                await self._clock.sleep(tuning.retry.delay_s(failures, self._random.uniform))
                continue
            if lost_since is not None:
                self._log.info("store_back", store=self._store.url)
            lost_since, failures = None, 0
            for content in contents:
                self._decode(content)

    def _senders(self) -> list[str]:
        return [
            peer
            for peer, outgoing in self._outgoing.items()
            if outgoing.connections and peer != self.own
        ]

    def _give_up(self, error: Exception) -> None:
        for connection in self._connections():
            if connection.peer[0] != self.own:
                connection.fail(error, notify_peer=False)

    def _decode(self, content: bytes) -> None:
        envelope = decode_envelope(content)
        if envelope is None or IDENTIFIER.fullmatch(envelope.sender) is None:
            self._log.warning("not_a_letter", size=len(content))
            return
        self.counters.envelopes_in += 1
        self.counters.bytes_in += len(content)
        self._arrived(envelope)

    def _arrived(self, envelope: Envelope) -> None:
        sender = envelope.sender
        for part in envelope.parts:
            if part.kind is PartKind.OPEN:
                self._opened_by_peer(sender, part)
                continue
            known = self._known(sender, part.connection)
            if known is not None:
                known.arrived(part)
            # The peer still uses a connection that has ended here, for example after a restart.
            elif part.kind in (PartKind.DATA, PartKind.ACCEPT):
                self._outgoing_to(sender).queue_reply(-part.connection, PartKind.RESET)

    def _known(self, sender: str, number: int) -> StoreConnection | None:
        """Finds a connection by the peer's number for it: positive if the peer dialled, negative
        if this process did."""
        if number > 0:
            return self._accepted.get((sender, number))
        dialled = self._dialled.get(-number)
        return dialled if dialled is not None and dialled.peer[0] == sender else None

    def _opened_by_peer(self, sender: str, part: StreamPart) -> None:
        number = part.connection
        if number <= self._opened.get(sender, 0):
            return
        self._opened[sender] = number
        self._opened.move_to_end(sender)
        while len(self._opened) > KNOWN_MAX:
            self._opened.popitem(last=False)
        if self._listener is None:
            self._outgoing_to(sender).queue_reply(-number, PartKind.REFUSE)
            return
        handler = self._listener.accept()
        connection = self._connection(-number, sender)
        self._accepted[sender, number] = connection
        connection.arrived(part)
        connection.greet(PartKind.ACCEPT)
        connection.begin(handler)


class StoreListener:
    """Accepts the connections that other processes dial to this mailbox."""

    def __init__(self, network: StoreNetwork, accept: Callable[[], StreamHandler]) -> None:
        self.address: Address = (network.own, 0)
        self.accept = accept
        self._network = network

    async def close(self) -> None:
        self._network.stopped_listening(self)
