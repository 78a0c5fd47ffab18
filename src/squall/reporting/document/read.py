"""Reads a results document from a file, or reports in one line why it cannot be read.

A document is read and checked completely before it is used. An unknown schema number is refused,
because its values may mean something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from squall.api.errors import UsageError
from squall.reporting.document.build import SCHEMA
from squall.reporting.document.model import ResultsDoc, typed
from squall.stats.histogram import BUCKETS, KIND

_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")


# How the first and the last line of `--out-file` begin.
_FIRST_LINE = b'{"type":"start"'
_LAST_LINE = b'{"type":"end"'


class _EndLine(msgspec.Struct):
    document: msgspec.Raw


@dataclass(frozen=True)
class ResultsFile:
    """A results document from a file, as written and as typed data."""

    path: str
    document: dict[str, Any]
    results: ResultsDoc


def read_results(path: str) -> ResultsFile:
    """Raises `UsageError` if the file is missing, damaged, newer, or no results document."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: could not be read: {error.strerror or error}") from None
    return results_of(path, content)


def results_of(path: str, content: bytes) -> ResultsFile:
    """As `read_results`, of content that somebody else read; `path` is its name in messages."""
    document = _decoded(path, content)
    schema = str(document.get("schema", ""))
    family, _, number = schema.rpartition("/")
    if family != _FAMILY or not number.isdecimal():
        raise _not_ours(path)
    if int(number) != int(_NUMBER):
        raise UsageError(
            f"{path}: has the schema {schema}, but this Squall reads {SCHEMA}; "
            "a newer Squall wrote it: update Squall here"
        )
    try:
        results = typed(document)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: is damaged: {_first_line(error)}") from None
    _check_histograms(path, results)
    return ResultsFile(path, document, results)


def _decoded(path: str, content: bytes) -> dict[str, Any]:
    try:
        value: Any = msgspec.json.decode(_document_in(path, content))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "is cut off" if "truncated" in str(error) else "is not JSON"
        raise UsageError(f"{path}: {what}; write it with squall run --json") from None
    except RecursionError:
        raise _not_ours(path) from None
    if not isinstance(value, dict):
        raise _not_ours(path)
    return cast(dict[str, Any], value)


def _document_in(path: str, content: bytes) -> bytes:
    """The content itself, or the document in the last of the lines of `--out-file`."""
    if not content.startswith(_FIRST_LINE):
        return content
    last = content.rstrip(b"\n").rpartition(b"\n")[2]
    if not last.startswith(_LAST_LINE):
        seconds = content.count(b"\n") - 1
        raise UsageError(
            f"{path}: the run that wrote these lines has not ended: {seconds} seconds of it are "
            "here, and no results document"
        )
    return bytes(msgspec.json.decode(last, type=_EndLine).document)


def _not_ours(path: str) -> UsageError:
    return UsageError(f"{path}: is not a results document; write one with squall run --json")


def _check_histograms(path: str, results: ResultsDoc) -> None:
    """Checks what types cannot express: bucket numbers, and lists of equal length."""
    for workflow in results.workflows:
        for row in (*workflow.steps, workflow.iteration):
            windows = row.windows
            size = len(windows.count)
            lists = (windows.failed, windows.p50, windows.p95, windows.p99, windows.buckets)
            name = f"{workflow.name}.{row.name or 'iteration'}"
            if any(len(each) != size for each in lists):
                raise UsageError(f"{path}: is damaged: the windows of {name} differ in length")
            if row.histogram.kind != KIND:
                raise UsageError(f"{path}: histogram kind {row.histogram.kind} is not {KIND}")
            for buckets in (row.histogram.buckets, *windows.buckets):
                if any(not 0 <= index < BUCKETS or count < 0 for index, count in buckets):
                    raise UsageError(f"{path}: is damaged: {name} has a bucket out of range")


def _first_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))
