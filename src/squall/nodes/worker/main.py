"""`squall worker`: the worker as a process, with the real runtime and core processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from squall.api.errors import ConfigError, SquallError
from squall.engine.limits import available_cores, descriptor_budget, raise_descriptor_limit
from squall.engine.machine import LinuxMachine, node_identity
from squall.engine.scratch import Scratch, python_version
from squall.nodes.timers import timers
from squall.nodes.worker.node import WorkerNode
from squall.nodes.worker.processes import ProcessHost
from squall.nodes.worker.settings import WorkerSettings
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.log import Log, LogSink, MemorySink
from squall.runtime.real import RealClock, RealRuntime
from squall.runtime.real_run import Frame, run
from squall.runtime.tasks import TaskFailure, TaskRunner
from squall.wire.secrets import Secrets

SHUTDOWN_S = 20.0
DELIVER_S = 10.0
"""Of the six tenths of the shutdown that are the node's own."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What `squall worker` takes. Without `data_dir` the worker has a directory for its
    life only, and a new node id each time."""

    datacenter: str
    managers: tuple[Address, ...]
    secrets: Secrets
    cluster: str
    cores: int | None = None
    data_dir: Path | None = None
    name: str = ""
    timers: Literal["lan", "fast"] = "lan"
    members: int = 1
    """Of the group of managers: decides between the timers of one and of several."""
    metrics: Address | None = None
    version: str = ""
    log: LogSink | None = None
    log_level: str = "info"


def run_worker(options: WorkerOptions) -> int:
    """Until SIGTERM or SIGINT; the exit code. Foreseeable mistakes are `SquallError`s."""
    if not options.managers:
        raise ConfigError("--managers names no manager: give at least one HOST:PORT")
    if options.cores is not None and options.cores < 1:
        raise ConfigError(f"--cores {options.cores} is not at least 1")
    if not options.cluster:
        raise ConfigError("the cluster id is empty: every node of a cluster has the same")
    chosen = timers(options.timers, options.members)
    with Scratch(options.data_dir, "squall-worker-") as scratch:
        folder = scratch.folder
        fresh = f"{options.name or 'worker'}-{scratch.token}"
        node = node_identity(folder, options.name if options.data_dir else "", fresh)
        raise_descriptor_limit()
        settings = WorkerSettings(
            datacenter=options.datacenter,
            managers=options.managers,
            cores=options.cores or available_cores(),
            secrets=options.secrets,
            cluster=options.cluster,
            timers=chosen,
            version=options.version,
            python=python_version(),
            descriptors=descriptor_budget(),
            metrics=options.metrics,
            deliver_s=DELIVER_S,
        )
        log = Log(options.log or MemorySink(), RealClock(), level=options.log_level)

        def failed(failure: TaskFailure) -> None:
            log.error("task_failed", task=failure.name, error=repr(failure.error))

        async def main(runtime: RealRuntime, tasks: TaskRunner, stop: asyncio.Event) -> int | None:
            host = ProcessHost(settings.cores, folder, str(runtime.boot))
            machine = LinuxMachine(folder)
            worker = WorkerNode(
                cast("Runtime", runtime), host, machine, settings, tasks=tasks, log=log
            )
            try:
                await worker.run(stop)
            except SquallError as error:
                log.error("worker_ends", why=str(error))
                raise
            return None

        frame = Frame(node, data_dir=folder, shutdown_s=SHUTDOWN_S, on_failure=failed)
        return run(main, frame)
