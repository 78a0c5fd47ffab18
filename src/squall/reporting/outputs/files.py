"""Outputs that are files: each renders the results document after the run and writes it whole.

A run imports this module before it starts, so it imports little; the modules that render are
imported after the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from squall.api.reporting import RunReporter
from squall.reporting.output_files import check_writable, write_whole

Render = Callable[[dict[str, Any]], dict[str, bytes]]
"""Returns contents by the suffix that is added to the path."""

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""A file that the CI system shows with the job; Markdown is appended to it."""
CSV_ENDINGS = {name: f"_{name}.csv" for name in ("steps", "windows", "errors")}


class FileReporter(RunReporter):
    """Renders the document into one or several files and writes each whole."""

    def __init__(
        self, path: str, flag: str, render: Render, endings: tuple[str, ...] = ("",)
    ) -> None:
        self.places = [path + ending for ending in endings]
        self._path = path
        self._flag = flag
        self._render = render
        for place in self.places:
            check_writable(place, flag)

    async def submit(self, document: dict[str, Any]) -> None:
        for ending, content in self._render(document).items():
            write_whole(self._path + ending, content, self._flag)


def json_file(path: str, flag: str) -> FileReporter:
    return FileReporter(path, flag, _json)


def csv_files(path: str, flag: str) -> FileReporter:
    return FileReporter(path, flag, _csv, tuple(CSV_ENDINGS.values()))


def junit_file(path: str, flag: str) -> FileReporter:
    return FileReporter(path, flag, _junit)


def markdown_file(path: str, flag: str) -> FileReporter:
    return MarkdownReporter(path, flag, _markdown)


def xml_file(path: str, flag: str) -> FileReporter:
    return FileReporter(path, flag, _xml)


def html_file(path: str, flag: str) -> FileReporter:
    return FileReporter(path, flag, _html)


class MarkdownReporter(FileReporter):
    """Writes the file, and appends to the CI system's step summary if there is one."""

    async def submit(self, document: dict[str, Any]) -> None:
        await super().submit(document)
        summary = os.environ.get(STEP_SUMMARY)
        if summary:
            _append(summary, self._render(document)[""] + b"\n")


def _append(path: str, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(content)


def _json(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.document.build import encode_document

    return {"": encode_document(document)}


def _csv(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.outputs.csv_files import render_csv

    return {CSV_ENDINGS[name]: content for name, content in render_csv(document).items()}


def _junit(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.outputs.junit import render_junit

    return {"": render_junit(document)}


def _markdown(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.outputs.markdown import render_markdown

    return {"": render_markdown(document).encode()}


def _xml(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.outputs.xml_file import render_xml

    return {"": render_xml(document)}


def _html(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.document.rebuild import rebuild
    from squall.reporting.page.render import render_html
    from squall.reporting.text.summary import render_summary

    return {"": render_html(document, render_summary(rebuild(document))).encode()}
