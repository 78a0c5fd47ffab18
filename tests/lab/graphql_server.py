"""A GraphQL server on graphql-core, in a thread of its own: over HTTP/1.1 by hand, over HTTP/2 by
`h2`, and over WebSocket (graphql-transport-ws) by `websockets`. It counts operations.

`product(id: 404)` fails with the code NOT_FOUND and leaves the other fields, `wait(seconds: 0.1)`
takes so long, `order` is a mutation, `ticks(count: 3)` a subscription.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from http import HTTPStatus
from time import perf_counter
from typing import Any

import h2.config
import h2.connection
import h2.events
from graphql import GraphQLError, build_schema, graphql, parse, subscribe
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

SCHEMA = build_schema("""
type Product { id: ID!, name: String!, price: Float }
type Query { product(id: ID!): Product, products: [Product!]!, secret: String,
  wait(seconds: Float!): Float }
type Mutation { order(id: ID!, count: Int! = 1): Int! }
type Subscription { ticks(count: Int!): Int! }
""")


class GraphQLServer:
    """What the server saw."""

    def __init__(self) -> None:
        self.port = self.http2_port = self.websocket_port = 0
        self.operations: Counter[str] = Counter()
        self.requests = 0
        # Over HTTP/2.
        self.connections = 0
        self.bodies: list[Any] = []
        self.known: dict[str, str] = {}
        self.open: set[Any] = set()
        # How long the server itself held each answer over HTTP/1.1.
        self.held_s: list[float] = []

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/graphql"

    @property
    def http2_url(self) -> str:
        return f"http://localhost:{self.http2_port}/graphql"

    @property
    def websocket_url(self) -> str:
        return f"ws://localhost:{self.websocket_port}/graphql"

    async def answer(self, body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        try:
            asked = json.loads(body)
        except ValueError:
            return 400, b"not JSON"
        self.bodies.append(asked)
        if isinstance(asked, list):
            return 200, json.dumps([await self.run(each) for each in asked]).encode()
        return 200, json.dumps(await self.run(asked)).encode()

    async def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        digest = asked.get("extensions", {}).get("persistedQuery", {}).get("sha256Hash")
        text = asked.get("query")
        if digest and text is None:
            if digest not in self.known:
                code = {"code": "PERSISTED_QUERY_NOT_FOUND"}
                return {"errors": [{"message": "PersistedQueryNotFound", "extensions": code}]}
            text = self.known[digest]
        elif digest:
            assert hashlib.sha256(text.encode()).hexdigest() == digest
            self.known[digest] = text
        self.operations[asked.get("operationName") or "anonymous"] += 1
        done = await graphql(
            SCHEMA,
            text,
            ROOT,
            variable_values=asked.get("variables"),
            operation_name=asked.get("operationName"),
        )
        return dict(done.formatted)


class _Root:
    def product(self, info: Any, id: str) -> Any:
        if id == "404":
            raise GraphQLError("no product 404", extensions={"code": "NOT_FOUND"})
        return {"id": id, "name": f"product {id}", "price": 9.5}

    def products(self, info: Any) -> Any:
        return [{"id": str(number), "name": "x", "price": 1.0} for number in range(3)]

    def secret(self, info: Any) -> Any:
        raise GraphQLError("not for you")

    async def wait(self, info: Any, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    def order(self, info: Any, id: str, count: int) -> int:
        return count

    async def ticks(self, info: Any, count: int) -> AsyncIterator[Any]:
        for number in range(count):
            yield {"ticks": number}


ROOT = _Root()


async def _http1(
    server: GraphQLServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    server.open.add(writer)
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            size = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
            content = await reader.readexactly(size)
            began = perf_counter()
            status, body = await server.answer(content)
            reason = HTTPStatus(status).phrase
            writer.write(
                f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            server.held_s.append(perf_counter() - began)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        server.open.discard(writer)
        writer.close()


class _HTTP2Peer(asyncio.Protocol):
    def __init__(self, server: GraphQLServer) -> None:
        self.server = server
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.bodies: dict[int, bytearray] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.server.connections += 1
        self.server.open.add(transport)
        self.h2.initiate_connection()
        self.transport.write(self.h2.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.open.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                assert event.stream_id is not None and event.data is not None
                self.bodies.setdefault(event.stream_id, bytearray()).extend(event.data)
                self.h2.acknowledge_received_data(len(event.data), event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                assert event.stream_id is not None
                task = asyncio.ensure_future(self.answer(event.stream_id))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        self.transport.write(self.h2.data_to_send())

    async def answer(self, stream_id: int) -> None:
        status, body = await self.server.answer(bytes(self.bodies.pop(stream_id, b"")))
        headers = [(":status", str(status)), ("content-type", "application/json")]
        self.h2.send_headers(stream_id, headers)
        self.h2.send_data(stream_id, body, end_stream=True)
        self.transport.write(self.h2.data_to_send())


async def _websocket(server: GraphQLServer, connection: ServerConnection) -> None:
    try:
        opening = json.loads(await connection.recv())
        assert opening["type"] == "connection_init"
        server.bodies.append(opening.get("payload"))
        await connection.send(json.dumps({"type": "connection_ack"}))
        await connection.send(json.dumps({"type": "ping"}))
        async for text in connection:
            message = json.loads(text)
            if message["type"] == "subscribe":
                server.operations["subscription"] += 1
                await _events(connection, message)
    except ConnectionClosed:
        pass


async def _events(connection: ServerConnection, message: dict[str, Any]) -> None:
    asked, mark = message["payload"], message["id"]
    variables = asked.get("variables")
    found = subscribe(SCHEMA, parse(asked["query"]), ROOT, variable_values=variables)
    events = await found if inspect.isawaitable(found) else found
    if not hasattr(events, "__aiter__"):
        errors = [error.formatted for error in events.errors]  # type: ignore[union-attr]
        await connection.send(json.dumps({"type": "error", "id": mark, "payload": errors}))
        return
    async for each in events:  # type: ignore[union-attr]
        payload = each.formatted
        await connection.send(json.dumps({"type": "next", "id": mark, "payload": payload}))
    await connection.send(json.dumps({"type": "complete", "id": mark}))


@contextmanager
def running_graphql_server() -> Generator[GraphQLServer]:
    server = GraphQLServer()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def run() -> None:
        http1 = await asyncio.start_server(
            lambda reader, writer: _http1(server, reader, writer), "127.0.0.1", 0
        )
        http2 = await loop.create_server(lambda: _HTTP2Peer(server), "127.0.0.1", 0)
        async with serve(
            lambda connection: _websocket(server, connection),
            "127.0.0.1",
            0,
            subprotocols=["graphql-transport-ws"],  # type: ignore[list-item]
        ) as websocket:
            server.port = http1.sockets[0].getsockname()[1]
            server.http2_port = http2.sockets[0].getsockname()[1]
            server.websocket_port = next(iter(websocket.sockets)).getsockname()[1]
            ready.set()
            await done.wait()
            http1.close()
            http2.close()
            for each in tuple(server.open):
                each.close()
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()
