"""The clients behind `self.client`: which module makes each, and what it needs to be installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from squall.api.errors import ConfigError
from squall.clients.http.client import HTTPClient
from squall.clients.http.shared import HTTPShared


class ClientSource(NamedTuple):
    """A class that is made with the user's HTTP client, and the extra of Squall that it needs."""

    module: str
    name: str
    extra: str


CLIENTS = {
    "graphql": ClientSource("squall.clients.graphql", "GraphQLClient", "graphql"),
    "graphql2": ClientSource("squall.clients.graphql", "GraphQL2Client", "graphql"),
    "grpc": ClientSource("squall.clients.grpc", "GRPCClient", "grpc"),
    "http2": ClientSource("squall.clients.http2", "HTTP2Client", "http2"),
    "http3": ClientSource("squall.clients.http3", "HTTP3Client", "http3"),
    "sse": ClientSource("squall.clients.sse", "SSEClient", ""),
    "websocket": ClientSource("squall.clients.websocket", "WebsocketClient", ""),
}
_NEGOTIATING = ClientSource("squall.clients.http2", "NegotiatingClient", "http2")
_REFLECTION = ClientSource("squall.clients.grpc.reflection", "methods_of", "grpc")


def client_class(protocol: str) -> Any:
    """Raises a `ConfigError` that says what to install."""
    return _loaded(CLIENTS[protocol], f"self.client.{protocol}")


def make_client(protocol: str, http: HTTPClient) -> Any:
    """The client of a user for another protocol than HTTP/1."""
    return client_class(protocol)(http)


def http_client_class(shared: HTTPShared) -> type[HTTPClient]:
    """The class of `self.client.http`."""
    return _loaded(_NEGOTIATING, 'http = "auto"') if shared.negotiates else HTTPClient


def grpc_reflection() -> Any:
    """The function that asks a gRPC server for its methods."""
    return _loaded(_REFLECTION, "squall ping grpc://")


def _loaded(source: ClientSource, what: str) -> Any:
    try:
        return getattr(import_module(source.module), source.name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("squall"):
            raise
        raise ConfigError(
            f"{what} needs {error.name}, which is not installed: "
            f"pip install 'squall[{source.extra}]'"
        ) from None
