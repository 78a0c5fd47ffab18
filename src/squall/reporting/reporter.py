"""Where results go: which outputs exist, how they are checked, made and delivered.

Everything that can be wrong with an output (an unknown kind, a place that cannot be
written, a class that cannot be loaded or configured) is said before the first request.
Delivering never raises and never stops at a failure: each output is on its own, and if
one fails while no JSON was written, the document goes to a place of its own. Light on
purpose: it is loaded before a run, what makes the files only after it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.api.errors import SquallError, UsageError
from squall.api.reporting import Reporter
from squall.reporting.files import check_writable, write_whole

KINDS = ("json", "csv", "junit", "markdown", "xml", "html")
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""A file that the CI system shows with the job; Markdown is appended to it."""
_LONGEST_S = 60.0
"""For one reporter, from connecting to closing: a command must end."""


@dataclass(frozen=True)
class Output:
    """One request for a file or a report, as it was typed."""

    kind: str
    """One of `KINDS`, or `module:Class` or `path.py:Class`."""
    target: str
    flag: str
    """How people are told which: `--json`, `-o json`."""


@dataclass(frozen=True)
class FileConfig:
    """Of the built-in reporters. `csv` writes several files whose names begin alike."""

    path: str
    flag: str
    endings: tuple[str, ...] = ("",)

    @property
    def places(self) -> list[str]:
        return [self.path + ending for ending in self.endings]


@dataclass(frozen=True)
class Prepared:
    """An output that was found good before the run."""

    name: str
    """For messages."""
    reporter: Reporter
    json_path: str = ""
    """Where it leaves the document itself, if it does."""


@dataclass
class Delivery:
    """What became of the outputs."""

    failures: list[str]
    """One line each."""
    told: list[str]
    """What people should know besides, such as the place of the saved document."""


def parse_output(text: str) -> Output:
    """`kind=target` of `-o`; the kind may be a class, which has a colon."""
    kind, equals, target = text.partition("=")
    if not kind or not equals:
        raise UsageError(f"-o {text}: write KIND=TARGET, such as json=results.json")
    if ":" not in kind and kind not in KINDS:
        raise UsageError(
            f"-o {text}: there is no output {kind}; known: {', '.join(KINDS)}, "
            "or your own class as module:Class or file.py:Class"
        )
    if ":" not in kind and not target:
        raise UsageError(f"-o {text}: name a file after the =")
    return Output(kind, target, f"-o {kind}")


def prepare(outputs: Sequence[Output]) -> list[Prepared]:
    """Check and make all of them; files first, so that a slow reporter cannot cost them."""
    prepared = [_prepared(output) for output in outputs]
    seen: dict[str, str] = {}
    for each in prepared:
        for place in places_of(each.reporter):
            real = os.path.realpath(place)
            if not real.startswith("/dev/") and seen.setdefault(real, each.name) is not each.name:
                raise UsageError(f"{each.name} {place}: {seen[real]} writes the same file")
    return sorted(prepared, key=lambda each: (not each.json_path, _is_foreign(each)))


def deliver(
    document: dict[str, Any], prepared: Sequence[Prepared], failures: Sequence[str] = ()
) -> Delivery:
    """Hand the document to each. `failures` are those of reporters that could not be made."""
    delivery = Delivery(list(failures), [])
    saved = ""
    for each in prepared:
        try:
            asyncio.run(_hand_over(each.reporter, document))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            delivery.failures.append(_line(each.name, error))
        else:
            saved = saved or each.json_path
    if delivery.failures:
        delivery.told.append(_fallback(document) if not saved else f"the results are in {saved}")
    return delivery


async def _hand_over(reporter: Reporter, document: dict[str, Any]) -> None:
    async with asyncio.timeout(_LONGEST_S):
        try:
            await reporter.connect()
            await reporter.submit(document)
        except BaseException:
            # What went wrong first is told; that closing failed then is no news.
            with suppress(Exception):
                await reporter.close()
            raise
        await reporter.close()


def _line(name: str, error: BaseException) -> str:
    if isinstance(error, SquallError):
        return str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return f"{name}: took longer than {_LONGEST_S:.0f} s"
    from squall.engine.loading import author_location

    where = author_location(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{name}: {text}" + (f" at {where}" if where else "")


def _fallback(document: dict[str, Any]) -> str:
    """Results are never lost: here, or where everybody may write."""
    import tempfile

    from squall.reporting.document import encode_document

    content = encode_document(document)
    name = f"squall-results-{document['run']['id']}.json"
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        try:
            write_whole(folder / name, content)
        except (UsageError, OSError):
            continue
        return f"the results are kept in {folder / name}"
    return "the results could not be kept anywhere"


class FileReporter(Reporter):
    """A document turned into the bytes of one file or several, each written whole."""

    def __init__(
        self, config: FileConfig, files: Callable[[dict[str, Any]], dict[str, bytes]]
    ) -> None:
        """`files` gives contents by what is added to the path."""
        self.config = config
        self._files = files

    async def submit(self, document: dict[str, Any]) -> None:
        for ending, content in self._files(document).items():
            write_whole(self.config.path + ending, content, self.config.flag)


class MarkdownReporter(FileReporter):
    """The file, and the step summary of the CI system where there is one."""

    async def submit(self, document: dict[str, Any]) -> None:
        await super().submit(document)
        summary = os.environ.get(STEP_SUMMARY)
        if summary:
            _append(summary, self._files(document)[""] + b"\n")


def _append(path: str, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(content)


def _prepared(output: Output) -> Prepared:
    if ":" in output.kind:
        from squall.reporting.own import load_reporter

        return Prepared(output.flag, load_reporter(output.kind, output.target))
    endings = tuple(_CSV_ENDINGS.values()) if output.kind == "csv" else ("",)
    config = FileConfig(output.target, output.flag, endings)
    make = MarkdownReporter if output.kind == "markdown" else FileReporter
    reporter = make(config, _RENDERERS[output.kind])
    for place in config.places:
        check_writable(place, output.flag)
    return Prepared(output.flag, reporter, output.target if output.kind == "json" else "")


def places_of(reporter: Reporter) -> list[str]:
    """The files that it writes, as far as we know."""
    return reporter.config.places if isinstance(reporter, FileReporter) else []


def _is_foreign(each: Prepared) -> bool:
    return not isinstance(each.reporter, FileReporter)


_CSV_ENDINGS = {name: f"_{name}.csv" for name in ("steps", "windows", "errors")}


def _json(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.document import encode_document

    return {"": encode_document(document)}


def _csv(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.csv_files import render_csv

    return {_CSV_ENDINGS[name]: content for name, content in render_csv(document).items()}


def _junit(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.junit import render_junit

    return {"": render_junit(document)}


def _markdown(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.markdown import render_markdown

    return {"": render_markdown(document).encode()}


def _xml(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.xml_file import render_xml

    return {"": render_xml(document)}


def _html(document: dict[str, Any]) -> dict[str, bytes]:
    from squall.reporting.html import render_html
    from squall.reporting.rebuilding import rebuild
    from squall.reporting.summary import render_summary

    return {"": render_html(document, render_summary(rebuild(document))).encode()}


_RENDERERS: dict[str, Callable[[dict[str, Any]], dict[str, bytes]]] = {
    "json": _json,
    "csv": _csv,
    "junit": _junit,
    "markdown": _markdown,
    "xml": _xml,
    "html": _html,
}
