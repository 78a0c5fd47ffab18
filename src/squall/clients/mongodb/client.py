"""The client of one virtual user for MongoDB: `self.client.mongodb`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast
from urllib.parse import unquote

from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure
from pymongo.network_layer import PyMongoProtocol

from squall.api.arguments import URL, Document
from squall.api.errors import CallError, TransportError
from squall.api.protocols.mongodb import (
    CommandOptions,
    DeleteOptions,
    FindOptions,
    MongoDBResponse,
    UpdateOptions,
)
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.calls.library import Library, LibraryCalls
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.client import HTTPClient
from squall.clients.mongodb.documents import PreparedBSON, plain
from squall.clients.mongodb.session import LOST, MongoDBSession, greet, reason_of
from squall.clients.sql.tls_option import tls_of

# Options of `find` by the names that the command gives them.
_OF_FIND = {
    **{name: name for name in ("limit", "skip", "sort", "projection")},
    "batch_size": "batchSize",
}


async def _open(opening: LibraryOpening) -> MongoDBSession:
    address = opening.address
    tls = tls_of(opening)
    transport, protocol = await asyncio.get_running_loop().create_connection(
        PyMongoProtocol,
        opening.host,
        opening.port,
        ssl=tls,
        server_hostname=opening.host if tls else None,
    )
    login = {**address.query, "user": address.user, "password": address.password}
    login["database"] = unquote(address.path.strip("/"))
    try:
        return await greet(transport, protocol, (opening.host, opening.port), login)
    except OperationFailure as error:
        transport.abort()
        name = (error.details or {}).get("codeName", "")
        reason = reason_of(error.code or 0, name)
        raise TransportError(f"{reason}: {address.origin.where}") from None
    except BaseException:
        transport.abort()
        raise


_LIBRARY = Library(
    open=_open,
    abort=MongoDBSession.abort,
    is_open=MongoDBSession.is_open,
    lost=LOST,
    reason=lambda error: "connection closed before a response",
)


class MongoDBClient:
    """Runs the commands of one user."""

    __slots__ = ("_calls",)

    def __init__(self, http: HTTPClient) -> None:
        self._calls: LibraryCalls[MongoDBSession] = LibraryCalls(http, "mongodb", _LIBRARY)

    async def find(
        self,
        url: URL,
        collection: str,
        filter: Document | None = None,
        **options: Unpack[FindOptions],
    ) -> MongoDBResponse:
        command: dict[str, Any] = {"find": collection, "filter": plain(filter) or {}}
        for name, value in options.items():
            if name in _OF_FIND:
                command[_OF_FIND[name]] = value
        return await self._run(url, command, options)

    async def insert(
        self,
        url: URL,
        collection: str,
        documents: Document | Sequence[Document],
        **options: Unpack[CommandOptions],
    ) -> MongoDBResponse:
        return await self._run(
            url, {"insert": collection, "documents": _listed(documents)}, options
        )

    async def update(
        self,
        url: URL,
        collection: str,
        filter: Document,
        change: Document,
        **options: Unpack[UpdateOptions],
    ) -> MongoDBResponse:
        update = {
            "q": plain(filter),
            "u": plain(change),
            "multi": options.get("many", False),
            "upsert": options.get("upsert", False),
        }
        return await self._run(url, {"update": collection, "updates": [update]}, options)

    async def delete(
        self, url: URL, collection: str, filter: Document, **options: Unpack[DeleteOptions]
    ) -> MongoDBResponse:
        delete = {"q": plain(filter), "limit": 0 if options.get("many") else 1}
        return await self._run(url, {"delete": collection, "deletes": [delete]}, options)

    async def aggregate(
        self,
        url: URL,
        collection: str,
        pipeline: Document | Sequence[Document],
        **options: Unpack[CommandOptions],
    ) -> MongoDBResponse:
        command: dict[str, Any] = {"aggregate": collection, "cursor": {}}
        command["pipeline"] = _listed(pipeline)
        return await self._run(url, command, options)

    async def command(
        self, url: URL, command: Document, **options: Unpack[CommandOptions]
    ) -> MongoDBResponse:
        given = command.value if isinstance(command, PreparedBSON) else command
        if not isinstance(given, Mapping) or not given:
            raise CallError("a command is a dict whose first name is that of the command")
        return await self._run(url, dict(cast("Mapping[str, Any]", given)), options)

    async def probe(self, url: URL) -> PingAnswer:
        """Asks the server for its version."""
        response = await self.command(url, {"buildInfo": 1})
        version = response.reply.get("version", "")
        return PingAnswer(f"MongoDB {version}".strip(), response)

    async def _run(self, url: URL, command: dict[str, Any], options: Any) -> MongoDBResponse:
        name = next(iter(command))
        where = command[name]
        operation = f"{name} {where}" if isinstance(where, str) else name
        calls = self._calls
        answer = await calls.call(
            url,
            operation,
            lambda session: session.run(command),
            timeout=options.get("timeout"),
        )
        value = answer.value
        # Those that fetched the rest of the documents.
        calls.counters.sent += value.commands - 1
        calls.counters.replies += value.commands - 1
        count = value.reply.get("n", len(value.rows))
        return calls.done(
            MongoDBResponse(
                *answer.stamps,
                value.error,
                bytes_received=answer.received,
                exchanges=value.commands,
                reply=value.reply,
                rows=value.rows,
                row_count=count if isinstance(count, int) else len(value.rows),
                code=value.code,
                message=value.message,
            )
        )


def _listed(documents: Any) -> list[Any]:
    """One document or a list of them, as a list."""
    given = plain(documents)
    if isinstance(given, Mapping | RawBSONDocument):
        return [given]
    return [plain(each) for each in given]
