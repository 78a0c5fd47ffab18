"""Runs workflows from Python and pytest: `squall.run(Shop, vus=5, duration="3s")`."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from squall.api.errors import ConfigError, UsageError
from squall.api.workflow import Workflow

if TYPE_CHECKING:
    from squall.engine.run_options import RunOptions
    from squall.reporting.run_result import Result

T = TypeVar("T")


def run(
    workflow: type[Workflow] | str | os.PathLike[str],
    *,
    vus: int | None = None,
    duration: str | float | None = None,
    iterations: int | str | None = None,
    rate: str | float | None = None,
    stages: Sequence[str] = (),
    host: str = "",
    env: Mapping[str, str] | None = None,
    thresholds: Sequence[str] = (),
    workers: int | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    seed: int = 0,
    tags: Mapping[str, str] | None = None,
    warmup: str | float | None = None,
    timeout: str | float | None = None,
    insecure: bool = False,
) -> Result:
    """Runs a workflow class (with those it depends on), a file or a URL, and returns the result.

    `vus`, `duration`, `iterations`, `rate` and `stages` replace the load model of the file; the
    other arguments are the flags of `squall run` of the same name. `timeout` ends a run that is not
    over by then. It blocks, also inside a running event loop, and raises `ConfigError` for a file
    that cannot run.
    """
    from squall.engine.run_options import ProfileFlags

    flags = ProfileFlags(
        vus=vus, duration=duration, iterations=iterations, rate=rate, stages=tuple(stages)
    )
    options = options_for(
        workflow,
        flags,
        host=host,
        env=dict(env or {}),
        thresholds=tuple(thresholds),
        workers=workers,
        only=tuple(only),
        skip=tuple(skip),
        seed=seed,
        tags=dict(tags or {}),
        insecure=insecure,
        warmup_s=seconds_of(warmup) or 0.0,
        timeout_s=seconds_of(timeout),
    )
    return _blocking(options)


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
        from squall.engine.run_options import ProfileFlags

        classes = [_class_of(entry) for entry in workflows]
        if not classes:
            raise UsageError("LocalRunner.run: no workflows given")
        files = {inspect.getfile(cls) for cls in classes}
        if len(files) > 1:
            raise ConfigError(
                f"the workflows of one run must be in one file, not in {sorted(files)}"
            )
        options = options_for(
            classes[0],
            ProfileFlags(),
            workers=self._workers,
            only=tuple(cls.__name__ for cls in classes),
            tags={"test": test_name} if test_name else {},
            timeout_s=seconds_of(timeout),
        )
        return await _run(options, lines=terminal_mode in ("full", "ci"))


def _class_of(entry: tuple[Sequence[str], Workflow] | type[Workflow]) -> type[Workflow]:
    return entry if isinstance(entry, type) else type(entry[1])


def options_for(
    workflow: type[Workflow] | str | os.PathLike[str], flags: Any, **others: Any
) -> RunOptions:
    from squall.engine.run_options import RunOptions

    if os.environ.get("SQUALL_LOADING"):
        raise UsageError(
            "squall.run() was called while its file was loaded for a run; "
            'put it under  if __name__ == "__main__":'
        )
    name = ""
    if isinstance(workflow, type):
        if "<locals>" in workflow.__qualname__:
            raise ConfigError(
                f"{workflow.__name__} is defined inside a function; core processes load it "
                "from its file, so define it at the top level of a module"
            )
        path, name = _file_of(workflow), workflow.__name__
        others["only"] = others.get("only") or (name,)
    else:
        path = os.fspath(workflow)
    profiles = {} if flags.is_empty else {name: flags}
    if "://" in path:
        return RunOptions(url=path, profiles=profiles, **others)
    return RunOptions(file=path, profiles=profiles, **others)


def _file_of(workflow: type[Workflow]) -> str:
    try:
        path = inspect.getfile(workflow)
    except (OSError, TypeError):
        path = ""
    if not os.path.isfile(path):
        raise ConfigError(
            f"{workflow.__name__} was typed interactively and has no file; core processes load it "
            "from a file, so put it into a module"
        )
    return path


def seconds_of(value: str | float | None) -> float | None:
    from squall.api.quantities import parse_duration

    return None if value is None else parse_duration(value)


async def _run(options: RunOptions, *, lines: bool = False) -> Result:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        return await _run_local(options, lines=lines)
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


async def _run_local(options: RunOptions, *, lines: bool) -> Result:
    from squall.engine.run.local_run import run_local
    from squall.reporting.redaction import Redactor
    from squall.reporting.run_result import Result
    from squall.reporting.text.progress_lines import ProgressLines

    progress = ProgressLines(Redactor(options.secrets.values()), quiet=not lines)
    if not lines:
        # It prints only warnings.
        return Result(await run_local(options, on_manifest=progress.on_manifest))
    return Result(
        await run_local(
            options,
            on_manifest=progress.on_manifest,
            on_snapshot=progress.on_snapshot,
            on_log=progress.on_log,
        )
    )


def _blocking(options: RunOptions) -> Result:
    """Works inside a running loop too (pytest-asyncio, notebooks): it runs in a thread then."""
    if not _in_loop():
        return asyncio.run(_run(options))
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(_run(options)))
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
