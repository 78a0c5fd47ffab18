"""A connection to MongoDB: pymongo's, without its search for servers, its pool and its retries.

pymongo greets the server, logs in, encodes and decodes. A load test must see every failure, so the
session never retries, and each connection belongs to one call at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bson.errors import BSONError
from pymongo.asynchronous.pool import AsyncConnection, Pool
from pymongo.auth_shared import (
    _build_credentials_tuple,  # pyright: ignore[reportPrivateUsage]
)
from pymongo.errors import (
    ConnectionFailure,
    DocumentTooLarge,
    NotPrimaryError,
    OperationFailure,
    ProtocolError,
)
from pymongo.network_layer import AsyncNetworkingInterface
from pymongo.pool_options import PoolOptions

from squall.api.errors import CallError

# What a connection raises that the server or the network ended.
LOST = (OSError, ConnectionFailure, ProtocolError)
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z0-9])")
# Errors of single documents come without a name.
_NAMES = {11000: "DuplicateKey", 11001: "DuplicateKey", 121: "DocumentValidationFailure"}


class CommandAnswer(NamedTuple):
    """The server's answer. `commands` is the number of commands sent; `code` is empty unless the
    server refused one."""

    reply: Mapping[str, Any]
    rows: list[dict[str, Any]]
    commands: int = 1
    error: str = ""
    code: str = ""
    message: str = ""


class MongoDBSession:
    """A connection whose log-in is done."""

    __slots__ = ("_connection", "_database", "_pool", "_transport")

    def __init__(self, connection: Any, database: str, pool: Any, transport: Any) -> None:
        self._connection = connection
        self._database = database
        # The connection only refers to it weakly.
        self._pool = pool
        self._transport = transport

    async def run(self, command: dict[str, Any]) -> CommandAnswer:
        """Runs a command, and fetches all documents of its cursor."""
        connection, database = self._connection, self._database
        rows: list[dict[str, Any]] = []
        commands = 1
        try:
            reply = await connection.command(database, command)
            cursor = reply.get("cursor")
            if not cursor:
                return _checked(reply)
            rows += cursor["firstBatch"]
            while cursor["id"]:
                commands += 1
                space = cursor["ns"].partition(".")[2]
                more = {"getMore": cursor["id"], "collection": space}
                if "batchSize" in command:
                    more["batchSize"] = command["batchSize"]
                cursor = (await connection.command(database, more))["cursor"]
                rows += cursor["nextBatch"]
        except (OperationFailure, NotPrimaryError) as error:
            return refusal(error, commands)
        except (BSONError, DocumentTooLarge, TypeError, OverflowError) as error:
            raise CallError(f"the document cannot be sent as BSON: {error}") from None
        return CommandAnswer(reply, rows, commands)

    def is_open(self) -> bool:
        return not self._connection.closed and not self._transport.is_closing()

    def abort(self) -> None:
        self._connection.closed = True
        self._transport.abort()


async def greet(
    transport: Any, protocol: Any, place: tuple[str, int], login: Mapping[str, str]
) -> MongoDBSession:
    """Makes a session of an open connection. `login` has `user`, `password`, `database`, and the
    options of the address."""
    credentials = None
    if login["user"]:
        credentials = _build_credentials_tuple(
            login.get("authMechanism", "DEFAULT"),
            login.get("authSource"),
            login["user"],
            login["password"],
            {},
            login["database"] or None,
        )
    options = PoolOptions(credentials=credentials, is_sync=False)
    pool = Pool(place, options)
    network = AsyncNetworkingInterface((transport, protocol))
    connection = AsyncConnection(network, pool, place, 1, False)
    await connection.hello()
    await connection.authenticate()
    return MongoDBSession(connection, login["database"] or "test", pool, transport)


def refusal(error: Any, commands: int = 1) -> CommandAnswer:
    """The answer of a server that refused a command."""
    details: Mapping[str, Any] = error.details or {}
    code = details.get("code") or error.code or 0
    message = details.get("errmsg") or str(error)
    reason = reason_of(code, details.get("codeName", ""))
    return CommandAnswer({}, [], commands, reason, str(code), message)


def reason_of(code: int, name: str) -> str:
    """The error in words, like "write conflict (112)"."""
    words = " ".join(_WORD.split(name or _NAMES.get(code, "CommandFailed"))).lower()
    return f"{words} ({code})"


def _checked(reply: Mapping[str, Any]) -> CommandAnswer:
    """The answer to a write, which may have failed for some documents only."""
    failed = [*reply.get("writeErrors", ()), *filter(None, [reply.get("writeConcernError")])]
    if not failed:
        return CommandAnswer(reply, [])
    code = failed[0].get("code", 0)
    reason = reason_of(code, failed[0].get("codeName", ""))
    return CommandAnswer(reply, [], 1, reason, str(code), failed[0].get("errmsg", ""))
