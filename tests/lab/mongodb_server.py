"""A server of MongoDB's wire protocol in a thread of its own, with its documents in memory.

Filters and updates know what the tests use: equal fields, `$set`, `$inc`, `$match`, `$group` by
`_id: None` with `$sum`. The command `hang` is never answered, `fail` with an error of its own code.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import bson

from tests.lab.ports import free_ports

_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_ROUNDS = 4096
_SALT = b"0123456789abcdef"
Document = dict[str, Any]


class MongoDBServer:
    """What the server saw: commands by name, connections, documents by collection."""

    def __init__(self, username: str = "", password: str = "", port: int = 0) -> None:
        self.commands: Counter[str] = Counter()
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self.documents: defaultdict[str, list[Document]] = defaultdict(list)
        self.port = port or free_ports(1)[0]
        self.username, self.password = username, password
        self.batch = 2
        self._cursors: dict[int, tuple[str, list[Document]]] = {}
        self._ids = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/shop"

    @property
    def calls(self) -> Counter[str]:
        """The commands, without those of the handshake."""
        handshake = {"hello", "isMaster", "ismaster", "saslStart", "saslContinue"}
        return Counter({k: n for k, n in self.commands.items() if k not in handshake})

    def begin(self) -> None:
        self._thread.start()
        self.start()

    def start(self) -> None:
        """Listens, again on the same port after `kill`."""
        self._do(self._listen())

    def kill(self) -> None:
        """Stops listening and resets every connection."""
        self._do(self._reset())

    def end(self) -> None:
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _reset(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self._writers.add(writer)
        login = _Login(self.username, self.password)
        try:
            while True:
                length, number, _, kind = _HEADER.unpack(await reader.readexactly(16))
                body = await reader.readexactly(length - 16)
                command, sections = _command_in(kind, body)
                answer = self._answer(command, sections, login)
                if answer is not None:
                    writer.write(_reply(kind, number, answer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            self.open -= 1
            writer.close()

    def _answer(
        self, command: Document, sections: dict[str, list[Document]], login: _Login
    ) -> Document | None:
        name = next(iter(command))
        self.commands[name] += 1
        if name in ("hello", "isMaster", "ismaster"):
            return _hello(login.mechanisms)
        if name in ("saslStart", "saslContinue"):
            return login.answer(name, command)
        if not login.done:
            return _error(13, "Unauthorized", f"Command {name} requires authentication")
        if name == "hang":
            return None
        handler: Callable[..., Document] | None = getattr(self, f"_do_{name}", None)
        if handler is None:
            return _error(59, "CommandNotFound", f"no such command: '{name}'")
        return handler(command, sections)

    def _do_ping(self, command: Document, sections: Any) -> Document:
        return {"ok": 1.0}

    def _do_buildInfo(self, command: Document, sections: Any) -> Document:
        return {"version": "7.0.0", "ok": 1.0}

    def _do_fail(self, command: Document, sections: Any) -> Document:
        return _error(112, "WriteConflict", "the documents changed meanwhile")

    def _do_find(self, command: Document, sections: Any) -> Document:
        found = [
            each for each in self.documents[command["find"]] if _fits(each, command.get("filter"))
        ]
        return self._cursor(command, command["find"], found[: command.get("limit") or None])

    def _do_aggregate(self, command: Document, sections: Any) -> Document:
        found = self.documents[command["aggregate"]]
        for stage in command["pipeline"]:
            if "$match" in stage:
                found = [each for each in found if _fits(each, stage["$match"])]
            else:
                found = [_grouped(found, stage["$group"])]
        return self._cursor(command, command["aggregate"], found)

    def _cursor(self, command: Document, name: str, found: list[Document]) -> Document:
        space = f"{command['$db']}.{name}"
        cursor = 0
        if len(found) > self.batch:
            cursor = next(self._ids)
            self._cursors[cursor] = (space, found[self.batch :])
        return {"cursor": {"id": cursor, "ns": space, "firstBatch": found[: self.batch]}, "ok": 1.0}

    def _do_getMore(self, command: Document, sections: Any) -> Document:
        space, rest = self._cursors.pop(command["getMore"])
        return {"cursor": {"id": 0, "ns": space, "nextBatch": rest}, "ok": 1.0}

    def _do_insert(self, command: Document, sections: dict[str, list[Document]]) -> Document:
        collection = self.documents[command["insert"]]
        errors: list[Document] = []
        made = 0
        for place, each in enumerate(_list(command, sections, "documents")):
            each.setdefault("_id", bson.ObjectId())
            if any(known["_id"] == each["_id"] for known in collection):
                text = f"E11000 duplicate key error: {each['_id']!r}"
                errors.append({"index": place, "code": 11000, "errmsg": text})
                break
            collection.append(each)
            made += 1
        return {"n": made, "ok": 1.0, **({"writeErrors": errors} if errors else {})}

    def _do_update(self, command: Document, sections: dict[str, list[Document]]) -> Document:
        changed = 0
        for update in _list(command, sections, "updates"):
            matched = 0
            for each in self.documents[command["update"]]:
                if _fits(each, update["q"]):
                    each.update(update["u"].get("$set", {}))
                    for field, step in update["u"].get("$inc", {}).items():
                        each[field] = each.get(field, 0) + step
                    changed += 1
                    matched += 1
                    if not update.get("multi"):
                        break
            if not matched and update.get("upsert"):
                made = dict(update["q"]) | update["u"].get("$inc", {})
                self.documents[command["update"]].append(made)
                changed += 1
        return {"n": changed, "nModified": changed, "ok": 1.0}

    def _do_delete(self, command: Document, sections: dict[str, list[Document]]) -> Document:
        gone = 0
        collection = self.documents[command["delete"]]
        for delete in _list(command, sections, "deletes"):
            for each in [each for each in collection if _fits(each, delete["q"])]:
                collection.remove(each)
                gone += 1
                if delete.get("limit"):
                    break
        return {"n": gone, "ok": 1.0}


class _Login:
    """SCRAM-SHA-256 (RFC 5802, 7677) from the server's side."""

    def __init__(self, username: str, password: str) -> None:
        self.done = not username
        self.mechanisms = ["SCRAM-SHA-256"] if username else []
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), _SALT, _ROUNDS)
        client = hmac.digest(salted, b"Client Key", "sha256")
        self._stored = hashlib.sha256(client).digest()
        self._server_key = hmac.digest(salted, b"Server Key", "sha256")
        self._username = username
        self._messages = b""

    def answer(self, name: str, command: Document) -> Document:
        payload = bytes(command["payload"])
        if name == "saslStart":
            if command["mechanism"] not in self.mechanisms:
                return _error(334, "MechanismUnavailable", "use SCRAM-SHA-256")
            bare = payload.removeprefix(b"n,,")
            fields = dict(part.split(b"=", 1) for part in bare.split(b","))
            if fields[b"n"].decode() != self._username:
                return _error(18, "AuthenticationFailed", "Authentication failed.")
            salt = base64.b64encode(_SALT)
            first = b"r=%bserver,s=%b,i=%d" % (fields[b"r"], salt, _ROUNDS)
            self._messages = bare + b"," + first
            return {"conversationId": 1, "done": False, "payload": first, "ok": 1.0}
        without, _, proof = payload.rpartition(b",p=")
        self._messages += b"," + without
        signature = hmac.digest(self._stored, self._messages, "sha256")
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.sha256(key).digest() != self._stored:
            return _error(18, "AuthenticationFailed", "Authentication failed.")
        self.done = True
        verifier = base64.b64encode(hmac.digest(self._server_key, self._messages, "sha256"))
        return {"conversationId": 1, "done": True, "payload": b"v=" + verifier, "ok": 1.0}


