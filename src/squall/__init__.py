"""Squall: load tests in plain Python, with numbers you can defend.

The author imports everything from here. Names are loaded on first use, so that the
command starts its core processes before it pays for what only they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squall.api.arguments import (
        SQL,
        URL,
        Auth,
        Cookies,
        Data,
        Directory,
        Document,
        Email,
        File,
        FileGlob,
        Form,
        Headers,
        Mutation,
        Params,
        Protobuf,
        Query,
    )
    from squall.api.errors import ConfigError, SquallError, StatusError, TransportError
    from squall.api.feeds import Feed
    from squall.api.hooks import (
        All,
        Provide,
        Use,
        action,
        check,
        depends,
        metric,
        state,
        step,
        then,
    )
    from squall.api.http import HTTP2Response, HTTP3Response, HTTPResponse
    from squall.api.metrics import Counter, Gauge, Rate, Sample
    from squall.api.protocols.brokers.amqp import AMQPResponse, RabbitMQResponse
    from squall.api.protocols.brokers.kafka import KafkaResponse
    from squall.api.protocols.brokers.messages import ReceivedMessage
    from squall.api.protocols.brokers.mqtt import MQTTResponse
    from squall.api.protocols.brokers.nats import NATSResponse
    from squall.api.protocols.browser import PageResult
    from squall.api.protocols.graphql import GraphQLError, GraphQLResponse, GraphQLSubscription
    from squall.api.protocols.grpc import GRPCResponse, GRPCStream
    from squall.api.protocols.mongodb import MongoDBResponse
    from squall.api.protocols.proto import Proto
    from squall.api.protocols.redis import RedisResponse
    from squall.api.protocols.smtp import SMTPResult
    from squall.api.protocols.sql import MySQLResponse, PostgresResponse
    from squall.api.protocols.tcp import LengthPrefix, TCPResponse
    from squall.api.protocols.transfers import FTPResult, SCPResult, SFTPResult, TransferResult
    from squall.api.protocols.udp import UDPResponse
    from squall.api.resources import Resource
    from squall.api.results import CustomResult, Timed
    from squall.api.sse import SSEEvent, SSEResponse
    from squall.api.values import bearer, env
    from squall.api.websocket import WebsocketResponse, WebsocketSession
    from squall.api.workflow import Workflow
    from squall.client import Client
    from squall.python import LocalRunner, run
    from squall.reporters import Reporter, ReporterTypes

_HOMES = {
    "squall.api.arguments": "SQL URL Auth Cookies Data Directory Document Email File FileGlob Form "
    "Headers Mutation Params Protobuf Query",
    "squall.api.errors": "ConfigError SquallError StatusError TransportError",
    "squall.api.feeds": "Feed",
    "squall.api.protocols.graphql": "GraphQLError GraphQLResponse GraphQLSubscription",
    "squall.api.protocols.grpc": "GRPCResponse GRPCStream",
    "squall.api.hooks": "All Provide Use action check depends metric state step then",
    "squall.api.http": "HTTP2Response HTTP3Response HTTPResponse",
    "squall.api.metrics": "Counter Gauge Rate Sample",
    "squall.api.protocols.brokers.amqp": "AMQPResponse RabbitMQResponse",
    "squall.api.protocols.brokers.kafka": "KafkaResponse",
    "squall.api.protocols.brokers.messages": "ReceivedMessage",
    "squall.api.protocols.brokers.mqtt": "MQTTResponse",
    "squall.api.protocols.brokers.nats": "NATSResponse",
    "squall.api.protocols.proto": "Proto",
    "squall.api.protocols.mongodb": "MongoDBResponse",
    "squall.api.protocols.sql": "MySQLResponse PostgresResponse",
    "squall.api.protocols.browser": "PageResult",
    "squall.api.protocols.smtp": "SMTPResult",
    "squall.api.protocols.transfers": "FTPResult SCPResult SFTPResult TransferResult",
    "squall.api.protocols.redis": "RedisResponse",
    "squall.api.protocols.tcp": "LengthPrefix TCPResponse",
    "squall.api.protocols.udp": "UDPResponse",
    "squall.api.resources": "Resource",
    "squall.api.results": "CustomResult Timed",
    "squall.api.sse": "SSEEvent SSEResponse",
    "squall.api.values": "bearer env",
    "squall.api.websocket": "WebsocketResponse WebsocketSession",
    "squall.api.workflow": "Workflow",
    "squall.client": "Client",
    "squall.python": "LocalRunner run",
    "squall.reporters": "Reporter ReporterTypes",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "SQL",
    "URL",
    "AMQPResponse",
    "All",
    "Auth",
    "Client",
    "ConfigError",
    "Cookies",
    "Counter",
    "CustomResult",
    "Data",
    "Directory",
    "Document",
    "Email",
    "FTPResult",
    "Feed",
    "File",
    "FileGlob",
    "Form",
    "GRPCResponse",
    "GRPCStream",
    "Gauge",
    "GraphQLError",
    "GraphQLResponse",
    "GraphQLSubscription",
    "HTTP2Response",
    "HTTP3Response",
    "HTTPResponse",
    "Headers",
    "KafkaResponse",
    "LengthPrefix",
    "LocalRunner",
    "MQTTResponse",
    "MongoDBResponse",
    "Mutation",
    "MySQLResponse",
    "NATSResponse",
    "PageResult",
    "Params",
    "PostgresResponse",
    "Proto",
    "Protobuf",
    "Provide",
    "Query",
    "RabbitMQResponse",
    "Rate",
    "ReceivedMessage",
    "RedisResponse",
    "Reporter",
    "ReporterTypes",
    "Resource",
    "SCPResult",
    "SFTPResult",
    "SMTPResult",
    "SSEEvent",
    "SSEResponse",
    "Sample",
    "SquallError",
    "StatusError",
    "TCPResponse",
    "Timed",
    "TransferResult",
    "TransportError",
    "UDPResponse",
    "Use",
    "WebsocketResponse",
    "WebsocketSession",
    "Workflow",
    "action",
    "bearer",
    "check",
    "depends",
    "env",
    "metric",
    "run",
    "state",
    "step",
    "then",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'squall' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
