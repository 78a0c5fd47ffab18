"""RabbitMQ by aiormq (AMQP 0-9-1): `self.client.amqp`, also `self.client.rabbitmq`.

A refusal closes the channel on which it came, so publishing, consuming each queue, and everything
else have channels of their own. The library does not reconnect: the next call of the user does.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from itertools import count as numbers
from typing import Any

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.connection import TransportFactory
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelClosed,
    ChannelInvalidStateError,
    ConnectionClosed,
    DeliveryError,
    PublishError,
)
from pamqp import commands as spec

from squall.api.errors import CallError
from squall.api.protocols.brokers.amqp import AMQPResponse
from squall.api.protocols.brokers.messages import ReceivedMessage
from squall.clients.brokers.headers import arrived, as_text, stamped
from squall.clients.brokers.inbox import Inbox
from squall.clients.brokers.user_calls import BrokerError, UserCalls, silence
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.calls.library import Library, LibraryAnswer
from squall.clients.calls.payload import payload_of
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.client import HTTPClient

_PERSISTENT, _TRANSIENT = 2, 1
_CLOSED = "connection closed by the server"
# Unique over all processes, as receivers may look for messages that came twice.
_PROCESS = secrets.token_hex(8)
_message_ids = numbers(1)
# The names of channels that no queue has.
_CONFIRMED, _UNCONFIRMED, _COMMANDS = ("confirmed",), ("unconfirmed",), ("commands",)


class _Refusal(str):
    """A refusal of the broker, which becomes the error of a response."""

    __slots__ = ()


class _Streams(TransportFactory):
    """Opens the connection and keeps its transport, so that `abort` can cut it off."""

    def __init__(self, opening: LibraryOpening) -> None:
        self._opening = opening
        self.writer: asyncio.StreamWriter | None = None

    async def create(
        self, url: Any, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opening = self._opening
        reader, self.writer = await asyncio.open_connection(
            opening.host, opening.port, ssl=opening.tls
        )
        return reader, self.writer

    def abort(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()


class AMQPConnection:
    """A connection with its channels and consumers."""

    def __init__(self, opening: LibraryOpening) -> None:
        self.arrivals = opening.arrivals
        self._streams = _Streams(opening)
        self.connection: Any = aiormq.Connection(
            opening.address.value, transport_factory=self._streams
        )
        self._channels: dict[tuple[str, ...], Any] = {}
        self._lock = asyncio.Lock()
        self._inboxes: dict[str, tuple[Any, Inbox]] = {}

    async def connect(self) -> None:
        try:
            await self.connection.connect()
            # Most calls publish; so opening its channel is part of connecting.
            await self.channel(_CONFIRMED)
        except AMQPError as error:
            self.abort()
            raise BrokerError(reason_of_refusal(error)) from error
        except BaseException:
            self.abort()
            raise

    @property
    def is_open(self) -> bool:
        return self.connection.is_opened

    def abort(self) -> None:
        # The library ends its tasks when it learns of it.
        self._streams.abort()

    def opened(self, name: tuple[str, ...]) -> Any:
        """The channel of this name; None if there is none, or a refusal closed it."""
        channel = self._channels.get(name)
        return None if channel is None or channel.is_closed else channel

    async def channel(self, name: tuple[str, ...]) -> Any:
        """The channel of this name, opened if need be."""
        channel = self.opened(name)
        if channel is None:
            async with self._lock:
                channel = self.opened(name)
                if channel is None:
                    confirms = name is _CONFIRMED
                    channel = await self.connection.channel(publisher_confirms=confirms)
                    self._channels[name] = channel
        return channel

    async def consumer(self, queue: str, prefetch: int, acks: bool) -> tuple[Any, Inbox]:
        """(Channel, messages) of the queue; the first call subscribes."""
        found = self._inboxes.get(queue)
        if found is not None and not found[0].is_closed:
            return found
        channel = await self.channel(("consumer", queue))
        await channel.basic_qos(prefetch_count=prefetch)
        inbox = Inbox()

        async def receive(message: DeliveredMessage) -> None:
            inbox.put(received(message, arrived(self.arrivals)), message.delivery_tag)

        def cancelled(frame: Any) -> None:
            # The next call begins anew, on a channel of its own.
            self._inboxes.pop(queue, None)
            self._channels.pop(("consumer", queue), None)
            inbox.end(ChannelClosed(f"the queue was deleted: {queue}"))

        def closed(closing: asyncio.Future[Any]) -> None:
            error = None if closing.cancelled() else closing.exception()
            refused = isinstance(error, ChannelClosed)
            inbox.end(error if refused and error else ConnectionResetError(_CLOSED))

        channel.on_consumer_cancel_callbacks.add(cancelled)
        channel.closing.add_done_callback(closed)
        await channel.basic_consume(queue, receive, no_ack=not acks)
        self._inboxes[queue] = channel, inbox
        return channel, inbox


def received(message: DeliveredMessage, at: float) -> ReceivedMessage:
    properties = message.header.properties
    return ReceivedMessage(
        bytes(message.body),
        message.routing_key or "",
        at,
        as_text((properties.headers or {}).items()),
        reply_to=properties.reply_to or "",
        redelivered=bool(message.redelivered),
    )


def reason_of_refusal(error: BaseException) -> str:
    """The broker's own text, like "NOT_FOUND - no queue 'x' in vhost '/'"."""
    if isinstance(error, PublishError):
        return f"returned: {error.args[0]}" if error.args else "returned"
    if isinstance(error, DeliveryError):
        return "the broker did not take the message (nack)"
    texts = [each for each in error.args if isinstance(each, str)]
    return texts[-1] if texts else str(getattr(error, "reason", "")) or type(error).__name__


