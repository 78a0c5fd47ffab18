"""The author's GraphQL API: responses, errors, subscriptions, and the verbs of
`self.client.graphql`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol, TypedDict, TypeVar, Unpack

import msgspec

from squall.api.arguments import URL, Auth, Cookies, Headers, Mutation, Params, Query
from squall.api.errors import StatusError
from squall.api.http import HTTPResponse, HTTPTimings
from squall.api.results import CallResult

T = TypeVar("T")

_REASON_MAX = 120
_NULL = msgspec.Raw(b"null")


class GraphQLError(msgspec.Struct, frozen=True):
    """One error of an answer."""

    message: str = ""
    path: list[str | int] | None = None
    """The field that failed, like `["order", "items", 0]`."""
    locations: list[dict[str, int]] | None = None
    """Where in the document."""
    extensions: dict[str, Any] | None = None
    """What the server adds, such as a code."""

    @property
    def code(self) -> str:
        """`extensions.code`, like "UNAUTHENTICATED"; empty without one."""
        return str((self.extensions or {}).get("code", ""))


class GraphQLAnswer(msgspec.Struct):
    """An answer as the server wrote it."""

    data: msgspec.Raw = _NULL
    errors: list[GraphQLError] | None = None
    extensions: msgspec.Raw = _NULL

    @property
    def is_empty(self) -> bool:
        """Whether it has neither data, not even null, nor errors: no answer of GraphQL."""
        return self.data is _NULL and not self.errors


class GraphQLResponse(CallResult, msgspec.Struct, eq=False, gc=False):
    """The answer to one operation, or an event of a subscription. Stamps are `time.perf_counter`
    readings."""

    protocol: ClassVar[str] = "graphql"

    answer: GraphQLAnswer
    url: str
    """Where the operation was sent."""
    started: float
    ended: float
    http: HTTPResponse | None = None
    """The response of HTTP; None for an event of a subscription."""
    parts: list[GraphQLResponse] = []
    """The answers of a batch, in the order of its operations."""
    # Why there is no answer of GraphQL.
    fault: str = ""
    answered: bool = True
    exchanges: int = 1

    @property
    def ok(self) -> bool:
        """Whether there are no errors. An answer with errors may have some data."""
        return not self.failure

    @property
    def data(self) -> Any:
        """The data, decoded; None without any."""
        return msgspec.json.decode(self.answer.data)

    def data_as(self, kind: type[T]) -> T:
        """The data, decoded into a type: a dataclass, a msgspec Struct or a TypedDict."""
        return msgspec.json.decode(self.answer.data, type=kind)

    @property
    def errors(self) -> list[GraphQLError]:
        """The errors; of all parts for a batch."""
        own = self.answer.errors or []
        return [*own, *(error for part in self.parts for error in part.errors)]

    @property
    def extensions(self) -> Any:
        """What the server adds to the answer; None without any."""
        return msgspec.json.decode(self.answer.extensions)

    @property
    def text(self) -> str:
        """The answer as received."""
        return msgspec.json.encode(self.answer).decode() if self.http is None else self.http.text

    @property
    def status_code(self) -> int:
        """The status of HTTP; 0 for an event of a subscription."""
        return 0 if self.http is None else self.http.status_code

    @property
    def request(self) -> str:
        """Like "GRAPHQL http://shop.test/graphql"."""
        return f"GRAPHQL {self.url}"

    @property
    def timings(self) -> HTTPTimings:
        """How long name lookup, connect, TLS, the first byte and the whole exchange took."""
        if self.http is not None:
            return self.http.timings
        whole_s = self.ended - self.started
        return HTTPTimings(0.0, 0.0, 0.0, first_byte_s=whole_s, total_s=whole_s)

    @property
    def failure(self) -> str:
        """Why the call counts as failed: the code of the first error, or its message."""
        if self.fault:
            return self.fault
        if self.parts:
            return next(filter(None, [part.failure for part in self.parts]), "")
        if not self.answer.errors:
            return ""
        first = self.answer.errors[0]
        return first.code or first.message[:_REASON_MAX] or "an error without a message"

    def raise_for_errors(self) -> None:
        """Raises a `StatusError`, which stops the iteration, if the call counts as failed."""
        if self.failure:
            raise StatusError(self.failure, self)

    def __repr__(self) -> str:
        return f"<GraphQLResponse {self.failure or 'ok'}, {self.url}>"


class OperationOptions(TypedDict, total=False):
    """The keywords of `query`, `mutate` and `batch`."""

    operation: str | None
    """Which operation of the document to run; needed if it has several."""
    persisted: bool
    """Sends the hash of the document, and the document only if the server does not know it."""
    headers: Headers | None
    """Headers of the request."""
    params: Params | None
    """Query parameters, added to the query of the URL."""
    cookies: Cookies | None
    """Cookies of this request, added to those of the user."""
    auth: Auth | None
    """Credentials; they replace an `Authorization` header."""
    path: Mapping[str, str | float] | None
    """Values for the `{name}` parts of the URL; they are percent-encoded."""
    timeout: str | float | None
    """Limit for this call, instead of that of the step."""
    name: str | None
    """Gives the request a row of its own in the results."""


class SubscriptionOptions(TypedDict, total=False):
    """The keywords of `subscribe`."""

    operation: str | None
    """Which operation of the document to run; needed if it has several."""
    init: Mapping[str, Any] | None
    """What the opening message says, such as a token."""
    headers: Headers | None
    """Headers of the request that opens the WebSocket."""
    params: Params | None
    """Query parameters, added to the query of the URL."""
    cookies: Cookies | None
    """Cookies of that request, added to those of the user."""
    auth: Auth | None
    """Credentials; they replace an `Authorization` header."""
    path: Mapping[str, str | float] | None
    """Values for the `{name}` parts of the URL; they are percent-encoded."""
    timeout: str | float | None
    """Limit for opening, and for each wait for an event, instead of that of the step."""


class GraphQLSubscription(Protocol):
    """An open subscription."""

    @property
    def received(self) -> int:
        """Events that arrived."""
        ...

    async def receive(self, *, timeout: str | float | None = None) -> GraphQLResponse | None:  # noqa: ASYNC109
        """The next event; None when the server says that there are no more."""
        ...

    def __aiter__(self) -> AsyncIterator[GraphQLResponse]: ...


class GraphQLVerbs(Protocol):
    """`self.client.graphql` over HTTP/1.1, and `self.client.graphql2` over HTTP/2.

    A call returns its response also if that has errors, which count as a failure; it raises
    `TransportError` if there is no answer.
    """

    async def query(
        self,
        url: URL,
        query: Query,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[OperationOptions],
    ) -> GraphQLResponse:
        """Runs a query."""
        ...

    async def mutate(
        self,
        url: URL,
        mutation: Mutation,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[OperationOptions],
    ) -> GraphQLResponse:
        """Runs a mutation."""
        ...

    async def batch(
        self,
        url: URL,
        operations: Sequence[tuple[Query, Mapping[str, Any] | None]],
        **options: Unpack[OperationOptions],
    ) -> GraphQLResponse:
        """Runs several operations in one request; `parts` of the response has their answers."""
        ...

    def subscribe(
        self,
        url: URL,
        query: Query,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> AbstractAsyncContextManager[GraphQLSubscription]:
        """Opens a subscription over a WebSocket (`graphql-transport-ws`), which is closed at the
        end of the block."""
        ...
