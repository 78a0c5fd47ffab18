"""A target that knows nothing of Squall and stamps every request with the time of its arrival.

It is the independent witness of the chaos matrices, so it imports the standard library only. The
stamps are the kernel's (`SO_TIMESTAMPNS`, of the segment that completes a request): they stay true
when this process gets its core late, and a burst that it reads at once is not one that was sent at
once. Paths: `/arrivals` and `/total` answer what was seen, `/reset` forgets it; every other path is
a request under test, answered after `delay=20ms` of its query.
"""

from __future__ import annotations

import heapq
import json
import selectors
import socket
import struct
import sys
import time
from dataclasses import dataclass, field

# Missing in the module `socket`; the same number on every architecture that has Python wheels.
SO_TIMESTAMPNS = 35
STAMP = struct.Struct("@ll")
READ_BYTES = 65_536
BACKLOG = 1024
SENDER = b"x-squall-attempt:"
END = b"\r\n\r\n"


@dataclass
class Request:
    at_s: float
    sender: str
    until_s: float | None = None
    """When it was answered, or its connection ended. None: still in flight."""


@dataclass(eq=False)
class Connection:
    socket: socket.socket
    read: bytes = b""
    under_way: list[Request] = field(default_factory=list[Request])


class ArrivalsServer:
    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        # Accepted sockets inherit it: a request that came before its connection was accepted has
        # a stamp too.
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._requests: list[Request] = []
        self._due: list[tuple[float, int, Connection, Request]] = []
        self._count = 0

    def serve(self) -> None:
        """Until standard input ends, so that it never outlives the test run."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            wait_s = max(0.0, self._due[0][0] - time.time()) if self._due else None
            for key, _ in self._selector.select(wait_s):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is sys.stdin:
                    return
                else:
                    self._read(key.data)
            self._answer_due()

    def _accept(self) -> None:
        try:
            made, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(made, selectors.EVENT_READ, Connection(made))

    def _read(self, connection: Connection) -> None:
        try:
            data, stamps, _, _ = connection.socket.recvmsg(READ_BYTES, 64)
        except BlockingIOError:
            return
        except OSError:
            data, stamps = b"", []
        if not data:
            self._ended(connection)
            return
        connection.read += data
        at_s = next((_seconds(raw) for _, kind, raw in stamps if kind == SO_TIMESTAMPNS), 0.0)
        while END in connection.read:
            head, _, connection.read = connection.read.partition(END)
            self._arrived(connection, head, at_s)

    def _arrived(self, connection: Connection, head: bytes, at_s: float) -> None:
        lines = head.split(b"\r\n")
        path, _, query = lines[0].split(b" ")[1].partition(b"?")
        if path in CONTROL:
            self._write(connection, CONTROL[path](self))
            return
        sender = next((each for each in lines if each.lower().startswith(SENDER)), b":")
        request = Request(at_s, sender.partition(b":")[2].strip().decode())
        self._requests.append(request)
        connection.under_way.append(request)
        self._count += 1
        due_s = at_s + _delay_s(query)
        heapq.heappush(self._due, (due_s, self._count, connection, request))

    def _answer_due(self) -> None:
        while self._due and self._due[0][0] <= time.time():
            _, _, connection, request = heapq.heappop(self._due)
            if request.until_s is None:
                # Before the write: the sender may use the answer before this process goes on.
                request.until_s = time.time()
                connection.under_way.remove(request)
                self._write(connection, b"ok")

    def _write(self, connection: Connection, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        try:
            connection.socket.setblocking(True)
            connection.socket.sendall(head + body)
            connection.socket.setblocking(False)
        except OSError:
            self._ended(connection)

    def _ended(self, connection: Connection) -> None:
        for request in connection.under_way:
            request.until_s = time.time()
        connection.under_way.clear()
        if connection.socket.fileno() >= 0:
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def arrivals(self) -> bytes:
        seen = [(each.at_s, each.until_s, each.sender) for each in self._requests]
        return json.dumps(seen).encode()

    def total(self) -> bytes:
        return json.dumps(len(self._requests)).encode()

    def reset(self) -> bytes:
        self._requests = []
        return b"{}"


CONTROL = {
    b"/arrivals": ArrivalsServer.arrivals,
    b"/total": ArrivalsServer.total,
    b"/reset": ArrivalsServer.reset,
}


def _seconds(raw: bytes) -> float:
    whole, nanoseconds = STAMP.unpack(raw)
    return whole + nanoseconds / 1e9


def _delay_s(query: bytes) -> float:
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name == b"delay":
            return float(value.removesuffix(b"ms")) / 1000
    return 0.0


if __name__ == "__main__":
    server = ArrivalsServer(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(f"listening on http://127.0.0.1:{server.port}", flush=True)
    server.serve()