async def _open(opening: LibraryOpening) -> AMQPConnection:
    connection = AMQPConnection(opening)
    await connection.connect()
    return connection


_LIBRARY: Library[AMQPConnection] = Library(
    _open,
    abort=AMQPConnection.abort,
    close=lambda connection: connection.connection.close(),
    is_open=lambda connection: connection.connection.is_opened,
    lost=(BrokerError,),
    reason=str,
)


class AMQPClient:
    """The calls of one user."""

    __slots__ = ("_calls",)

    def __init__(self, http: HTTPClient) -> None:
        silence("aiormq")
        self._calls = UserCalls(http, "amqp", _LIBRARY)

    async def publish(
        self,
        url: Any,
        body: Any,
        *,
        key: str = "",
        exchange: str = "",
        headers: Mapping[str, str] | None = None,
        mandatory: bool = False,
        persistent: bool = False,
        confirm: bool = True,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        if mandatory and not confirm:
            raise CallError("mandatory=True needs confirm=True: the answer says what was returned")
        data = payload_of(body)
        name = _CONFIRMED if confirm else _UNCONFIRMED
        mode = _PERSISTENT if persistent else _TRANSIENT

        async def perform(connection: AMQPConnection) -> Any:
            channel = connection.opened(name) or await connection.channel(name)
            sent: Any = stamped(headers, stamp)
            properties = spec.Basic.Properties(
                headers=sent,
                delivery_mode=mode,
                # By which the library finds a message that comes back.
                message_id=f"{_PROCESS}-{next(_message_ids):x}",
            )
            return await channel.basic_publish(
                data,
                exchange=exchange,
                routing_key=key,
                properties=properties,
                mandatory=mandatory,
                # The confirmation comes after all that was written before.
                wait=not confirm,
            )

        what = f"PUBLISH {exchange}/{key}" if exchange else f"PUBLISH {key}"
        answer = await self._call(url, what, perform, timeout, len(data))
        self._calls.counters.messages_sent += 1
        is_returned = isinstance(answer.value, str) and answer.value.startswith("returned")
        return self._done(answer, "", len(data), returned=is_returned)

    async def get(
        self,
        url: Any,
        queue: str,
        *,
        ack: bool = True,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        async def perform(connection: AMQPConnection) -> tuple[int, tuple[ReceivedMessage, ...]]:
            channel = await connection.channel(_COMMANDS)
            message = await channel.basic_get(queue)
            if not isinstance(message.delivery, spec.Basic.GetOk):
                return 0, ()
            made = received(message, arrived(connection.arrivals))
            if ack:
                await channel.basic_ack(message.delivery_tag, wait=False)
            return message.delivery.message_count or 0, (made,)

        answer = await self._call(url, f"GET {queue}", perform, timeout)
        if isinstance(answer.value, str):
            return self._done(answer, queue)
        waiting, messages = answer.value
        self._calls.counters.messages_received += len(messages)
        return self._done(answer, queue, messages=messages, waiting=waiting)

    async def consume(
        self,
        url: Any,
        queue: str,
        count: int = 1,
        *,
        ack: bool = True,
        prefetch: int = 100,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        if ack and count > prefetch:
            raise CallError(
                f"count={count} messages would never come: the broker sends {prefetch} before "
                "the first is acknowledged; give prefetch="
            )

        async def perform(connection: AMQPConnection) -> list[ReceivedMessage]:
            channel, inbox = await connection.consumer(queue, prefetch, ack)
            taken = await inbox.take(count)
            if ack:
                await channel.basic_ack(taken[-1][1], multiple=True, wait=False)
            return [message for message, _ in taken]

        answer = await self._call(url, f"CONSUME {queue}", perform, timeout, subscribes=True)
        if isinstance(answer.value, str):
            return self._done(answer, queue)
        self._calls.counters.messages_received += len(answer.value)
        return self._done(answer, queue, messages=answer.value)

    async def declare(
        self,
        url: Any,
        queue: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        exchange: str = "",
        key: str = "",
        arguments: Mapping[str, str | int | bool] | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        async def perform(connection: AMQPConnection) -> tuple[str, int]:
            channel = await connection.channel(_COMMANDS)
            made = await channel.queue_declare(
                queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=dict(arguments or {}),
            )
            if exchange:
                await channel.queue_bind(made.queue, exchange, key)
            return made.queue, made.message_count

        answer = await self._call(url, f"DECLARE {queue}", perform, timeout)
        if isinstance(answer.value, str):
            return self._done(answer, queue)
        name, waiting = answer.value
        return self._done(answer, name, waiting=waiting)

    async def purge(
        self,
        url: Any,
        queue: str,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        async def perform(connection: AMQPConnection) -> int:
            return (await (await connection.channel(_COMMANDS)).queue_purge(queue)).message_count

        answer = await self._call(url, f"PURGE {queue}", perform, timeout)
        return self._done(answer, queue, waiting=_count(answer.value))

    async def delete(
        self,
        url: Any,
        queue: str,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        async def perform(connection: AMQPConnection) -> int:
            return (await (await connection.channel(_COMMANDS)).queue_delete(queue)).message_count

        answer = await self._call(url, f"DELETE {queue}", perform, timeout)
        return self._done(answer, queue, waiting=_count(answer.value))

    async def probe(self, url: Any) -> PingAnswer:
        """Opens a channel."""

        async def perform(connection: AMQPConnection) -> str:
            await connection.channel(_COMMANDS)
            told: Mapping[str, Any] = connection.connection.server_properties
            return f"{told.get('product', 'AMQP 0-9-1')} {told.get('version', '')}".strip()

        answer = await self._call(url, "OPEN CHANNEL", perform, None)
        return PingAnswer(str(answer.value), self._done(answer, ""))

    def _call(
        self,
        url: Any,
        operation: str,
        perform: Any,
        timeout: str | float | None,
        sent: int = 0,
        *,
        subscribes: bool = False,
    ) -> Coroutine[Any, Any, LibraryAnswer[Any]]:
        """The value of the answer is a `_Refusal` if the broker did not do what it was asked."""

        async def answered(connection: AMQPConnection) -> Any:
            try:
                return await perform(connection)
            except BaseException as error:
                return _refusal(connection, error)

        return self._calls.call(
            url, operation, answered, timeout=timeout, sent=sent, subscribes=subscribes
        )

    def _done(
        self, answer: LibraryAnswer[Any], queue: str, sent: int = 0, **fields: Any
    ) -> AMQPResponse:
        error = str(answer.value) if isinstance(answer.value, _Refusal) else ""
        return self._calls.done(
            AMQPResponse(*answer.stamps, error, sent, answer.received, queue=queue, **fields)
        )


def _count(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _refusal(connection: AMQPConnection, error: BaseException) -> _Refusal:
    """The broker's refusal in an error; raises an error that is none."""
    if isinstance(error, asyncio.CancelledError):
        # The library cancels what waits on a connection that it lost.
        task = asyncio.current_task()
        if connection.is_open or (task is not None and task.cancelling()):
            raise error
        raise BrokerError(_CLOSED) from None
    if isinstance(error, AMQPConnectionError):
        # Only an end that the broker announced has words of its own.
        is_told = isinstance(error, ConnectionClosed)
        raise BrokerError(reason_of_refusal(error) if is_told else _CLOSED) from None
    if not isinstance(error, AMQPError | ChannelInvalidStateError | RuntimeError):
        raise error
    if not connection.is_open:
        raise BrokerError(_CLOSED) from None
    if isinstance(error, DeliveryError | ChannelClosed):
        return _Refusal(reason_of_refusal(error))
    raise CallError(reason_of_refusal(error)) from error
