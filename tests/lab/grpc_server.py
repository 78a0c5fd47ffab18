"""A real gRPC server, of grpcio, in threads of its own. It counts calls and messages by method.

The item of an order says what happens: `status:5` ends with that status, `wait:0.5` sleeps first,
`never` does not answer, `metadata` returns the metadata of the call as the id of the receipt.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from squall.api.protocols.proto import Proto

SERVICE = "shop.Shop"
EXAMPLES = Path(__file__).parents[2] / "examples"


class GRPCServer:
    """What the server saw."""

    def __init__(self) -> None:
        self.port = 0
        self.scheme = "http"
        self.calls: Counter[str] = Counter()
        self.messages_received = 0
        self.messages_sent = 0
        self.metadata: list[dict[str, Any]] = []
        self.seconds_left: list[float] = []
        self.leaving = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def counts(self, method: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            self.calls[method] += 1
            self.metadata.append(dict(context.invocation_metadata()))
            self.seconds_left.append(context.time_remaining())

    def took(self, orders: int, receipts: int) -> None:
        with self._lock:
            self.messages_received += orders
            self.messages_sent += receipts


class _Shop:
    def __init__(self, server: GRPCServer, proto: Proto) -> None:
        self.server, self.receipt = server, proto.Receipt

    def act(self, order: Any, context: grpc.ServicerContext) -> None:
        kind, _, value = order.item.partition(":")
        if kind == "wait":
            self.server.leaving.wait(float(value))
        elif kind == "never":
            self.server.leaving.wait(60)
        elif kind == "status":
            code = next(each for each in grpc.StatusCode if each.value[0] == int(value))
            context.abort(code, f"it was ordered: 100 % {code.name}\n")

    def buy(self, order: Any, context: grpc.ServicerContext) -> Any:
        self.server.counts("Buy", context)
        if order.item == "status:0":
            return self.receipt()
        self.act(order, context)
        if order.item == "large":
            return self.receipt(id="x" * order.count)
        context.send_initial_metadata((("x-shop", "open"),))
        context.set_trailing_metadata((("x-sum", str(order.count)), ("x-raw-bin", b"\x00\xff")))
        self.server.took(1, 1)
        return self.receipt(id=f"r-{order.item}"[:50], total=order.count)

    def watch(self, order: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.server.counts("Watch", context)
        self.server.took(1, 0)
        for number in range(order.count):
            yield self.receipt(id=str(number), total=number)
            self.server.took(0, 1)
        self.act(order, context)

    def collect(self, orders: Iterator[Any], context: grpc.ServicerContext) -> Any:
        self.server.counts("Collect", context)
        total = 0
        for order in orders:
            self.server.took(1, 0)
            self.act(order, context)
            total += order.count
        self.server.took(0, 1)
        return self.receipt(id="all", total=total)

    def talk(self, orders: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.server.counts("Talk", context)
        for order in orders:
            self.server.took(1, 0)
            self.act(order, context)
            yield self.receipt(id=order.item, total=order.count)
            self.server.took(0, 1)


def loaded_proto() -> Proto:
    proto = Proto("shop.proto")
    proto.load(EXAMPLES)
    return proto


@contextmanager
def running_grpc_server(
    proto: Proto | None = None, tls: tuple[bytes, bytes] | None = None
) -> Generator[GRPCServer]:
    """`tls` is (private key, certificate chain)."""
    server = GRPCServer()
    proto = proto or loaded_proto()
    shop = _Shop(server, proto)
    kinds = {
        "Buy": (grpc.unary_unary_rpc_method_handler, shop.buy),
        "Watch": (grpc.unary_stream_rpc_method_handler, shop.watch),
        "Collect": (grpc.stream_unary_rpc_method_handler, shop.collect),
        "Talk": (grpc.stream_stream_rpc_method_handler, shop.talk),
    }
    handlers = {
        name: make(handle, request_deserializer=proto.Order.FromString, response_serializer=_bytes)
        for name, (make, handle) in kinds.items()
    }
    made = grpc.server(
        ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=None
    )
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    reflection.enable_server_reflection((SERVICE, reflection.SERVICE_NAME), made, pool=proto.pool)
    if tls is None:
        server.port = made.add_insecure_port("127.0.0.1:0")
    else:
        server.scheme = "https"
        credentials = grpc.ssl_server_credentials([tls])
        server.port = made.add_secure_port("127.0.0.1:0", credentials)
    made.start()
    try:
        yield server
    finally:
        server.leaving.set()
        made.stop(None).wait(10)


def _bytes(message: Any) -> bytes:
    return message.SerializeToString()
