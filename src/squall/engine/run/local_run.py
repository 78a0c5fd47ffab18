"""Runs a file on this machine: starts the core processes first, then everything else.

The core processes import their libraries while the parent imports its own, which keeps the
first request within a second of the command.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from squall.api.errors import AuthorError, ConfigError, ExitCode, SquallError, UsageError
from squall.engine.core_protocol import CoreRefused, Load, Loaded, OutputLine, ToParent
from squall.engine.process.core_pool import CoreHandle, CorePool
from squall.engine.process.system_limits import available_cores
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest
from squall.stats.reports import ExchangeReport
from squall.stats.short_numbers import plural

if TYPE_CHECKING:
    from squall.engine.outcome import RunOutcome
    from squall.engine.run_controls import RunControls
    from squall.stats.snapshot import Snapshot

OnRun = Callable[[str], None]
"""Receives the id of the run."""
OnManifest = Callable[[FileManifest, int], None]
OnSnapshot = Callable[["Snapshot"], None]
OnLog = Callable[[str, str], None]
OnExchange = Callable[[ExchangeReport], None]
OnInterrupt = Callable[[int], None]
OnControls = Callable[["RunControls"], None]


async def run_local(
    options: RunOptions,
    *,
    on_run: OnRun | None = None,
    on_manifest: OnManifest | None = None,
    on_controls: OnControls | None = None,
    on_snapshot: OnSnapshot | None = None,
    on_log: OnLog | None = None,
    on_exchange: OnExchange | None = None,
    on_interrupt: OnInterrupt | None = None,
    histograms: Callable[[], bool] = lambda: False,
) -> RunOutcome:
    """Runs all workflows of a file or a URL. A user's mistake raises a `SquallError`. `histograms`
    says, once `on_manifest` has returned, whether snapshots have the histograms of all rows."""
    pool = CorePool(worker_count(options))
    try:
        load = asyncio.create_task(_load(pool, options, on_log))
        await asyncio.sleep(0)
        # Imported while the cores start.
        from squall.engine.run.controller import Controller

        try:
            loaded = await load
        except asyncio.CancelledError:
            # Nothing has run yet, so no core needs time for a graceful end.
            pool.kill()
            raise
        controller = Controller(
            pool,
            loaded.manifest,
            options,
            descriptors=loaded.descriptors,
            on_snapshot=on_snapshot,
            on_log=on_log,
            on_exchange=on_exchange,
            on_interrupt=on_interrupt,
        )
        if on_run is not None:
            on_run(controller.info.id)
        if on_manifest is not None:
            on_manifest(controller.manifest, len(pool.cores))
        if on_controls is not None:
            from squall.engine.run_controls import RunControls

            on_controls(RunControls(controller.interrupt, controller.change))
        return await controller.run(histograms=histograms())
    finally:
        await _close(pool)


async def load_manifest(options: RunOptions) -> FileManifest:
    """Loads a file and returns its manifest, without running a workflow."""
    pool = CorePool(1)
    try:
        return (await _load(pool, options, None)).manifest
    finally:
        await _close(pool)


async def load_with_imports(options: RunOptions, on_log: OnLog | None = None) -> Loaded:
    """Loads a file and also returns the modules that it imports, without running a workflow."""
    pool = CorePool(1)
    try:
        return await _load(pool, options, on_log, imports=True)
    finally:
        await _close(pool)


# Beyond it the start takes minutes, and no process gets the processor in time.
MOST_PROCESSES_PER_CORE = 16


def worker_count(options: RunOptions) -> int:
    if options.once:
        return 1
    if options.workers is not None and options.workers < 1:
        raise UsageError(f"--workers {options.workers} is not at least 1")
    cores = available_cores()
    if options.workers is not None and options.workers > cores * MOST_PROCESSES_PER_CORE:
        raise UsageError(
            f"--workers {options.workers} is too many for {plural(cores, 'core')}: more processes "
            f"than {cores * MOST_PROCESSES_PER_CORE} would only wait for each other"
        )
    if options.workers is not None:
        return options.workers
    # A process costs 0.15 s to start. Of a file nothing is known yet: it may have more workflows.
    flags = options.profiles.get("")
    if options.url and flags is not None and isinstance(flags.iterations, int):
        return max(min(cores, flags.iterations), 1)
    return cores


async def _load(
    pool: CorePool, options: RunOptions, on_log: OnLog | None, *, imports: bool = False
) -> Loaded:
    """Lets every core load the file. All answer alike, also with a mistake: the first counts."""
    loop = asyncio.get_running_loop()
    answers: dict[CoreHandle, asyncio.Future[Loaded]] = {
        core: loop.create_future() for core in pool.cores
    }

    def on_message(core: CoreHandle, message: ToParent) -> None:
        if isinstance(message, Loaded) and not answers[core].done():
            answers[core].set_result(message)
        elif isinstance(message, CoreRefused) and not answers[core].done():
            answers[core].set_exception(error_of(message.text, message.exit_code))
        elif isinstance(message, OutputLine) and on_log is not None:
            on_log(message.prefix, message.text)

    def on_death(core: CoreHandle) -> None:
        if not answers[core].done():
            answers[core].set_exception(SquallError(f"{core.crash}{core.died}"))

    for core in pool.cores:
        core.on_message, core.on_death = on_message, on_death
    await pool.attach()
    for core in pool.cores:
        core.send(load_message(options, imports=imports))
    results = await asyncio.gather(*answers.values(), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return answers[pool.cores[0]].result()


def load_message(options: RunOptions, *, imports: bool = False) -> Load:
    path = os.path.abspath(options.file) if options.file else ""
    return Load(path=path, options=options, search_path=list(sys.path), imports=imports)


async def _close(pool: CorePool) -> None:
    try:
        await asyncio.shield(pool.close())
    except asyncio.CancelledError:
        pool.kill()
        raise


def error_of(text: str, exit_code: int) -> SquallError:
    kinds: dict[int, type[SquallError]] = {
        ExitCode.USAGE: UsageError,
        ExitCode.CONFIG: ConfigError,
        ExitCode.AUTHOR: AuthorError,
    }
    return kinds.get(exit_code, SquallError)(text)
