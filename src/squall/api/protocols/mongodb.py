"""The author's API of MongoDB: results, and the verbs of `self.client.mongodb`.

Nothing here does I/O or imports pymongo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypedDict, Unpack

from squall.api.arguments import URL, Document
from squall.api.errors import StatusError
from squall.api.protocols.response import ProtocolResponse

Fields = Mapping[str, Any]


class MongoDBResponse(ProtocolResponse):
    """What MongoDB answered to one command."""

    protocol: ClassVar[str] = "mongodb"

    reply: Mapping[str, Any] = {}
    """The answer of the command; of `find` and `aggregate` the first one."""
    rows: Sequence[dict[str, Any]] = ()
    """The documents of `find` and `aggregate`."""
    row_count: int = 0
    """Documents that were returned, inserted, matched or deleted."""
    code: str = ""
    """The number of the error, such as "11000"; empty if the command did not fail."""
    message: str = ""
    """What the server says about the failure."""

    @property
    def documents(self) -> Sequence[dict[str, Any]]:
        """The documents of `find` and `aggregate`, as `rows`."""
        return self.rows

    @property
    def text(self) -> str:
        """The answer as `--once` and the sample of a failure show it."""
        if self.error:
            return f"{self.error}: {self.message}"
        if self.rows:
            return "\n".join(map(str, self.rows))
        return str({name: value for name, value in self.reply.items() if name != "$clusterTime"})

    def raise_for_status(self) -> None:
        """Raises a `StatusError`, which stops the iteration, if the command failed."""
        if self.error:
            raise StatusError(self.error, self)


class CommandOptions(TypedDict, total=False):
    """The keywords of all verbs."""

    timeout: str | float | None
    """Limit for the command, instead of that of the step; its connection is closed then."""


class FindOptions(CommandOptions, total=False):
    """The keywords of `find`."""

    limit: int
    """The most documents to return; 0 for all."""
    skip: int
    """Documents to leave out at the beginning."""
    sort: Fields
    """Fields to sort by: 1 upwards, -1 downwards."""
    projection: Fields
    """Fields to return."""
    batch_size: int
    """Documents per answer. What does not fit is fetched by further commands of the same call."""


class UpdateOptions(CommandOptions, total=False):
    """The keywords of `update`."""

    many: bool
    """Whether all documents that match are changed, instead of the first one."""
    upsert: bool
    """Whether a document is inserted if none matches."""


class DeleteOptions(CommandOptions, total=False):
    """The keywords of `delete`."""

    many: bool
    """Whether all documents that match are deleted, instead of the first one."""


class MongoDBVerbs(Protocol):
    """`self.client.mongodb`: commands on connections of this user.

    The URL is `mongodb://user:password@host:27017/database` and names one server; replica sets are
    not searched for their primary. A command that the server refuses returns its response, which
    counts as a failure; without an answer a verb raises `TransportError`.
    """

    async def find(
        self,
        url: URL,
        collection: str,
        filter: Document | None = None,
        **options: Unpack[FindOptions],
    ) -> MongoDBResponse:
        """All documents that match the filter."""
        ...

    async def insert(
        self,
        url: URL,
        collection: str,
        documents: Document | Sequence[Document],
        **options: Unpack[CommandOptions],
    ) -> MongoDBResponse:
        """Inserts one document, or a list of them in one command."""
        ...

    async def update(
        self,
        url: URL,
        collection: str,
        filter: Document,
        change: Document,
        **options: Unpack[UpdateOptions],
    ) -> MongoDBResponse:
        """Changes the first document that matches: `{"$set": {"price": 3}}`."""
        ...

    async def delete(
        self, url: URL, collection: str, filter: Document, **options: Unpack[DeleteOptions]
    ) -> MongoDBResponse:
        """Deletes the first document that matches."""
        ...

    async def aggregate(
        self,
        url: URL,
        collection: str,
        pipeline: Document | Sequence[Document],
        **options: Unpack[CommandOptions],
    ) -> MongoDBResponse:
        """All documents that the stages of a pipeline make."""
        ...

    async def command(
        self, url: URL, command: Document, **options: Unpack[CommandOptions]
    ) -> MongoDBResponse:
        """Any other command: `{"count": "orders"}`; its name comes first."""
        ...
