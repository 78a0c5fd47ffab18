"""An open subscription: the messages of `graphql-transport-ws` on a WebSocket.

States: opening (`connection_init` sent) -> running -> complete (by the server) or left (by us).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from time import perf_counter
from typing import Any, cast

import msgspec

from squall.api.errors import TransportError
from squall.api.protocols.graphql import GraphQLAnswer, GraphQLError, GraphQLResponse
from squall.api.websocket import WebsocketSession
from squall.clients.http.client import HTTPClient
from squall.clients.websocket.session import OpenSession

SUBPROTOCOL = "graphql-transport-ws"
_ID = "1"


class _Message(msgspec.Struct):
    type: str
    id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"null")


_MESSAGE = msgspec.json.Decoder(_Message)
_ERRORS = msgspec.json.Decoder(list[GraphQLError])


class Subscription:
    """Waits for the events of one operation."""

    def __init__(self, http: HTTPClient, session: WebsocketSession) -> None:
        self.received = 0
        self._http = http
        self._session = session
        self._complete = False

    @property
    def _url(self) -> str:
        return cast(OpenSession, self._session).url

    async def begin(self, init: Mapping[str, Any] | None, body: bytes) -> None:
        if self._session.subprotocol != SUBPROTOCOL:
            raise self._broken(f"the server does not speak {SUBPROTOCOL}")
        opening: dict[str, Any] = {"type": "connection_init"}
        if init:
            opening["payload"] = dict(init)
        await self._session.send(msgspec.json.encode(opening).decode())
        message, _ = await self._next(None)
        if message.type != "connection_ack":
            raise self._broken(f"{message.type} instead of connection_ack")
        await self._session.send(f'{{"type":"subscribe","id":"{_ID}","payload":{body.decode()}}}')

    async def receive(self, *, timeout: str | float | None = None) -> GraphQLResponse | None:  # noqa: ASYNC109
        if self._complete:
            return None
        began = perf_counter()
        message, at = await self._next(timeout)
        if message.type == "complete":
            self._complete = True
            return None
        if message.type == "next":
            try:
                answer = msgspec.json.decode(message.payload, type=GraphQLAnswer)
            except (msgspec.DecodeError, RecursionError):
                raise self._broken("an event that is no answer of GraphQL") from None
            if answer.is_empty:
                raise self._broken("an event that is no answer of GraphQL")
        elif message.type == "error":
            self._complete = True
            answer = GraphQLAnswer(errors=_errors(message.payload))
        else:
            raise self._broken(f"an unexpected {message.type}")
        self.received += 1
        response = GraphQLResponse(answer, self._url, min(began, at), at)
        # Not a request: the subscription was one connection.
        response.exchanges = 0
        self._http.note(response)
        return response

    async def _iterate(self) -> AsyncIterator[GraphQLResponse]:
        while (event := await self.receive()) is not None:
            yield event

    def __aiter__(self) -> AsyncIterator[GraphQLResponse]:
        return self._iterate()

    async def leave(self) -> None:
        """Ends the operation, unless the server has ended it."""
        if not self._complete:
            self._complete = True
            if cast(OpenSession, self._session).is_open:
                await self._session.send(f'{{"type":"complete","id":"{_ID}"}}')

    async def _next(self, timeout: str | float | None) -> tuple[_Message, float]:  # noqa: ASYNC109
        """The next message that is not a ping, and when it came."""
        while True:
            received = await self._session.receive(timeout=timeout)
            try:
                message = _MESSAGE.decode(received.body)
            except (msgspec.DecodeError, RecursionError):
                raise self._broken("a message that is not one of the protocol") from None
            if message.type == "ping":
                if not cast(OpenSession, self._session).is_open:
                    # It said goodbye already; what it sent before may still be unread.
                    continue
                await self._session.send('{"type":"pong"}')
            elif message.type != "pong":
                return message, received.ended

    def _broken(self, what: str) -> TransportError:
        now = perf_counter()
        error = TransportError(f"GraphQL subscription: {what}", started=now, ended=now)
        error.protocol = "graphql"
        error.request = f"GRAPHQL {self._url}"
        self._http.note(error)
        return error


def _errors(payload: msgspec.Raw) -> list[GraphQLError]:
    try:
        return _ERRORS.decode(payload) or [GraphQLError("an error without a message")]
    except (msgspec.DecodeError, RecursionError):
        return [GraphQLError("an error without a message")]
