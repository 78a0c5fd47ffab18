"""Runs workflows from Python and pytest: `squall.run(Shop, vus=5, duration="3s")`."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import quoted
from squall.api.reporting import METHODS, is_live_reporter, is_reporter, output_kind
from squall.api.workflow import Workflow
from squall.engine.run_options import ProfileFlags
from squall.run_arguments import (
    WorkflowLoad,
    checked_options,
    options_for,
    path_of,
    seconds_of,
)

if TYPE_CHECKING:
    from squall.api.reporting import LiveReporter, RunReporter
    from squall.engine.run_options import RunOptions
    from squall.reporting.outputs.delivery import PreparedOutput
    from squall.reporting.outputs.live.feed import LiveFeed
    from squall.reporting.run_result import Result
    from squall.stats.manifest import FileManifest
    from squall.stats.snapshot import Snapshot


AnyReporter: TypeAlias = "RunReporter | LiveReporter"


class Outputs(TypedDict, total=False):
    """Files to write, as the flags of the same names do."""

    json: str | os.PathLike[str]
    html: str | os.PathLike[str]
    junit: str | os.PathLike[str]
    markdown: str | os.PathLike[str]
    csv: str | os.PathLike[str]
    xml: str | os.PathLike[str]
    out_file: str | os.PathLike[str]
    output: Sequence[str]
    """Any other outputs, live ones too, as `-o` takes them: `["prometheus=:9464"]`."""
    reporting: AnyReporter | Sequence[AnyReporter]
    """Reporters, as `reporting` of a workflow."""


def run(
    workflow: type[Workflow] | str | os.PathLike[str],
    *,
    vus: int | None = None,
    duration: str | float | None = None,
    iterations: int | str | None = None,
    rate: str | float | None = None,
    stages: Sequence[str] = (),
    load: Mapping[str, WorkflowLoad] | None = None,
    host: str = "",
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    thresholds: Sequence[str] = (),
    workers: int | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    seed: int = 0,
    tags: Mapping[str, str] | None = None,
    warmup: str | float | None = None,
    timeout: str | float | None = None,
    insecure: bool = False,
    http2: bool = False,
    traceparent: bool = False,
    cacert: str | os.PathLike[str] = "",
    cert: str | os.PathLike[str] = "",
    cert_key: str | os.PathLike[str] = "",
    proxy: str = "",
    resolve: Mapping[str, str] | None = None,
    **outputs: Unpack[Outputs],
) -> Result:
    """Runs a workflow class (with those it depends on), a file or a URL, and returns the result.

    `vus`, `duration`, `iterations`, `rate` and `stages` replace the load model of the file; `load`
    gives them for each workflow. `html`, `junit`, `json` and the other outputs name files to write.
    `resolve` maps "host:port" to an address. The other arguments are the flags of `squall run` of
    the same name. `timeout` ends a run that is not over by then. It blocks, also inside a running
    event loop, and raises `ConfigError` for a file that cannot run and `UsageError` for a wrong
    argument.
    """
    options = checked_options(
        "squall.run",
        workflow,
        locals(),
        workers=workers,
    )
    prepared = _prepared(outputs)
    feed = _feed(prepared, options)
    try:
        result = _blocking(options, feed)
    except BaseException:
        _warn(feed.wait())
        raise
    _deliver(result, prepared, options, feed)
    return result


def _prepared(outputs: Mapping[str, Any]) -> list[PreparedOutput]:
    """Checks the outputs before the run."""
    from squall.reporting.outputs.delivery import Output, parse_output, prepare
    from squall.reporting.outputs.registry import KINDS

    known = [kind.flag_name for kind in KINDS.values() if kind.flag]
    unknown = [name for name in outputs if name not in (*known, "output", "reporting")]
    if unknown:
        raise UsageError(f"squall.run has no argument {unknown[0]}; outputs: {', '.join(known)}")
    named: list[Output] = []
    for kind in KINDS.values():
        name = kind.flag_name
        place = path_of("squall.run", name, outputs[name]) if name and name in outputs else ""
        if place:
            named.append(Output(kind.name, place, name))
    prepared = prepare([*named, *map(parse_output, outputs.get("output", ()))])
    return [*prepared, *_prepared_reporters(outputs.get("reporting"))]


def _prepared_reporters(value: Any) -> list[PreparedOutput]:
    if value is None:
        return []
    from squall.reporting.outputs.registry import KINDS
    from squall.reporting.outputs.user_reporters import prepared_reporter, reporters_in

    prepared: list[PreparedOutput] = []
    for each in reporters_in(value):
        if not is_reporter(each) and not is_live_reporter(each):
            wanted = f"a reporter has {', '.join(METHODS)}"
            raise UsageError(f"squall.run: reporting={quoted(each)} is not a reporter; {wanted}")
        kind = output_kind(each)
        if kind in KINDS:
            KINDS[kind].check_installed("squall.run: reporting")
        prepared.append(prepared_reporter(f"reporting {kind or type(each).__name__}", each))
    return prepared


def _feed(prepared: list[PreparedOutput], options: RunOptions) -> LiveFeed:
    from squall.reporting.outputs.delivery import secrets_of
    from squall.reporting.outputs.live.feed import LiveFeed
    from squall.reporting.redaction import Redactor

    redact = Redactor([*options.secrets.values(), *secrets_of(prepared)])
    return LiveFeed(prepared, options, redact, uses_file=False)


def _deliver(
    result: Result, prepared: list[PreparedOutput], options: RunOptions, feed: LiveFeed
) -> None:
    from squall.reporting.outputs.delivery import deliver, secrets_of
    from squall.reporting.redaction import Redactor

    if not prepared:
        return
    redact = Redactor([*options.secrets.values(), *secrets_of(prepared)])
    document = redact.document(result.document)
    feed.end(document)
    lines = deliver(document, prepared)
    _warn([*map(redact, lines), *feed.wait()])


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        # Not an error: the result must not be lost with a file.
        warnings.warn(f"squall.run: {line}", stacklevel=4)


class LocalRunner:
    """Runs workflows on this machine: `await LocalRunner().run(workflows=[...])`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, workers: int | None = None) -> None:
        # `host` and `port` exist for runners that listen for workers. Core processes talk over
        # socket pairs here, so nothing listens.
        self._workers = workers

    async def run(
        self,
        test_name: str = "",
        workflows: Sequence[tuple[Sequence[str], Workflow] | type[Workflow]] = (),
        terminal_mode: str = "none",
        timeout: str | float | None = None,  # noqa: ASYNC109 the whole run's, not this call's
    ) -> Result:
        """Runs all given workflows, which must be in one file, as one run."""
        classes = [_class_of(entry) for entry in workflows]
        if not classes:
            raise UsageError("LocalRunner.run: no workflows given")
        files = {inspect.getfile(cls) for cls in classes}
        if len(files) > 1:
            raise ConfigError(
                f"the workflows of one run must be in one file, not in {sorted(files)}"
            )
        options = options_for(
            "LocalRunner.run",
            classes[0],
            ProfileFlags(),
            workers=self._workers,
            only=tuple(cls.__name__ for cls in classes),
            tags={"test": test_name} if test_name else {},
            timeout_s=seconds_of("LocalRunner.run", timeout),
        )
        return await _run(options, lines=terminal_mode in ("full", "ci"))


