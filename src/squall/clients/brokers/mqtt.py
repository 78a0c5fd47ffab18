"""MQTT by aiomqtt, which stands on paho: `self.client.mqtt`.

Sockets are opened here: the library would do so in a thread, which a silent server holds for a
minute. Ids of clients are unique over all processes and users, because a broker throws out the
first of two clients with the same id.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping
from itertools import count as numbers
from typing import Any, TypeVar

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.client import topic_matches_sub
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from squall.api.errors import CallError
from squall.api.protocols.brokers.messages import ReceivedMessage
from squall.api.protocols.brokers.mqtt import MQTTResponse
from squall.clients.brokers.headers import arrived, as_text, stamped
from squall.clients.brokers.inbox import Inbox
from squall.clients.brokers.user_calls import UserCalls, WaitingTasks, silence
from squall.clients.calls.arrivals import Arrivals, LibraryOpening
from squall.clients.calls.library import Library, LibraryAnswer
from squall.clients.calls.payload import payload_of
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.client import HTTPClient
from squall.clients.http.failure_reasons import reason_of

T = TypeVar("T")

# Seconds without traffic after which the library sends a ping.
_KEEPALIVE_S = 60
# From here on a reason code is a failure (MQTT 5, 2.4).
_FAILURES = 128
_CLOSED = "connection closed by the server"
# Of this process: two machines may use the same process ids.
_PROCESS = secrets.token_hex(4)
_numbers = numbers(1)
_VERSIONS = {"5": aiomqtt.ProtocolVersion.V5, "3.1.1": aiomqtt.ProtocolVersion.V311}


class _NotingSocket:
    """Notes when bytes arrive; the library reads from sockets, not from protocols."""

    def __init__(self, sock: socket.socket, arrivals: Arrivals) -> None:
        self._sock = sock
        self._arrivals = arrivals
        self.send = sock.send
        self.fileno = sock.fileno

    def recv(self, size: int) -> bytes:
        data = self._sock.recv(size)
        self._arrivals.came(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Client(aiomqtt.Client):
    """Resolves publishes and messages where they arrive: the library keeps reason codes to itself,
    and leaves calls waiting when a connection is lost."""

    def __init__(self, owner: MQTTConnection, **options: Any) -> None:
        self._owner = owner
        # Publishes without an acknowledgement, by packet id.
        self._unacknowledged: dict[int, asyncio.Future[int]] = {}
        super().__init__(**options)

    def use(self, sock: Any) -> None:
        """Makes the library connect on this socket."""
        self._client._create_socket = lambda: sock  # pyright: ignore[reportPrivateUsage]

    async def send(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None
    ) -> int:
        """Publishes; returns the reason code of the acknowledgement."""
        info = self._client.publish(topic, payload, qos, retain, properties)
        if info.rc:
            raise ConnectionResetError(self._owner.waiting.lost or _CLOSED)
        if info.is_published():
            return 0
        future = self._unacknowledged[info.mid] = self._loop.create_future()
        try:
            return await future
        finally:
            self._unacknowledged.pop(info.mid, None)

    def end(self) -> None:
        """Closes at once. The library stops watching the socket and ends its task."""
        self._client._sock_close()  # pyright: ignore[reportPrivateUsage]

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        self._owner.on_message(message)

    def _on_publish(
        self, client: Any, userdata: Any, mid: int, reason_code: Any, properties: Any
    ) -> None:
        future = self._unacknowledged.get(mid)
        if future is not None and not future.done():
            future.set_result(reason_code.value)

    def _on_disconnect(
        self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None
    ) -> None:
        super()._on_disconnect(client, userdata, flags, reason_code, properties)
        if self._disconnected.done():
            # Nobody else looks at it.
            self._disconnected.exception()
        by_server = flags.is_disconnect_packet_from_server
        self._owner.lose(f"the broker disconnected: {reason_code}" if by_server else _CLOSED)

    def fail_unacknowledged(self, reason: str) -> None:
        for future in self._unacknowledged.values():
            if not future.done():
                future.set_exception(ConnectionResetError(reason))


class MQTTConnection:
    """A connection with its subscriptions."""

    def __init__(self, opening: LibraryOpening, vu_index: int) -> None:
        query = opening.address.query
        version = query.get("version", "5")
        if version not in _VERSIONS:
            raise CallError(f'version={version} in the address: write "5" or "3.1.1"')
        self.has_headers = version == "5"
        self.arrivals = opening.arrivals
        self.waiting = WaitingTasks()
        self.inboxes: dict[str, Inbox] = {}
        prefix = query.get("id", "squall")
        self.client = _Client(
            self,
            hostname=opening.host,
            port=opening.port,
            username=opening.address.user or None,
            password=opening.address.password or None,
            identifier=f"{prefix}-{os.getpid()}{_PROCESS}-{vu_index}-{next(_numbers)}",
            protocol=_VERSIONS[version],
            keepalive=_KEEPALIVE_S,
            # The sweep ends calls; the library must not do so before.
            timeout=math.inf,
        )

    async def connect(self, opening: LibraryOpening) -> None:
        sock: Any = await connected_socket(opening)
        self.client.use(_NotingSocket(sock, self.arrivals))
        try:
            await self.waiting.on(self.client.__aenter__())
        except BaseException:
            self.client.end()
            sock.close()
            raise

    def lose(self, reason: str) -> None:
        self.waiting.lose(reason)
        self.client.fail_unacknowledged(reason)

    def abort(self) -> None:
        self.lose("connection closed")
        self.client.end()

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)

    def on_message(self, message: Any) -> None:
        properties = message.properties
        headers = as_text(getattr(properties, "UserProperty", ()))
        received = ReceivedMessage(
            bytes(message.payload),
            message.topic,
            arrived(self.arrivals),
            headers,
            reply_to=getattr(properties, "ResponseTopic", ""),
            retained=bool(message.retain),
        )
        for pattern, inbox in self.inboxes.items():
            if topic_matches_sub(_plain_filter(pattern), message.topic):
                inbox.put(received)

    async def inbox(self, topic: str, qos: int) -> Inbox | str:
        """The inbox of a subscription, which it makes if there is none, or the broker's refusal."""
        inbox = self.inboxes.get(topic)
        if inbox is None:
            # Retained messages may come before the acknowledgement.
            inbox = self.inboxes[topic] = Inbox()
            codes = await self.client.subscribe(topic, qos)
            code = codes[0]
            if (code if isinstance(code, int) else code.value) >= _FAILURES:
                del self.inboxes[topic]
                return f"subscription refused: {code}"
        return inbox

    def properties_of(self, headers: Mapping[str, Any] | None) -> Properties | None:
        if not headers:
            return None
        if not self.has_headers:
            raise CallError("MQTT 3.1.1 has no headers and no stamp; leave out version=3.1.1")
        made = Properties(PacketTypes.PUBLISH)
        made.UserProperty = [(name, _text(value)) for name, value in headers.items()]
        return made


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _plain_filter(pattern: str) -> str:
    """A topic filter without the group of a shared subscription."""
    return pattern.split("/", 2)[2] if pattern.startswith("$share/") else pattern


