"""A node that speaks version 4 of Cassandra's protocol with the real driver: it wants a password,
prepares statements, checks types, and refuses what the database would refuse."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from tests.services.reporting.lab.cassandra_tables import (
    Bind,
    Keyspace,
    Refused,
    Tokens,
    Write,
    decoded,
    encoded,
)

VERSION = 4
_HEADER = struct.Struct(">BBhBi")
_ERROR, _STARTUP, _READY, _AUTHENTICATE, _OPTIONS, _SUPPORTED = 0, 1, 2, 3, 5, 6
_QUERY, _RESULT, _PREPARE, _EXECUTE, _REGISTER, _RESPONSE, _SUCCESS = 7, 8, 9, 10, 11, 15, 16
_VOID, _ROWS, _SET_KEYSPACE, _PREPARED, _SCHEMA_CHANGE = 1, 2, 3, 4, 5
_PROTOCOL_ERROR, _BAD_CREDENTIALS, _INVALID = 0x000A, 0x0100, 0x2200
_CODES = {
    **{"bigint": 0x02, "boolean": 0x04, "double": 0x07, "timestamp": 0x0B},
    **{"uuid": 0x0C, "text": 0x0D, "inet": 0x10},
}
_SOME_ID = uuid.UUID(int=7).bytes
_LOCAL: dict[str, tuple[str, bytes]] = {
    "host_id": ("uuid", _SOME_ID),
    "schema_version": ("uuid", _SOME_ID),
    "rpc_address": ("inet", bytes([127, 0, 0, 1])),
    "cluster_name": ("text", b"stand-in"),
    "data_center": ("text", b"dc1"),
    "rack": ("text", b"r1"),
    "partitioner": ("text", b"org.apache.cassandra.dht.Murmur3Partitioner"),
    "release_version": ("text", b"3.11.14"),
}
Answer = tuple[int, bytes]


class CassandraServer:
    """One keyspace; one user."""

    def __init__(self, keyspace: str, username: str, password: str) -> None:
        self.keyspace = Keyspace(keyspace)
        self._login = f"\0{username}\0{password}".encode()
        self._prepared: list[tuple[Write, list[Bind]]] = []
        self._lock = threading.Lock()

    def answered(self, operation: int, body: bytes) -> Answer:
        with self._lock:
            try:
                return self._answered(operation, body)
            except Refused as error:
                return _failed(_INVALID, str(error))

    def _answered(self, operation: int, body: bytes) -> Answer:
        if operation == _OPTIONS:
            options = {"CQL_VERSION": ["3.4.4"], "COMPRESSION": []}
            pairs = (_text(key) + _texts(values) for key, values in options.items())
            return _SUPPORTED, struct.pack(">H", len(options)) + b"".join(pairs)
        if operation == _STARTUP:
            return _AUTHENTICATE, _text("org.apache.cassandra.auth.PasswordAuthenticator")
        if operation == _RESPONSE:
            if body[4:] != self._login:
                return _failed(_BAD_CREDENTIALS, "the username or the password is wrong")
            return _SUCCESS, _value(None)
        if operation == _REGISTER:
            return _READY, b""
        if operation == _EXECUTE:
            return self._execute(body)
        assert operation in (_QUERY, _PREPARE), operation
        (size,) = struct.unpack_from(">i", body)
        statement = body[4 : 4 + size].decode()
        return self._prepare(statement) if operation == _PREPARE else self._query(statement)

    def _prepare(self, statement: str) -> Answer:
        tokens = Tokens(statement)
        made = self.keyspace.insert if tokens.has("INSERT") else None
        if made is None:
            tokens.take("DELETE")
            made = self.keyspace.delete
        write = made(tokens)
        binds = write.binds(self.keyspace.tables)
        self._prepared.append((write, binds))
        name = struct.pack(">Hi", 4, len(self._prepared) - 1)
        # No parts of the key by number; the answer has no columns and says nothing about them.
        begin = struct.pack(">iii", 1, len(binds), 0) + self._place(write.table)
        about = begin + _columns(binds) + struct.pack(">ii", 4, 0)
        return _RESULT, struct.pack(">i", _PREPARED) + name + about

    def _execute(self, body: bytes) -> Answer:
        _, number = struct.unpack_from(">Hi", body)
        write, binds = self._prepared[number]
        _, flags, count = struct.unpack_from(">HBH", body, 6)
        if not flags & 1 or count != len(binds):
            raise Refused(f"{len(binds)} values are expected, not {count}")
        place, values = 11, []
        for _, kind in binds:
            (size,) = struct.unpack_from(">i", body, place)
            place += 4
            data = None if size < 0 else body[place : place + size]
            values.append(decoded(data, kind))
            place += max(size, 0)
        self.keyspace.write(write, values)
        return _RESULT, struct.pack(">i", _VOID)

    def _query(self, statement: str) -> Answer:
        keyspace, tokens = self.keyspace, Tokens(statement)
        word = tokens.next().upper()
        if word == "SELECT":
            return self._select(tokens)
        if word == "USE":
            if tokens.name() != keyspace.name:
                raise Refused("the keyspace does not exist")
            return _RESULT, struct.pack(">i", _SET_KEYSPACE) + _text(keyspace.name)
        if word in ("CREATE", "ALTER"):
            tokens.take("TABLE")
            name = keyspace.create(tokens) if word == "CREATE" else keyspace.alter(tokens)
            change = (f"{word}D".replace("RD", "RED").replace("ALTERED", "UPDATED"), "TABLE")
            words = b"".join(map(_text, (*change, keyspace.name, name)))
            return _RESULT, struct.pack(">i", _SCHEMA_CHANGE) + words
        if word != "INSERT":
            raise Refused(f"no viable alternative at {word}")
        keyspace.write(keyspace.insert(tokens), ())
        return _RESULT, struct.pack(">i", _VOID)

    def _select(self, tokens: Tokens) -> Answer:
        names = list(_LOCAL) if tokens.has("*") else [tokens.name()]
        while tokens.has(","):
            names.append(tokens.name())
        tokens.take("FROM")
        source = tokens.name()
        if source in ("system.local", "system.peers"):
            columns = [(name, _LOCAL.get(name, ("inet", b""))) for name in names]
            rows = [[data for _, (_, data) in columns]] if source == "system.local" else []
            return self._rows([(name, kind) for name, (kind, _) in columns], rows)
        if source == "system_schema.columns":
            tokens.take("WHERE KEYSPACE_NAME =")
            if names != ["table_name", "column_name"] or tokens.value() != self.keyspace.name:
                raise Refused("not what is known here")
            found = [
                [table.encode(), column.encode()]
                for table, stored in self.keyspace.tables.items()
                for column in stored.types
            ]
            return self._rows([(name, "text") for name in names], found)
        types = self.keyspace.stored(source).types
        tokens.end()
        if not set(names) <= set(types):
            raise Refused(f"undefined column among {names}")
        columns = [(name, types[name]) for name in names]
        stored = self.keyspace.rows(source)
        values = [[encoded(row[name], kind) for name, kind in columns] for row in stored]
        return self._rows(columns, values)

    def _rows(self, columns: list[Bind], rows: Sequence[Sequence[bytes | None]]) -> Answer:
        begin = struct.pack(">iii", _ROWS, 1, len(columns)) + self._place("rows")
        values = b"".join(_value(each) for row in rows for each in row)
        return _RESULT, begin + _columns(columns) + struct.pack(">i", len(rows)) + values

    def _place(self, table: str) -> bytes:
        return _text(self.keyspace.name) + _text(table)


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def _texts(texts: list[str]) -> bytes:
    return struct.pack(">H", len(texts)) + b"".join(map(_text, texts))


def _value(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _columns(columns: list[Bind]) -> bytes:
    return b"".join(_text(name) + struct.pack(">H", _CODES[kind]) for name, kind in columns)


def _failed(code: int, message: str) -> Answer:
    return _ERROR, struct.pack(">i", code) + _text(message)


@contextmanager
def cassandra_server(keyspace: str, username: str, password: str) -> Iterator[tuple[Any, int]]:
    """The server and its port."""
    state = CassandraServer(keyspace, username, password)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            # The driver closes its connections without a word.
            with contextlib.suppress(ConnectionError):
                while _serve(state, self.rfile, self.wfile):
                    pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield state, server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _serve(state: CassandraServer, incoming: BinaryIO, outgoing: BinaryIO) -> bool:
    """Answers one request; whether there was one."""
    head = incoming.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return False
    version, _, stream, operation, size = _HEADER.unpack(head)
    body = incoming.read(size)
    if version == VERSION:
        kind, content = state.answered(operation, body)
    else:
        kind, content = _failed(
            _PROTOCOL_ERROR, f"Invalid or unsupported protocol version ({version})"
        )
    outgoing.write(_HEADER.pack(0x80 | VERSION, 0, stream, kind, len(content)) + content)
    return True
