"""A member of a control group as a process with the real runtime: a manager, a gate."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from squall.runtime.interfaces import Address, Runtime
from squall.runtime.log import Log, StreamSink
from squall.runtime.real.disk import PRIVATE, warn_of_open_directory
from squall.runtime.real.launcher import Attached, log_restart
from squall.runtime.real.node_process import Frame, run
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskFailure, TaskInfo, TaskRunner
from squall.settings.shared_sections import LogSettings

SHUTDOWN_S = 10.0

RunNode = Callable[[Runtime, TaskRunner, Log, asyncio.Event], Awaitable[int]]
"""Runs the node until the event is set; returns the exit code."""


def run_member(
    node: RunNode,
    *,
    name: str,
    data: Path,
    settings: LogSettings,
    dns_server: Address | None,
    launched: Attached | None = None,
) -> int:
    """Runs until SIGTERM; returns the exit code of the process."""
    logs: list[Log] = []

    def failed(failure: TaskFailure) -> None:
        for log in logs:
            log.error("task_failed", task=failure.name, error=failure.error)

    def unfinished(tasks: tuple[TaskInfo, ...]) -> None:
        for log in logs:
            log.error("did_not_stop", tasks=", ".join(task.name for task in tasks))

    async def main(runtime: RealRuntime, tasks: TaskRunner, stop: asyncio.Event) -> int:
        log = Log(
            StreamSink(sys.stderr, as_json=settings.json),
            runtime.clock,
            level=settings.level,
            events_per_s=settings.events_per_s,
            burst=settings.burst,
        ).bind(node=runtime.node, boot=runtime.boot)
        logs.append(log)
        log_restart(log, launched or Attached())
        warn_of_open_directory(log, data)
        return await node(runtime, tasks, log, stop)

    data.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    frame = Frame(
        node=name,
        data_dir=data,
        dns_server=dns_server,
        shutdown_s=SHUTDOWN_S,
        on_failure=failed,
        on_unfinished=unfinished,
    )
    return run(main, frame)
