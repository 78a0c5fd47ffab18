"""The GraphQL clients of one virtual user: `self.client.graphql` and `self.client.graphql2`.

An operation is a POST of the user's HTTP client, or of its HTTP/2 client: connections, cookies,
redirects and counts are theirs. HTTP 200 with errors is a failure here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from squall.api.arguments import URL, Mutation, Query
from squall.api.errors import CallError
from squall.api.http import HTTP2Verbs, HTTPResponse, HTTPVerbs
from squall.api.protocols.graphql import (
    GraphQLAnswer,
    GraphQLResponse,
    GraphQLSubscription,
    OperationOptions,
    SubscriptionOptions,
)
from squall.clients.graphql.documents import document_of, json_body
from squall.clients.graphql.subscription import SUBPROTOCOL, Subscription
from squall.clients.http.client import HTTPClient
from squall.clients.http2 import HTTP2Client

if TYPE_CHECKING:
    from squall.clients.websocket import WebsocketClient

_ANSWER = msgspec.json.Decoder(GraphQLAnswer)
_ANSWERS = msgspec.json.Decoder(list[GraphQLAnswer])
# The last for JSON that is nested too deeply.
_UNREADABLE = (msgspec.DecodeError, CallError, RecursionError)
_OWN = frozenset({"operation", "persisted"})
_NO_ANSWER = "the answer is not one of GraphQL"
# How a server says that it does not know a hash (Apollo's automatic persisted queries).
_NOT_FOUND = {"PERSISTED_QUERY_NOT_FOUND", "PersistedQueryNotFound"}


class GraphQLClient:
    """Runs the operations of one user over HTTP/1.1."""

    __slots__ = ("_http", "_verbs", "_websocket")

    def __init__(self, http: HTTPClient, verbs: HTTPVerbs | HTTP2Verbs | None = None) -> None:
        self._http = http
        self._verbs = verbs or http
        self._websocket: WebsocketClient | None = None

    async def query(
        self,
        url: URL,
        query: Query,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[OperationOptions],
    ) -> GraphQLResponse:
        if not options:
            body = document_of(query).body(variables, None)
            return _response(await self._verbs.post(url, json=json_body(body)))
        return await self._operation(url, query, variables, options)

    async def mutate(
        self,
        url: URL,
        mutation: Mutation,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[OperationOptions],
    ) -> GraphQLResponse:
        return await self.query(url, mutation, variables, **options)

    async def batch(
        self,
        url: URL,
        operations: Sequence[tuple[Query, Mapping[str, Any] | None]],
        **options: Unpack[OperationOptions],
    ) -> GraphQLResponse:
        rest = _checked(options)
        if options.keys() & _OWN:
            raise TypeError(f"batch() takes no {min(options.keys() & _OWN)}=")
        bodies = [document_of(query).body(variables, None) for query, variables in operations]
        content = b"[%b]" % b",".join(bodies)
        answer = await self._verbs.post(url, json=json_body(content), **rest)
        return _batch(answer, len(bodies))

    def subscribe(
        self,
        url: URL,
        query: Query,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> AbstractAsyncContextManager[GraphQLSubscription]:
        return self._subscribed(url, query, variables, options)

    async def _operation(
        self, url: URL, query: Query, variables: Mapping[str, Any] | None, options: Any
    ) -> GraphQLResponse:
        rest = _checked(options)
        document, operation = document_of(query), options.get("operation")
        if not options.get("persisted"):
            body = json_body(document.body(variables, operation))
            return _response(await self._verbs.post(url, json=body, **rest))
        body = json_body(document.body(variables, operation, hashed=True, whole=False))
        found = _response(await self._verbs.post(url, json=body, **rest))
        if not any({error.code, error.message} & _NOT_FOUND for error in found.errors):
            return found
        body = json_body(document.body(variables, operation, hashed=True))
        again = _response(await self._verbs.post(url, json=body, **rest))
        # The latency covers both requests, as it does for a redirect.
        again.started, again.exchanges = found.started, 2
        return again

    @asynccontextmanager
    async def _subscribed(
        self, url: URL, query: Query, variables: Mapping[str, Any] | None, options: Any
    ) -> AsyncGenerator[GraphQLSubscription]:
        if self._websocket is None:
            from squall.clients.websocket import WebsocketClient

            self._websocket = WebsocketClient(self._http)
        document = document_of(query)
        if "subscription" not in document.kinds.values():
            raise CallError("subscribe() needs a document with a subscription; use query()")
        body = document.body(variables, options.get("operation"))
        given = {name: options[name] for name in options if name not in ("operation", "init")}
        async with self._websocket.open(url, protocols=[SUBPROTOCOL], **given) as session:
            opened = Subscription(self._http, session)
            await opened.begin(options.get("init"), body)
            yield opened
            await opened.leave()


class GraphQL2Client(GraphQLClient):
    """Runs the operations of one user over HTTP/2."""

    __slots__ = ()

    def __init__(self, http: HTTPClient) -> None:
        super().__init__(http, HTTP2Client(http))


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the request itself."""
    unknown = options.keys() - OperationOptions.__optional_keys__
    if unknown:
        known = ", ".join(sorted(OperationOptions.__optional_keys__))
        raise TypeError(f"a GraphQL call takes no {min(unknown)}=; it takes {known}")
    return {name: value for name, value in options.items() if name not in _OWN}


def _response(http: HTTPResponse) -> GraphQLResponse:
    try:
        answer = _ANSWER.decode(http.body)
    except _UNREADABLE:
        answer = GraphQLAnswer()
    return _made(answer, http)


def _made(answer: GraphQLAnswer, http: HTTPResponse) -> GraphQLResponse:
    fault = ""
    if not answer.errors and (not http.ok or answer.is_empty):
        fault = _NO_ANSWER if http.ok else http.status_text
    return GraphQLResponse(answer, http.url, http.started, http.ended, http, fault=fault)


def _batch(http: HTTPResponse, size: int) -> GraphQLResponse:
    try:
        answers = _ANSWERS.decode(http.body)
    except _UNREADABLE:
        # A server without batches answers with one error, or with something else.
        return _response(http)
    made = GraphQLResponse(GraphQLAnswer(), http.url, http.started, http.ended, http)
    made.parts = [_made(answer, http) for answer in answers]
    if len(answers) != size:
        made.fault = f"{len(answers)} answers to {size} operations"
    return made
