"""MongoDB by pymongo: one collection per table of the row model.

A row replaces the one with its id. Rows that only an earlier delivery had are deleted, and the row
of the run is written last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.rows.as_json import batches, object_of
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.targets import Secret

_BATCH = 1_000


@dataclass(frozen=True)
class MongoDBConfig:
    url: str = field(default="mongodb://127.0.0.1:27017", repr=False)
    """`mongodb://user@host:27017/?authSource=admin`, or `mongodb+srv://...`"""
    database: str = "squall"
    username: str = ""
    password: Annotated[str, Secret("MONGODB_PASSWORD")] = field(default="", repr=False)
    timeout_s: float = 60.0


class MongoDBReporter(RunReporter):
    def __init__(self, config: MongoDBConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self._client: Any = None

    async def connect(self) -> None:
        config = self.config
        own: dict[str, Any] = {"username": config.username} if config.username else {}
        if config.password:
            own["password"] = config.password
        limit_ms = round(config.timeout_s * 1e3)
        self._client = library("pymongo").AsyncMongoClient(
            config.url,
            serverSelectionTimeoutMS=limit_ms,
            connectTimeoutMS=limit_ms,
            appname="squall",
            **own,
        )
        await self._client.admin.command("ping")

    async def submit(self, document: dict[str, Any]) -> None:
        replace = library("pymongo").ReplaceOne
        rows = RunRows(document)
        database = self._client[self.config.database]
        for table, own in rows.all():
            collection = database[f"squall_{table.name}"]
            objects = [object_of(table, row) for row in own]
            for batch in batches(objects, _BATCH):
                await collection.bulk_write(
                    [replace({"_id": each["id"]}, each, upsert=True) for each in batch],
                    ordered=False,
                )
            if "position" in table.names:
                await collection.create_index("run_id")
                await collection.delete_many(
                    {"run_id": rows.run_id, "position": {"$gte": len(objects)}}
                )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
