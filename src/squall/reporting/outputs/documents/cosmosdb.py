"""Azure Cosmos DB (API for NoSQL) by azure-cosmos: one item per row in one container.

The run is the partition key. Each batch of items is written as a whole or not at all. Items that
only an earlier delivery had are deleted, and the item of the run is written last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.rows.as_json import batches, objects_of
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.targets import Secret

_BATCH = 100
"""The most operations that a transactional batch may have."""


@dataclass(frozen=True)
class CosmosDBConfig:
    url: str
    """`https://ACCOUNT.documents.azure.com:443/`"""
    key: Annotated[str, Secret("COSMOSDB_KEY")] = field(default="", repr=False)
    database: str = "squall"
    container: str = "rows"
    timeout_s: float = 60.0


class CosmosDBReporter(RunReporter):
    def __init__(self, config: CosmosDBConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self._client: Any = None
        self._container: Any = None

    async def connect(self) -> None:
        config = self.config
        self._client = library("azure.cosmos.aio").CosmosClient(
            config.url, config.key, user_agent_suffix="squall", connection_timeout=config.timeout_s
        )
        database = await self._client.create_database_if_not_exists(config.database)
        self._container = await database.create_container_if_not_exists(
            config.container, library("azure.cosmos").PartitionKey(path="/run_id")
        )

    async def submit(self, document: dict[str, Any]) -> None:
        rows = RunRows(document)
        *others, run = [made for _, made in objects_of(rows)]
        for batch in batches(others, _BATCH):
            await self._write(rows.run_id, [("upsert", (each,)) for each in batch])
        written = {each["id"] for each in (*others, run)}
        stored = self._container.query_items("SELECT c.id FROM c", partition_key=rows.run_id)
        surplus = [each["id"] async for each in stored if each["id"] not in written]
        for batch in batches(surplus, _BATCH):
            await self._write(rows.run_id, [("delete", (each,)) for each in batch])
        await self._write(rows.run_id, [("upsert", (run,))])

    async def _write(self, run_id: str, operations: list[tuple[str, tuple[Any, ...]]]) -> None:
        await self._container.execute_item_batch(operations, partition_key=run_id)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
