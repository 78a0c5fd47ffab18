"""A WebSocket server on the package `websockets`, in a thread of its own. It counts messages.

`/echo` returns every message, `/delay` after as many seconds as it says, `/push` sends three
messages first, `/twice` answers twice, `/silent` does not answer, `/leave` closes with code 4001
after a message, `/refuse` refuses the upgrade with 403, `/die` ends the connection without a
goodbye.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from time import perf_counter
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed


class WebsocketServer:
    """What the server saw: connections, messages by path, the codes of goodbyes."""

    def __init__(self) -> None:
        self.port = 0
        self.scheme = "ws"
        self.connections = 0
        self.messages: Counter[str] = Counter()
        self.goodbyes: list[int | None] = []
        self.headers: list[dict[str, str]] = []
        # How long the server itself held each answer of `/delay`.
        self.held_s: list[float] = []

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def refusal(self, connection: ServerConnection, request: Any) -> Any:
        if request.path == "/refuse":
            return connection.respond(HTTPStatus.FORBIDDEN, "no\n")
        return None

    def subprotocol(self, connection: ServerConnection, offered: Any) -> Any:
        return next((name for name in ("chat.v2", "chat.v1") if name in offered), None)

    async def serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        path = connection.request.path.partition("?")[0]
        self.connections += 1
        self.headers.append(dict(connection.request.headers.raw_items()))
        try:
            if path == "/push":
                for number in range(3):
                    await connection.send(f"push {number}")
            async for message in connection:
                self.messages[path] += 1
                await self._answer(connection, path, message)
        except ConnectionClosed:
            pass
        finally:
            self.goodbyes.append(connection.close_code)

    async def _answer(self, connection: ServerConnection, path: str, message: str | bytes) -> None:
        if path == "/silent":
            return
        if path == "/leave":
            await connection.close(4001, "enough")
        elif path == "/die":
            connection.transport.abort()
        elif path == "/twice":
            await connection.send("first")
            await connection.send("second")
        elif path == "/delay":
            began = perf_counter()
            await asyncio.sleep(float(message))
            await connection.send(message)
            self.held_s.append(perf_counter() - began)
        else:
            await connection.send(message)


@contextmanager
def running_websocket_server(tls: ssl.SSLContext | None = None) -> Generator[WebsocketServer]:
    """The server, in clear or with TLS, on a port of its own."""
    server = WebsocketServer()
    server.scheme = "wss" if tls else "ws"
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def main() -> None:
        made = await serve(
            server.serve,
            "127.0.0.1",
            0,
            ssl=tls,
            process_request=server.refusal,
            select_subprotocol=server.subprotocol,
            compression=None,
            max_size=None,
            close_timeout=0.2,
        )
        server.port = next(iter(made.sockets)).getsockname()[1]
        ready.set()
        await stopped.wait()
        made.close()
        await made.wait_closed()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)
        loop.close()