async def connected_socket(opening: LibraryOpening) -> socket.socket:
    """A socket that is connected, and has made its TLS handshake."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in opening.ip else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, (opening.ip, opening.port))
        if opening.tls is not None:
            sock = opening.tls.wrap_socket(
                sock, server_hostname=opening.host, do_handshake_on_connect=False
            )
            await _shake_hands(sock)
    except BaseException:
        sock.close()
        raise
    return sock


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await _ready(sock, loop.add_reader, loop.remove_reader)
        except ssl.SSLWantWriteError:
            await _ready(sock, loop.add_writer, loop.remove_writer)


async def _ready(
    sock: socket.socket, add: Callable[..., Any], remove: Callable[[int], Any]
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock.fileno(), wake)
    try:
        await ready
    finally:
        remove(sock.fileno())


def _reason(error: BaseException) -> str:
    if isinstance(error, MqttConnectError):
        return f"the broker refused the connection: {error.rc}"
    return str(error) if isinstance(error, aiomqtt.MqttError) else reason_of(error)


class MQTTClient:
    """The calls of one user."""

    __slots__ = ("_calls", "_vu_index")

    def __init__(self, http: HTTPClient) -> None:
        silence("mqtt")
        self._vu_index = http.vu_index
        library: Library[MQTTConnection] = Library(
            self._open,
            abort=MQTTConnection.abort,
            close=MQTTConnection.close,
            is_open=lambda connection: not connection.waiting.lost,
            lost=(aiomqtt.MqttError,),
            reason=_reason,
        )
        self._calls = UserCalls(http, "mqtt", library)

    async def _open(self, opening: LibraryOpening) -> MQTTConnection:
        connection = MQTTConnection(opening, self._vu_index)
        await connection.connect(opening)
        return connection

    async def publish(
        self,
        url: Any,
        topic: str,
        payload: Any,
        *,
        qos: int = 1,
        retain: bool = False,
        headers: Mapping[str, str] | None = None,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> MQTTResponse:
        data = payload_of(payload)

        async def perform(connection: MQTTConnection) -> int:
            properties = connection.properties_of(stamped(headers, stamp))
            try:
                return await connection.client.send(topic, data, qos, retain, properties)
            except ValueError as error:
                raise CallError(str(error)) from error

        answer = await self._calls.call(
            url, f"PUBLISH {topic}", perform, timeout=timeout, sent=len(data)
        )
        self._calls.counters.messages_sent += 1
        code = answer.value
        error = ""
        if code >= _FAILURES:
            error = f"refused: {ReasonCode(PacketTypes.PUBACK, identifier=code)}"
        return self._done(answer, error, len(data), code=code)

    async def subscribe(
        self,
        url: Any,
        topic: str,
        *,
        qos: int = 1,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> MQTTResponse:
        async def perform(connection: MQTTConnection) -> Inbox | str:
            return await connection.waiting.on(_subscribed(connection, topic, qos))

        answer = await self._calls.call(
            url, f"SUBSCRIBE {topic}", perform, timeout=timeout, subscribes=True
        )
        return self._done(answer, answer.value if isinstance(answer.value, str) else "", 0)

    async def receive(
        self,
        url: Any,
        topic: str,
        count: int = 1,
        *,
        qos: int = 1,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> MQTTResponse:
        async def take(connection: MQTTConnection) -> list[ReceivedMessage] | str:
            inbox = await _subscribed(connection, topic, qos)
            if isinstance(inbox, str):
                return inbox
            messages = [message for message, _ in await inbox.take(count)]
            return inbox.fault() or messages

        async def perform(connection: MQTTConnection) -> list[ReceivedMessage] | str:
            return await connection.waiting.on(take(connection))

        answer = await self._calls.call(
            url, f"RECEIVE {topic}", perform, timeout=timeout, subscribes=True
        )
        if isinstance(answer.value, str):
            return self._done(answer, answer.value, 0)
        self._calls.counters.messages_received += len(answer.value)
        return self._done(answer, "", 0, messages=answer.value)

    async def probe(self, url: Any) -> PingAnswer:
        """Connects and logs in; the protocol has no question to ask."""

        async def perform(connection: MQTTConnection) -> str:
            return "MQTT 5" if connection.has_headers else "MQTT 3.1.1"

        answer = await self._calls.call(url, "CONNECT", perform)
        return PingAnswer(answer.value, self._done(answer, "", 0))

    def _done(
        self, answer: LibraryAnswer[Any], error: str, sent: int, **fields: Any
    ) -> MQTTResponse:
        return self._calls.done(
            MQTTResponse(*answer.stamps, error, sent, answer.received, **fields)
        )


async def _subscribed(connection: MQTTConnection, topic: str, qos: int) -> Inbox | str:
    try:
        return await connection.inbox(topic, qos)
    except ValueError as error:
        raise CallError(f"{error}: {topic}") from error
