"""NATS by nats-py: `self.client.nats`.

The library does not reconnect: a lost connection fails the calls that wait on it, and the next call
of its user opens another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import ParseResult, urlparse

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport

from squall.api.errors import CallError
from squall.api.protocols.brokers.messages import ReceivedMessage
from squall.api.protocols.brokers.nats import NATSResponse
from squall.clients.brokers.headers import arrived, as_text, stamped
from squall.clients.brokers.inbox import Inbox
from squall.clients.brokers.user_calls import UserCalls, WaitingTasks, silence
from squall.clients.calls.arrivals import Arrivals, LibraryOpening
from squall.clients.calls.library import Library, LibraryAnswer
from squall.clients.calls.payload import payload_of
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.client import HTTPClient
from squall.clients.http.failure_reasons import reason_of
from squall.clients.http.shared import NO_ALPN

T = TypeVar("T")

# The sweep ends calls; the library must not do so before.
_NO_LIMIT_S = 1 << 30
_CLOSED = "connection closed by the server"
_NO_RESPONDERS = "no responders"
_CONFIRMS = ("server", "stream", None)
_BUFFER_BYTES = 1 << 16


class _Transport(TcpTransport):
    """Connects once, before the library's own loop, which would retry a failed connect."""

    def __init__(self, opening: LibraryOpening) -> None:
        super().__init__()
        self._opening = opening
        self.is_tls = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        if not self:
            await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(
        self, uri: Any, ssl_context: Any, buffer_size: int, connect_timeout: int
    ) -> None:
        # As Squall verifies everywhere, also if only the server asked for TLS.
        context = self._opening.shared.tls_context(NO_ALPN)
        await super().connect_tls(self._opening.host, context, buffer_size, connect_timeout)
        self.is_tls = True

    def abort(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class NATSConnection:
    """A connection with its subscriptions."""

    def __init__(self, opening: LibraryOpening) -> None:
        self.arrivals: Arrivals = opening.arrivals
        self.waiting = WaitingTasks()
        self.transport = _Transport(opening)
        self.client = Client()
        # The library takes a transport of its own choice only here.
        self.client._transport = self.transport  # pyright: ignore[reportPrivateUsage]
        self.inboxes: dict[tuple[str, str], Inbox] = {}
        self.error: Exception | None = None

    async def connect(self, opening: LibraryOpening) -> None:
        address = opening.address
        shown = f"[{opening.host}]" if ":" in opening.host else opening.host
        url = f"nats://{shown}:{opening.port}"
        await self.transport.connect(urlparse(url), _BUFFER_BYTES, _NO_LIMIT_S)
        login: dict[str, Any] = {}
        if address.password:
            login = {"user": address.user, "password": address.password}
        elif address.user:
            login = {"token": address.user}
        wants_tls = address.scheme == "natss"
        try:
            await self.client.connect(
                url,
                allow_reconnect=False,
                connect_timeout=_NO_LIMIT_S,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                # Only whether there is one counts: the transport takes that of Squall.
                tls=opening.shared.tls_context(NO_ALPN) if wants_tls else None,
                **login,
            )
        except BaseException:
            self.transport.abort()
            raise
        if wants_tls and not self.transport.is_tls:
            self.abort()
            raise ConnectionRefusedError("TLS: the server does not offer it; write nats://")

    async def _on_error(self, error: Exception) -> None:
        self.error = error

    async def _on_closed(self) -> None:
        error = self.client.last_error or self.error
        if error is None or isinstance(error, nats.errors.UnexpectedEOF | EOFError):
            self.waiting.lose(_CLOSED)
        else:
            self.waiting.lose(reason_of_error(error))

    def abort(self) -> None:
        self.waiting.lose("connection closed")
        # Its tasks end when they learn of it.
        self.transport.abort()

    async def publish(self, subject: str, payload: bytes, headers: Any, confirms: bool) -> None:
        client: Any = self.client
        await client.publish(subject, payload, headers=headers)
        if confirms:
            # The library's `flush` writes its PING at once, but messages only when its own task
            # runs: the PONG would confirm nothing. Here the PING follows the message in one write.
            pong = asyncio.get_running_loop().create_future()
            client._pongs.append(pong)
            await client._send_command(b"PING\r\n")
            await pong

    async def inbox(self, subject: str, queue: str) -> Inbox:
        """The inbox of a subscription, which it makes if there is none."""
        inbox = self.inboxes.get((subject, queue))
        if inbox is None:
            inbox = Inbox()
            client: Any = self.client
            await client.subscribe(subject, queue, cb=self._receiver(inbox))
            await self.client.flush(_NO_LIMIT_S)
            self.inboxes[subject, queue] = inbox
        return inbox

    def _receiver(self, inbox: Inbox) -> Callable[[Msg], Awaitable[None]]:
        async def receive(message: Msg) -> None:
            inbox.put(received(message, arrived(self.arrivals)))

        return receive


def received(message: Msg, at: float) -> ReceivedMessage:
    headers = as_text(message.headers.items()) if message.headers else {}
    return ReceivedMessage(message.data, message.subject, at, headers, reply_to=message.reply or "")


def reason_of_error(error: BaseException) -> str:
    """Like "nats: Authorization Violation"."""
    if isinstance(error, OSError):
        return reason_of(error)
    return str(error).strip() or type(error).__name__


async def _open(opening: LibraryOpening) -> NATSConnection:
    connection = NATSConnection(opening)
    await connection.connect(opening)
    return connection


_LIBRARY: Library[NATSConnection] = Library(
    _open,
    abort=NATSConnection.abort,
    close=lambda connection: connection.client.close(),
    is_open=lambda connection: not connection.waiting.lost and connection.client.is_connected,
    lost=(nats.errors.Error,),
    reason=reason_of_error,
)


class NATSClient:
    """The calls of one user."""

    __slots__ = ("_calls",)

    def __init__(self, http: HTTPClient) -> None:
        silence("nats")
        self._calls = UserCalls(http, "nats", _LIBRARY)

    async def publish(
        self,
        url: Any,
        subject: str,
        payload: Any = b"",
        *,
        headers: Mapping[str, str] | None = None,
        confirm: str | None = "server",
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        if confirm not in _CONFIRMS:
            raise CallError(f'confirm={confirm!r}: write "server", "stream" or None')
        data = payload_of(payload)
        if confirm == "stream":
            return await self._store(url, subject, data, headers, stamp, timeout)
        confirms = confirm == "server"

        async def perform(connection: NATSConnection) -> str | None:
            sent = stamped(headers, stamp)
            made = connection.publish(subject, data, sent, confirms)
            return await _answered(connection, made)

        answer = await self._calls.call(
            url, f"PUB {subject}", perform, timeout=timeout, sent=len(data)
        )
        self._calls.counters.messages_sent += 1
        return self._done(answer, answer.value or "", len(data))

    async def _store(
        self,
        url: Any,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None,
        stamp: bool,
        timeout: str | float | None,  # noqa: ASYNC109
    ) -> NATSResponse:
        """Publishes as a request, which the stream answers once it has stored the message."""
        answer = await self._request(url, f"PUB {subject}", subject, data, headers, stamp, timeout)
        if isinstance(answer.value, str):
            error = "no stream has this subject" if answer.value == _NO_RESPONDERS else answer.value
            return self._done(answer, error, len(data))
        told: dict[str, Any] = msgspec.json.decode(answer.value.data)
        fault: dict[str, Any] = told.get("error") or {}
        return self._done(
            answer,
            fault.get("description", ""),
            len(data),
            stream=told.get("stream", ""),
            sequence=told.get("seq", -1),
            duplicate=told.get("duplicate", False),
        )

    async def request(
        self,
        url: Any,
        subject: str,
        payload: Any = b"",
        *,
        headers: Mapping[str, str] | None = None,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        data = payload_of(payload)
        what = f"REQ {subject}"
        answer = await self._request(url, what, subject, data, headers, stamp, timeout)
        if isinstance(answer.value, str):
            return self._done(answer, answer.value, len(data))
        self._calls.counters.messages_received += 1
        messages = (received(answer.value, answer.ended),)
        return self._done(answer, "", len(data), messages=messages)

    async def _request(
        self,
        url: Any,
        what: str,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None,
        stamp: bool,
        timeout: str | float | None,  # noqa: ASYNC109
    ) -> LibraryAnswer[Msg | str]:
        async def perform(connection: NATSConnection) -> Msg | str:
            sent: Any = stamped(headers, stamp)
            made = connection.client.request(subject, data, _NO_LIMIT_S, headers=sent)
            return await _answered(connection, made)

        answer = await self._calls.call(url, what, perform, timeout=timeout, sent=len(data))
        self._calls.counters.messages_sent += 1
        return answer

    async def subscribe(
        self,
        url: Any,
        subject: str,
        *,
        queue: str = "",
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        async def perform(connection: NATSConnection) -> Any:
            return await _answered(connection, connection.inbox(subject, queue))

        answer = await self._calls.call(
            url, f"SUB {subject}", perform, timeout=timeout, subscribes=True
        )
        return self._done(answer, answer.value if isinstance(answer.value, str) else "", 0)

    async def receive(
        self,
        url: Any,
        subject: str,
        count: int = 1,
        *,
        queue: str = "",
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        async def perform(connection: NATSConnection) -> list[ReceivedMessage] | str:
            return await _answered(connection, take(connection))

        async def take(connection: NATSConnection) -> list[ReceivedMessage] | str:
            inbox = await connection.inbox(subject, queue)
            messages = [message for message, _ in await inbox.take(count)]
            return inbox.fault() or messages

        answer = await self._calls.call(
            url, f"RECEIVE {subject}", perform, timeout=timeout, subscribes=True
        )
        if isinstance(answer.value, str):
            return self._done(answer, answer.value, 0)
        self._calls.counters.messages_received += len(answer.value)
        return self._done(answer, "", 0, messages=answer.value)

    async def probe(self, url: Any) -> PingAnswer:
        """Sends a PING."""

        async def perform(connection: NATSConnection) -> str:
            await _answered(connection, connection.client.flush(_NO_LIMIT_S))
            version = connection.client.connected_server_version
            return f"{version.major}.{version.minor}.{version.patch}"

        answer = await self._calls.call(url, "PING", perform)
        return PingAnswer(f"NATS {answer.value}", self._done(answer, "", 0))

    def _done(
        self, answer: LibraryAnswer[Any], error: str, sent: int, **fields: Any
    ) -> NATSResponse:
        return self._calls.done(
            NATSResponse(*answer.stamps, error, sent, answer.received, **fields)
        )


async def _answered(connection: NATSConnection, made: Awaitable[T]) -> T | str:
    """The result, or the error if it leaves the connection usable."""
    try:
        return await connection.waiting.on(made)
    except nats.errors.NoRespondersError:
        return _NO_RESPONDERS
    except (nats.errors.BadSubjectError, nats.errors.MaxPayloadError, ValueError) as error:
        raise CallError(str(error)) from error
    except nats.errors.ConnectionClosedError:
        raise ConnectionResetError(connection.waiting.lost or _CLOSED) from None
