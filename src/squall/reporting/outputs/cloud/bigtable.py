"""Bigtable by google-cloud-bigtable: one row per row, in one table with the family `squall`.

The key of a row is `RUN#TABLE#POSITION`, so a run is one range. Each column of the row model is a
cell with its value as JSON. It deletes the rows that only an earlier delivery had, and writes the
row of the run last.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.blocking_calls import in_thread
from squall.reporting.outputs.cloud.google import GoogleAccess, client_options
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.output_error import OutputError
from squall.reporting.outputs.rows.as_json import batches, iso
from squall.reporting.outputs.rows.from_document import Row, RunRows
from squall.reporting.outputs.rows.model import RUNS, Table

FAMILY = "squall"
_BATCH = 1_000
"""Rows of one request; each has at most 40 cells, and Bigtable takes 100,000."""


@dataclass(frozen=True)
class BigtableConfig(GoogleAccess):
    instance: str
    table: str = "squall"
    """It must exist, with the column family `squall`."""


class BigtableReporter(RunReporter):
    def __init__(self, config: BigtableConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s

    async def submit(self, document: dict[str, Any]) -> None:
        await in_thread(self._write, RunRows(document))

    def _write(self, rows: RunRows) -> None:
        bigtable = library("google.cloud.bigtable")

        with _emulator(self.config.endpoint):
            client = bigtable.Client(**client_options(self.config))
            # Made here, while the variable is set.
            assert client.table_data_client is not None
        try:
            place = client.instance(self.config.instance).table(self.config.table)
            written = [
                self._row(place, table, row)
                for table, own in rows.all()
                if table is not RUNS
                for row in own
            ]
            _mutate(place, written)
            self._delete_surplus(place, rows.run_id, {row.row_key for row in written})
            _mutate(place, [self._row(place, RUNS, row) for row in rows.of(RUNS)])
        finally:
            client.close()

    def _row(self, place: Any, table: Table, row: Row) -> Any:
        made = place.direct_row(row_key(table, row))
        # Cells of an earlier delivery have other times and would stay.
        made.delete()
        for name, value in zip(table.names, row, strict=True):
            made.set_cell(FAMILY, name, json.dumps(iso(value)).encode())
        return made

    def _delete_surplus(self, place: Any, run_id: str, written: set[bytes]) -> None:
        filters = library("google.cloud.bigtable.row_filters")
        of_run = library("google.cloud.bigtable.row_set").RowSet()
        of_run.add_row_range_with_prefix(f"{run_id}#")
        stored = place.read_rows(row_set=of_run, filter_=filters.StripValueTransformerFilter(True))
        run_key = f"{run_id}#{RUNS.name}".encode()
        surplus = [each.row_key for each in stored if each.row_key not in {*written, run_key}]
        deleted = [place.direct_row(key) for key in surplus]
        for each in deleted:
            each.delete()
        _mutate(place, deleted)


def row_key(table: Table, row: Row) -> bytes:
    """Positions have a fixed width, so rows are read in their order."""
    return "#".join(
        (row[0], table.name, *(f"{part:06}" for part in row[1 : len(table.key)]))
    ).encode()


def _mutate(place: Any, rows: list[Any]) -> None:
    for batch in batches(rows, _BATCH):
        failed = [each for each in place.mutate_rows(list(batch)) if each.code]
        if failed:
            raise OutputError(f"{len(failed)} rows were refused: {failed[0].message}")


@contextmanager
def _emulator(endpoint: str) -> Generator[None]:
    """Sets the variable while the client is made, which then speaks to this address without TLS."""
    name = "BIGTABLE_EMULATOR_HOST"
    before = os.environ.get(name)
    if endpoint:
        os.environ[name] = endpoint.removeprefix("http://")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Connecting to Bigtable emulator")
            yield
    finally:
        if endpoint:
            os.environ.pop(name)
            os.environ |= {} if before is None else {name: before}
