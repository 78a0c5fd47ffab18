"""BigQuery by google-cloud-bigquery: one table per table of the row model.

It deletes the rows of an earlier delivery of the run, then loads the new ones, table by table, the
row of the run last. Load jobs are free; `DELETE` is the reason why the project needs billing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.blocking_calls import in_thread
from squall.reporting.outputs.cloud.google import GoogleAccess, client_options
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.rows.as_json import plain
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import ColumnKind, Table

_TYPES: dict[ColumnKind, str] = {
    "text": "STRING",
    "integer": "INTEGER",
    "real": "FLOAT",
    "flag": "BOOLEAN",
    "time": "TIMESTAMP",
    "json": "JSON",
}


@dataclass(frozen=True)
class BigQueryConfig(GoogleAccess):
    dataset: str
    """It must exist; its tables `squall_steps` and so on are created, and get columns that later
    versions of Squall add."""
    location: str = ""


class BigQueryReporter(RunReporter):
    def __init__(self, config: BigQueryConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s

    async def submit(self, document: dict[str, Any]) -> None:
        await in_thread(self._write, RunRows(document))

    def _write(self, rows: RunRows) -> None:
        bigquery = library("google.cloud.bigquery")

        config = self.config
        client = bigquery.Client(location=config.location or None, **client_options(config))
        try:
            dataset = bigquery.DatasetReference(client.project, config.dataset)
            for table, own in rows.all():
                place = bigquery.Table(dataset.table(f"squall_{table.name}"), fields_of(table))
                client.create_table(place, exists_ok=True, timeout=config.timeout_s)
                self._delete(client, place, rows.run_id)
                if own:
                    objects = [plain(dict(zip(table.names, row, strict=True))) for row in own]
                    self._load(client, place, objects)
        finally:
            client.close()

    def _delete(self, client: Any, place: Any, run_id: str) -> None:
        bigquery = library("google.cloud.bigquery")

        run = bigquery.ScalarQueryParameter("run_id", "STRING", run_id)
        name = f"{place.project}.{place.dataset_id}.{place.table_id}"
        client.query(
            f"DELETE FROM `{name}` WHERE run_id = @run_id",
            job_config=bigquery.QueryJobConfig(query_parameters=[run]),
            timeout=self.config.timeout_s,
        ).result(timeout=self.config.timeout_s)

    def _load(self, client: Any, place: Any, objects: list[dict[str, Any]]) -> None:
        bigquery = library("google.cloud.bigquery")

        job = bigquery.LoadJobConfig(
            schema=place.schema,
            write_disposition=bigquery.WriteDisposition.WRITE_APPEND,
            schema_update_options=[bigquery.SchemaUpdateOption.ALLOW_FIELD_ADDITION],
        )
        client.load_table_from_json(
            objects, place, job_config=job, timeout=self.config.timeout_s
        ).result(timeout=self.config.timeout_s)


def fields_of(table: Table) -> list[Any]:
    bigquery = library("google.cloud.bigquery")

    return [
        # A column that is added later is null in earlier rows.
        bigquery.SchemaField(column.name, _TYPES[column.kind], description=column.meaning)
        for column in table.columns
    ]
