"""The two objects of a run in an object store: the results document, and its rows as JSON lines.

Their names have the id of the run, so a second delivery of the same run replaces the first. The
document is written last: a run that has one is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from squall.reporting.outputs.rows.as_json import objects_of
from squall.reporting.outputs.rows.from_document import RunRows


def run_objects(document: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, bytes]]:
    """Name, content type and content."""
    from squall.reporting.document.build import encode_document

    rows = RunRows(document)
    lines = [json.dumps(made) for _, made in objects_of(rows)]
    folder = f"{prefix.strip('/')}/{rows.run_id}".lstrip("/")
    yield f"{folder}/rows.jsonl", "application/x-ndjson", ("\n".join(lines) + "\n").encode()
    yield f"{folder}/results.json", "application/json", encode_document(document)


def bucket_and_prefix(url: str, scheme: str) -> tuple[str, str]:
    """The parts of `s3://bucket/prefix`."""
    bucket, _, prefix = url.removeprefix(f"{scheme}://").partition("/")
    if not bucket or "://" in bucket:
        raise ValueError(f"write {scheme}://BUCKET/PREFIX")
    return bucket, prefix