def _hello(mechanisms: list[str]) -> Document:
    return {
        **{"helloOk": True, "ismaster": True, "isWritablePrimary": True, "readOnly": False},
        **{"minWireVersion": 0, "maxWireVersion": 21, "maxBsonObjectSize": 16 << 20},
        **{"maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000},
        **{"logicalSessionTimeoutMinutes": 30, "connectionId": 1, "ok": 1.0},
        **({"saslSupportedMechs": mechanisms} if mechanisms else {}),
    }


def _error(code: int, name: str, text: str) -> Document:
    return {"ok": 0.0, "code": code, "codeName": name, "errmsg": text}


def _command_in(kind: int, body: bytes) -> tuple[Document, dict[str, list[Document]]]:
    """The command, and lists of documents that stand in sections of their own."""
    if kind == _OP_QUERY:
        start = body.index(b"\0", 4) + 9
        return bson.decode(body[start:]), {}
    assert kind == _OP_MSG
    command: Document = {}
    sections: dict[str, list[Document]] = {}
    at = 4
    while at < len(body):
        is_list, at = body[at] == 1, at + 1
        (size,) = struct.unpack_from("<i", body, at)
        part = body[at : at + size]
        at += size
        if is_list:
            end = part.index(b"\0", 4)
            sections[part[4:end].decode()] = bson.decode_all(part[end + 1 :])
        else:
            command = bson.decode(part)
    return command, sections


def _reply(kind: int, number: int, answer: Document) -> bytes:
    document = bson.encode(answer)
    if kind == _OP_QUERY:
        body = struct.pack("<iqii", 8, 0, 0, 1) + document
    else:
        body = b"\0\0\0\0\0" + document
    answer_kind = _OP_REPLY if kind == _OP_QUERY else _OP_MSG
    return _HEADER.pack(16 + len(body), 0, number, answer_kind) + body


def _list(command: Document, sections: dict[str, list[Document]], name: str) -> list[Document]:
    return sections.get(name) or command.get(name, [])


def _fits(document: Document, wanted: Document | None) -> bool:
    return all(document.get(name) == value for name, value in (wanted or {}).items())


def _grouped(found: list[Document], group: Document) -> Document:
    sums = {name: how["$sum"] for name, how in group.items() if name != "_id"}
    return {"_id": None} | {
        name: sum(each[of[1:]] if isinstance(of, str) else of for each in found)
        for name, of in sums.items()
    }


@contextmanager
def running_mongodb_server(username: str = "", password: str = "") -> Generator[MongoDBServer]:
    """The server on a port of its own."""
    server = MongoDBServer(username, password)
    server.begin()
    try:
        yield server
    finally:
        server.end()