def _class_of(entry: tuple[Sequence[str], Workflow] | type[Workflow]) -> type[Workflow]:
    return entry if isinstance(entry, type) else type(entry[1])


async def _run(options: RunOptions, *, lines: bool = False, feed: LiveFeed | None = None) -> Result:
    from squall.engine.run.controller import stop_signals

    before = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        return await _run_local(options, feed, lines=lines)
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


async def _run_local(options: RunOptions, feed: LiveFeed | None, *, lines: bool) -> Result:
    from squall.engine.run.local_run import run_local
    from squall.reporting.redaction import Redactor
    from squall.reporting.run_result import Result
    from squall.reporting.text.progress_lines import ProgressLines

    progress = ProgressLines(Redactor(options.secrets.values()), quiet=not lines)

    def on_manifest(manifest: FileManifest, processes: int) -> None:
        # Without lines it prints only warnings.
        progress.on_manifest(manifest, processes)
        if feed is not None:
            feed.on_manifest(manifest)

    def on_snapshot(snapshot: Snapshot) -> None:
        progress.on_snapshot(snapshot)
        if feed is not None:
            feed.on_snapshot(snapshot)

    return Result(
        await run_local(
            options,
            on_run=feed.on_run if feed is not None else None,
            on_manifest=on_manifest,
            on_snapshot=on_snapshot,
            on_log=progress.on_log if lines else None,
            histograms=lambda: feed is not None and feed.wants_histograms,
        )
    )


def _blocking(options: RunOptions, feed: LiveFeed) -> Result:
    """Works inside a running loop too (pytest-asyncio, notebooks): it runs in a thread then."""
    if not _in_loop():
        return asyncio.run(_run(options, feed=feed))
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(_run(options, feed=feed)))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, name="squall-run")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
