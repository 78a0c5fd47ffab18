"""A server that speaks MongoDB's protocol with the real client: updates, deletions, indexes."""

from __future__ import annotations

import itertools
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_REPLY, _QUERY, _MESSAGE = 1, 2004, 2013
_HEADER = struct.Struct("<iiii")
_HELLO = {
    "isWritablePrimary": True,
    "ismaster": True,
    "maxBsonObjectSize": 16 << 20,
    "maxMessageSizeBytes": 48_000_000,
    "maxWriteBatchSize": 100_000,
    "minWireVersion": 0,
    "maxWireVersion": 21,
    "ok": 1.0,
}


class MongoDBServer:
    """Databases: collections: documents by id."""

    def __init__(self) -> None:
        self.databases: dict[str, dict[str, dict[Any, dict[str, Any]]]] = {}
        self._lock = threading.Lock()

    def answered(self, command: dict[str, Any]) -> dict[str, Any]:
        name = next(iter(command))
        known = {"update": self._update, "delete": self._delete}.get(name)
        if known is not None:
            with self._lock:
                documents = self.databases.setdefault(command["$db"], {}).setdefault(
                    command[name], {}
                )
                return {"ok": 1.0, **known(command, documents)}
        if name.lower() in ("hello", "ismaster"):
            return _HELLO
        assert name in ("ping", "createIndexes", "endSessions"), command
        return {"ok": 1.0}

    def _update(
        self, command: dict[str, Any], documents: dict[Any, dict[str, Any]]
    ) -> dict[str, Any]:
        for each in command["updates"]:
            assert each["upsert"] is True and list(each["q"]) == ["_id"]
            documents[each["q"]["_id"]] = each["q"] | each["u"]
        return {"n": len(command["updates"]), "nModified": 0}

    def _delete(
        self, command: dict[str, Any], documents: dict[Any, dict[str, Any]]
    ) -> dict[str, Any]:
        (each,) = command["deletes"]
        assert each["limit"] == 0 and set(each["q"]) == {"run_id", "position"}
        run, first = each["q"]["run_id"], each["q"]["position"]["$gte"]
        gone = [
            key
            for key, value in documents.items()
            if value["run_id"] == run and value["position"] >= first
        ]
        for key in gone:
            del documents[key]
        return {"n": len(gone)}


@contextmanager
def mongodb_server() -> Iterator[tuple[MongoDBServer, str]]:
    """The server and its URL."""
    import bson

    state = MongoDBServer()
    numbers = itertools.count(1)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.read(_HEADER.size):
                size, request, _, kind = _HEADER.unpack(head)
                content = self.rfile.read(size - _HEADER.size)
                if kind == _QUERY:
                    begin = content.index(b"\0", 4) + 1 + 8
                    answer = bson.encode(state.answered(bson.decode(content[begin:])))
                    self._send(_REPLY, request, struct.pack("<iqii", 8, 0, 0, 1) + answer)
                    continue
                command = _command(content)
                answer = bson.encode(state.answered(command))
                self._send(_MESSAGE, request, b"\0\0\0\0\0" + answer)

        def _send(self, kind: int, request: int, content: bytes) -> None:
            size = _HEADER.size + len(content)
            self.wfile.write(_HEADER.pack(size, next(numbers), request, kind) + content)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away in the middle is none of the test's business."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield state, f"mongodb://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _command(content: bytes) -> dict[str, Any]:
    """The document of an `OP_MSG`, with the sequences that follow it as its lists."""
    import bson

    command: dict[str, Any] = {}
    sequences: dict[str, list[Any]] = {}
    place = 4
    while place < len(content):
        kind = content[place]
        (size,) = struct.unpack_from("<i", content, place + 1)
        piece = content[place + 1 : place + 1 + size]
        if kind == 0:
            command = bson.decode(piece)
        else:
            name, _, documents = piece[4:].partition(b"\0")
            sequences[name.decode()] = bson.decode_all(documents)
        place += 1 + size
    return command | sequences
