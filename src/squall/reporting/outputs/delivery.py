"""Checks outputs before a run and delivers the results document to them after it.

Squall reports every mistake in an output (an unknown kind, a file that cannot be written, a class
that cannot be loaded or configured) before the first request. Delivery never raises and never stops
at a failure: outputs are independent, and if one fails and no JSON was written, the document is
saved to a fallback file, which the line about the failure names. A run imports this module before
it starts, so it imports little; the modules that render files are imported after the run.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from squall.api.errors import SquallError, UsageError
from squall.api.reporting import LiveReporter, RunReporter
from squall.reporting.output_files import write_whole
from squall.reporting.outputs.output_error import OutputError
from squall.reporting.outputs.registry import KINDS
from squall.reporting.redaction import without_credentials

T = TypeVar("T")

# Time limit for one reporter, from `connect` to `close`: a reporter that hangs must not keep the
# command from exiting. Built-in ones have a `timeout_s` of their own.
_LONGEST_S = 60.0
# Time limit for `close` after a failure, which a server that hangs may never answer.
_CLOSES_WITHIN_S = 5.0
# A library may put a whole answer into its message.
_MESSAGE_CHARS = 400


@dataclass(frozen=True)
class Output:
    """An output as the user typed it."""

    kind: str
    """A name in `registry`, or `module:Class` or `path.py:Class`."""
    target: str
    flag: str
    """Its name in messages: `--json`, `-o json`."""


@dataclass(frozen=True)
class PreparedOutput:
    """An output that passed its checks before the run."""

    name: str
    """For messages."""
    reporter: RunReporter | LiveReporter
    """A live one was fed during the run; it gets the document only if it is a reporter too."""
    json_path: str = ""
    """The file to which it writes the document itself; empty if it does not."""
    places: tuple[str, ...] = ()
    """The files that it writes, as far as they are known."""
    secrets: tuple[str, ...] = ()
    """Values of its configuration that no message may show."""


def parse_output(text: str) -> Output:
    """Parses `kind=target` of `-o`; a kind with a colon is a class."""
    kind, equals, target = text.partition("=")
    if not kind or not equals:
        shown = without_credentials(text)
        raise UsageError(f"-o {shown}: write KIND=TARGET, such as json=results.json")
    if ":" not in kind and kind not in KINDS:
        raise UsageError(
            f"-o {without_credentials(text)}: there is no output {kind}; "
            f"known: {', '.join(KINDS)}, or your own class as module:Class or file.py:Class"
        )
    if ":" not in kind and not target:
        raise UsageError(f"-o {text}: write a target after the =, as {KINDS[kind].example}")
    return Output(kind, target, f"-o {kind}")


def prepare(outputs: Sequence[Output]) -> list[PreparedOutput]:
    """Checks and creates all outputs; files come first, so that a slow reporter cannot delay
    them."""
    prepared = [_prepared(output) for output in outputs]
    seen: dict[str, str] = {}
    for each in prepared:
        for place in each.places:
            real = os.path.realpath(place)
            if not real.startswith("/dev/") and seen.setdefault(real, each.name) is not each.name:
                raise UsageError(f"{each.name} {place}: {seen[real]} writes the same file")
    return sorted(prepared, key=lambda each: (not each.json_path, not each.places))


def secrets_of(prepared: Sequence[PreparedOutput]) -> list[str]:
    return [secret for each in prepared for secret in each.secrets]


def deliver(
    document: dict[str, Any],
    prepared: Sequence[PreparedOutput],
    failures: Sequence[str] = (),
    saved: str = "",
) -> list[str]:
    """Delivers the document to each reporter. Returns a line for each that failed: why, where the
    document is, and how to write it again. `failures` names reporters that could not be created;
    `saved` is a file that has the document already."""
    failed = [("", line) for line in failures]
    due = [(each, each.reporter) for each in prepared if isinstance(each.reporter, RunReporter)]
    for (each, reporter), error in zip(due, _run(_hand_over_all(document, due)), strict=True):
        if error is not None:
            failed.append((each.name, _line(each.name, reporter, error)))
        else:
            saved = saved or each.json_path
    if not failed:
        return []
    place = saved or _fallback(document)
    return [f"{line}; {_retry(name, place)}" for name, line in failed]


def _retry(name: str, place: str) -> str:
    """How to write the document again to the output of this name; "" if no flag names it."""
    if not place:
        return "the results could not be kept anywhere"
    if name.startswith("-o "):
        return f"to write it again: squall report {shlex.quote(place)} {name}=..."
    if name.startswith("--"):
        return f"to write it again: squall report {shlex.quote(place)} {name} ..."
    return f"the results are in {place}"


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine. Inside a running loop (`squall.run` in a notebook) it uses a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


async def _hand_over_all(
    document: dict[str, Any], due: Sequence[tuple[PreparedOutput, RunReporter]]
) -> list[BaseException | None]:
    """Delivers to all outputs and returns the failure of each. Files are written one after the
    other; then all others get the document at the same time, so that a slow one delays no other."""
    failures: list[BaseException | None] = [None] * len(due)
    others: list[int] = []
    for place, (output, reporter) in enumerate(due):
        if output.places:
            failures[place] = await _failure(reporter, document)
        else:
            others.append(place)
    found = await asyncio.gather(*(_failure(due[place][1], document) for place in others))
    for place, failure in zip(others, found, strict=True):
        failures[place] = failure
    return failures


async def _failure(reporter: RunReporter, document: dict[str, Any]) -> BaseException | None:
    try:
        await _hand_over(reporter, document)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return error
    return None


async def _hand_over(reporter: RunReporter, document: dict[str, Any]) -> None:
    async with asyncio.timeout(_longest_s(reporter)):
        try:
            await reporter.connect()
            await reporter.submit(document)
        except BaseException:
            # Only the first failure is reported; a failing `close` after it adds nothing.
            with suppress(Exception):
                async with asyncio.timeout(_CLOSES_WITHIN_S):
                    await reporter.close()
            raise
        await reporter.close()


def _longest_s(reporter: RunReporter) -> float:
    return float(getattr(reporter, "timeout_s", _LONGEST_S))


def _line(name: str, reporter: RunReporter, error: BaseException) -> str:
    if isinstance(error, SquallError):
        return str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return f"{name}: took longer than {_longest_s(reporter):g} s"
    if isinstance(error, OutputError):
        return f"{name}: {error}"
    from squall.engine.plan.author_file import author_location

    where = author_location(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if len(text) > _MESSAGE_CHARS:
        text = text[:_MESSAGE_CHARS] + " ..."
    return f"{name}: {text}" + (f" at {where}" if where else "")


def _fallback(document: dict[str, Any]) -> str:
    """Saves the document in the current folder, or in the temporary one, so that it is never
    lost. Returns the file; "" if neither can be written."""
    import tempfile

    from squall.reporting.document.build import encode_document

    content = encode_document(document)
    name = f"squall-results-{document['run']['id']}.json"
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        try:
            write_whole(folder / name, content)
        except (UsageError, OSError):
            continue
        return str(folder / name)
    return ""


def _prepared(output: Output) -> PreparedOutput:
    if ":" in output.kind:
        from squall.reporting.outputs.user_reporters import load_reporter

        own = load_reporter(output.kind, output.target)
        return PreparedOutput(output.flag, own.made, secrets=own.secrets)
    kind = KINDS[output.kind]
    created = kind.create(output.target, output.flag)
    return PreparedOutput(
        output.flag,
        created.made,
        json_path=output.target if kind.name == "json" else "",
        places=tuple(getattr(created.made, "places", ())),
        secrets=created.secrets,
    )
