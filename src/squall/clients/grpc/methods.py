"""The types of methods, from `.proto` files and generated modules.

An unknown method can still be called: with messages or bytes, and with `reply_as`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

from squall.api.arguments import Prepared
from squall.api.errors import CallError
from squall.api.protocols.proto import Proto
from squall.clients.grpc.framing import framed


class Method:
    """The types of a method's messages."""

    __slots__ = ("name", "reply", "request", "streams_replies", "streams_requests")

    def __init__(self, descriptor: Any) -> None:
        from google.protobuf import message_factory

        self.name: str = descriptor.full_name
        self.request: Any = message_factory.GetMessageClass(descriptor.input_type)
        self.reply: Any = message_factory.GetMessageClass(descriptor.output_type)
        self.streams_requests: bool = descriptor.client_streaming
        self.streams_replies: bool = descriptor.server_streaming


class PreparedProtobuf(Prepared):
    """A message that is encoded once for each method and compression."""

    __slots__ = ("framed",)

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.framed: dict[tuple[str, str], bytes] = {}


def protobuf_of(value: Any) -> PreparedProtobuf:
    """Prepares a message. A dict is encoded only when its method is known; everything else is
    checked now."""
    if not isinstance(value, Mapping):
        encoded(value, None, "")
    return PreparedProtobuf(value)


def find_method(protos: Iterable[Proto], target: str) -> Method | None:
    """`target` is like "/shop.Shop/Buy"."""
    name = target.strip("/").replace("/", ".")
    pools = [proto.pool for proto in protos if proto.pool is not None]
    if "google.protobuf.descriptor_pool" in sys.modules:
        # Where generated modules register themselves.
        pools.append(cast(Any, sys.modules["google.protobuf.descriptor_pool"]).Default())
    for pool in pools:
        try:
            return Method(pool.FindMethodByName(name))
        except KeyError:
            continue
    return None


def encoded(message: Any, method: Method | None, encoding: str) -> bytes:
    """A message with its length, ready to send."""
    if isinstance(message, bytes):
        return framed(message, encoding)
    if isinstance(message, Mapping):
        return framed(_from_fields(cast("Mapping[str, Any]", message), method), encoding)
    serialize = getattr(message, "SerializeToString", None)
    if serialize is None:
        raise CallError(
            f"a gRPC call takes a message, a dict of its fields or bytes, not "
            f"{type(message).__name__}"
        )
    try:
        data: bytes = serialize()
    except Exception as error:
        raise CallError(f"{type(message).__name__} cannot be encoded: {error}") from None
    return framed(data, encoding)


def _from_fields(fields: Mapping[str, Any], method: Method | None) -> bytes:
    if method is None:
        raise CallError(
            "a dict needs the type of its method: load the .proto file with Proto(...), or import "
            "the generated module"
        )
    from google.protobuf import json_format

    message = method.request()
    try:
        json_format.ParseDict(dict(fields), message)
    except json_format.ParseError as error:
        name = message.DESCRIPTOR.full_name
        raise CallError(f"not a {name}: {' '.join(str(error).split())}") from None
    data: bytes = message.SerializeToString()
    return data
