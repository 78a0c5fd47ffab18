"""Amazon Timestream for LiveAnalytics by aiobotocore: one record per row.

Time and dimensions identify a record. A later delivery has a higher version, so it replaces the
earlier one. Timestream cannot delete, so rows that only an earlier delivery had stay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.cloud.aws import AWSAccess, aws_client
from squall.reporting.outputs.rows.as_json import batches, row_id
from squall.reporting.outputs.rows.from_document import Row, RunRows
from squall.reporting.outputs.rows.model import ColumnKind, Table

_BATCH = 100
"""The most records of one request."""
_TYPES: dict[ColumnKind, str] = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "real": "DOUBLE",
    "flag": "BOOLEAN",
    "json": "VARCHAR",
}
_VARCHAR_BYTES = 2_048
"""The most that Timestream stores in a text."""


@dataclass(frozen=True)
class TimestreamConfig(AWSAccess):
    database: str
    """It must exist; its tables `squall_steps` and so on are created."""


class TimestreamReporter(RunReporter):
    def __init__(self, config: TimestreamConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s

    async def submit(self, document: dict[str, Any]) -> None:
        rows = RunRows(document)
        version = time.time_ns() // 1_000_000
        async with aws_client("timestream-write", self.config) as client:
            for table, own in rows.all():
                name = f"squall_{table.name}"
                await self._create(client, name)
                records = [record_of(table, row, rows.started_at, version) for row in own]
                for batch in batches(records, _BATCH):
                    await client.write_records(
                        DatabaseName=self.config.database, TableName=name, Records=batch
                    )

    async def _create(self, client: Any, name: str) -> None:
        # A conflict means that it exists.
        with suppress(client.exceptions.ConflictException):
            await client.create_table(DatabaseName=self.config.database, TableName=name)


def record_of(table: Table, row: Row, started_at: datetime, version: int) -> dict[str, Any]:
    values = dict(zip(table.names, row, strict=True))
    at: datetime = values.get("at", started_at)
    return {
        "Dimensions": [
            {"Name": "run_id", "Value": values["run_id"]},
            {"Name": "row_id", "Value": row_id(table, row)},
        ],
        "MeasureName": table.name,
        "MeasureValueType": "MULTI",
        "MeasureValues": list(_measures(table, values)),
        "Time": str(round(at.timestamp() * 1e3)),
        "TimeUnit": "MILLISECONDS",
        "Version": version,
    }


def _measures(table: Table, values: dict[str, Any]) -> Iterator[dict[str, str]]:
    for column in table.columns:
        value = values[column.name]
        if column.name == "run_id" or column.kind == "time" or value in (None, ""):
            continue
        yield {"Name": column.name, "Type": _TYPES[column.kind], "Value": _text(value)}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = json.dumps(value) if isinstance(value, list | dict) else str(value)
    return text.encode()[:_VARCHAR_BYTES].decode(errors="ignore")
