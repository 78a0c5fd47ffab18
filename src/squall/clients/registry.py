"""The clients behind `self.client`: which module makes each, what it needs to be installed, and
which addresses and arguments are its own.

The tables hold names only. A module is loaded when a file needs it, so that a client which no file
uses costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from squall.api.errors import ConfigError

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient
    from squall.clients.http.shared import HTTPShared


class Scheme(NamedTuple):
    """How an address begins, the port that it stands for, and whether the connection is TLS."""

    name: str
    port: int
    tls: bool = False


class ClientSource(NamedTuple):
    """A class that is made with the user's HTTP client, and the extra of Squall that it needs.

    `schemes` are those of its addresses, unless they are HTTP underneath. `squall ping` calls
    `probe(url)` of the client of a scheme.
    """

    module: str
    name: str
    extra: str = ""
    schemes: tuple[Scheme, ...] = ()


CLIENTS = {
    "amqp": ClientSource(
        "squall.clients.brokers.amqp",
        "AMQPClient",
        "rabbitmq",
        (Scheme("amqp", 5672), Scheme("amqps", 5671, tls=True)),
    ),
    "browser": ClientSource("squall.clients.browser", "BrowserClient", "browser"),
    "ftp": ClientSource(
        "squall.clients.ftp",
        "FTPClient",
        "ftp",
        (Scheme("ftp", 21), Scheme("ftpes", 21), Scheme("ftps", 990, tls=True)),
    ),
    "graphql": ClientSource("squall.clients.graphql", "GraphQLClient", "graphql"),
    "graphql2": ClientSource("squall.clients.graphql", "GraphQL2Client", "graphql"),
    "grpc": ClientSource("squall.clients.grpc", "GRPCClient", "grpc"),
    "http2": ClientSource("squall.clients.http2", "HTTP2Client", "http2"),
    "http3": ClientSource("squall.clients.http3", "HTTP3Client", "http3"),
    "kafka": ClientSource(
        "squall.clients.brokers.kafka",
        "KafkaClient",
        "kafka",
        (Scheme("kafka", 9092), Scheme("kafkas", 9093, tls=True)),
    ),
    "mqtt": ClientSource(
        "squall.clients.brokers.mqtt",
        "MQTTClient",
        "mqtt",
        (Scheme("mqtt", 1883), Scheme("mqtts", 8883, tls=True)),
    ),
    # A server of NATS begins in clear and asks for TLS.
    "nats": ClientSource(
        "squall.clients.brokers.nats",
        "NATSClient",
        "nats",
        (Scheme("nats", 4222), Scheme("natss", 4222)),
    ),
    # Another name of `amqp`.
    "rabbitmq": ClientSource("squall.clients.brokers.amqp", "AMQPClient", "rabbitmq"),
    "mongodb": ClientSource(
        "squall.clients.mongodb", "MongoDBClient", "mongodb", (Scheme("mongodb", 27017),)
    ),
    "mysql": ClientSource(
        "squall.clients.mysql",
        "MySQLClient",
        "mysql",
        (Scheme("mysql", 3306), Scheme("mariadb", 3306)),
    ),
    "postgres": ClientSource(
        "squall.clients.postgres",
        "PostgresClient",
        "postgres",
        (Scheme("postgres", 5432), Scheme("postgresql", 5432)),
    ),
    "redis": ClientSource(
        "squall.clients.redis",
        "RedisClient",
        "redis",
        (Scheme("redis", 6379), Scheme("rediss", 6379, tls=True)),
    ),
    "scp": ClientSource("squall.clients.ssh", "SCPClient", "ssh", (Scheme("scp", 22),)),
    "sftp": ClientSource("squall.clients.ssh", "SFTPClient", "ssh", (Scheme("sftp", 22),)),
    "smtp": ClientSource(
        "squall.clients.smtp",
        "SMTPClient",
        "smtp",
        (Scheme("smtp", 25), Scheme("smtps", 465, tls=True)),
    ),
    "sse": ClientSource("squall.clients.sse", "SSEClient"),
    "tcp": ClientSource(
        "squall.clients.tcp", "TCPClient", "", (Scheme("tcp", 0), Scheme("tls", 0, tls=True))
    ),
    "udp": ClientSource("squall.clients.udp", "UDPClient", "", (Scheme("udp", 0),)),
    "websocket": ClientSource("squall.clients.websocket", "WebsocketClient"),
}
_NEGOTIATING = ClientSource("squall.clients.http2", "NegotiatingClient", "http2")
_REFLECTION = ClientSource("squall.clients.grpc.reflection", "methods_of", "grpc")
_PLAIN = ClientSource("squall.clients.http.client", "HTTPClient")

ARGUMENTS = {
    "Document": ("squall.clients.mongodb.documents", "document_of"),
    "Mutation": ("squall.clients.graphql.documents", "document_of"),
    "Protobuf": ("squall.clients.grpc.methods", "protobuf_of"),
    "Query": ("squall.clients.graphql.documents", "document_of"),
    "SQL": ("squall.clients.sql.statements", "sql_of"),
}
"""Argument types of these clients: the module and function that make one ready. The function takes
the author's value, returns a `Prepared`, and raises a `CallError` for a value that it refuses."""

FILE_ARGUMENTS = {
    "Directory": ("squall.clients.shared.file_sets", "directory_of"),
    "Email": ("squall.clients.smtp.message", "email_of"),
    "FileGlob": ("squall.clients.shared.file_sets", "glob_of"),
}
"""The same for arguments that read files; the function takes the `HTTPShared`, too."""

SCHEMES = {
    scheme.name: (protocol, scheme)
    for protocol, source in CLIENTS.items()
    for scheme in source.schemes
}
"""The protocol behind each scheme that is not HTTP underneath."""


def client_class(protocol: str) -> Any:
    """Raises a `ConfigError` that says what to install."""
    return _loaded(CLIENTS[protocol], f"self.client.{protocol}")


def make_client(protocol: str, http: HTTPClient) -> Any:
    """The client of a user for another protocol than HTTP/1."""
    return client_class(protocol)(http)


def http_client_class(shared: HTTPShared) -> type[HTTPClient]:
    """The class of `self.client.http`."""
    return _loaded(_NEGOTIATING, 'http = "auto"') if shared.negotiates else _loaded(_PLAIN, "http")


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
