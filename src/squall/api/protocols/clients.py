"""The author's `self.client`: the names of all clients.

A line here makes a name known to authors and type checkers; `squall.clients.registry` says which
class stands behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from squall.api.http import HTTP2Verbs, HTTP3Verbs, HTTPVerbs

if TYPE_CHECKING:
    from squall.api.protocols.brokers.amqp import AMQPVerbs
    from squall.api.protocols.brokers.kafka import KafkaVerbs
    from squall.api.protocols.brokers.mqtt import MQTTVerbs
    from squall.api.protocols.brokers.nats import NATSVerbs
    from squall.api.protocols.browser import BrowserVerbs
    from squall.api.protocols.graphql import GraphQLVerbs
    from squall.api.protocols.grpc import GRPCVerbs
    from squall.api.protocols.mongodb import MongoDBVerbs
    from squall.api.protocols.redis import RedisVerbs
    from squall.api.protocols.smtp import SMTPVerbs
    from squall.api.protocols.sql import MySQLResponse, PostgresResponse, SQLVerbs
    from squall.api.protocols.tcp import TCPVerbs
    from squall.api.protocols.transfers import FTPVerbs, SCPVerbs, SFTPVerbs
    from squall.api.protocols.udp import UDPVerbs
    from squall.api.sse import SSEVerbs
    from squall.api.websocket import WebsocketVerbs


class Clients:
    """The author's `self.client`: one attribute per protocol."""

    amqp: AMQPVerbs
    browser: BrowserVerbs
    ftp: FTPVerbs
    graphql: GraphQLVerbs
    graphql2: GraphQLVerbs
    grpc: GRPCVerbs
    http: HTTPVerbs
    http2: HTTP2Verbs
    http3: HTTP3Verbs
    kafka: KafkaVerbs
    mqtt: MQTTVerbs
    nats: NATSVerbs
    rabbitmq: AMQPVerbs
    mongodb: MongoDBVerbs
    mysql: SQLVerbs[MySQLResponse]
    postgres: SQLVerbs[PostgresResponse]
    scp: SCPVerbs
    sftp: SFTPVerbs
    smtp: SMTPVerbs
    redis: RedisVerbs
    sse: SSEVerbs
    tcp: TCPVerbs
    udp: UDPVerbs
    websocket: WebsocketVerbs

    # Every user has one, and most users speak HTTP/1 only: a slot for each protocol would be 2 MB
    # of 10,000 users. The others are in the dict, which is made with the first of them.
    __slots__ = ("__dict__", "_make", "http")

    def __init__(self, http: HTTPVerbs, make: Callable[[str, Any], Any] | None = None) -> None:
        self.http = http
        self._make = make

    # Hidden from type checkers, which would accept any name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called for an attribute that is not set. A client of another protocol than HTTP/1 is
            # made when its user needs it.
            if name in CLIENT_NAMES and self._make is not None:
                client = self._make(name, self.http)
                setattr(self, name, client)
                return client
            hint = "it has " + ", ".join(CLIENT_NAMES)
            if hasattr(HTTPVerbs, name):
                hint = f"write self.client.http.{name}"
            raise AttributeError(f"self.client has no {name}; {hint}")


CLIENT_NAMES = tuple(Clients.__annotations__)
"""What `self.client` has."""
