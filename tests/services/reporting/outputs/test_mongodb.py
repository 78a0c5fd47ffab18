"""The real client of MongoDB against a server that keeps documents as the database does."""

from __future__ import annotations

from typing import Any

from tests.services.reporting.lab.contract import check_rows, delivered, one_run, shorter
from tests.services.reporting.lab.mongodb_server import mongodb_server


def test_each_run_is_there_once() -> None:
    with mongodb_server() as (server, url):
        for document in (one_run(), one_run("other"), shorter(one_run())):
            assert delivered(document, f"mongodb={url},database=load") == []
    for run, document in (("01J9Z4", shorter(one_run())), ("other", one_run("other"))):
        stored: dict[str, list[dict[str, Any]]] = {}
        for name, documents in server.databases["load"].items():
            own = [each for each in documents.values() if each["run_id"] == run]
            if own:
                stored[name.removeprefix("squall_")] = own
        check_rows(document, stored)
