"""`squall worker`: the worker as a process, with the real runtime and core processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from squall.api.errors import ConfigError, SquallError
from squall.cluster.protocol.timers import timers
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.seal.secrets import Secrets
from squall.cluster.worker.node import WorkerNode
from squall.cluster.worker.process_host import ProcessHost
from squall.cluster.worker.settings import FormerProcess, WorkerSettings
from squall.engine.process.machine import LinuxMachine, node_identity
from squall.engine.process.machine_usage import UsageMeter
from squall.engine.process.scratch_folder import ScratchFolder, python_version
from squall.engine.process.system_limits import (
    available_cores,
    descriptor_budget,
    raise_descriptor_limit,
)
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.log import Log, LogSink, MemorySink
from squall.runtime.real.disk import warn_of_open_directory
from squall.runtime.real.launcher import Attached, log_restart
from squall.runtime.real.node_process import Frame, run
from squall.runtime.real.runtime import RealClock, RealRuntime
from squall.runtime.tasks import TaskFailure, TaskRunner
from squall.settings.shared_sections import DRAIN_TIMEOUT_S

SHUTDOWN_S = 20.0
DELIVER_S = 10.0
"""Below the six tenths of the shutdown (12 s) that the node has for itself."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of `squall worker`. Without `data_dir` the worker has a temporary directory, and
    a new node id each time."""

    datacenter: str
    managers: tuple[Address, ...]
    secrets: Secrets
    cluster: str
    tls: LinkTLS | None = None
    dns_server: Address | None = None
    cores: int | None = None
    data_dir: Path | None = None
    name: str = ""
    timers: Literal["lan", "fast"] = "lan"
    members: int = 1
    """The number of managers: the timers of a group of one are longer."""
    drain_s: float = DRAIN_TIMEOUT_S
    membership: bool = True
    """It takes part if the managers say so."""
    metrics: Address | None = None
    version: str = ""
    log: LogSink | None = None
    log_level: str = "info"
    launched: Attached | None = None
    """What the launcher says, if there is one."""


def _node_id(options: WorkerOptions, folder: Path, token: str) -> str:
    """The name of this worker: the one of its credential, if that is bound to a name."""
    bound = options.secrets.name
    if bound and options.name not in ("", bound):
        raise ConfigError(f"the credential is for worker {bound!r}, not for --name {options.name}")
    if bound and options.data_dir is None:
        raise ConfigError(
            f"the credential is for worker {bound!r}: give --data DIR, because a worker without a "
            "lasting directory has another name after each start"
        )
    name = options.name or bound
    fresh = f"{name or 'worker'}-{token}"
    return node_identity(folder, name if options.data_dir else "", fresh)


def former_process(launched: Attached) -> FormerProcess | None:
    former = launched.former
    if former is None or former.ended_at is None:
        return None
    return FormerProcess(former.pid, former.ended_at)


def run_worker(options: WorkerOptions) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit code. Raises `SquallError` for mistakes of
    the user."""
    if not options.managers:
        raise ConfigError("--managers names no manager: give at least one HOST:PORT")
    if options.cores is not None and options.cores < 1:
        raise ConfigError(f"--cores {options.cores} is not at least 1")
    if not options.cluster:
        raise ConfigError("the cluster id is empty: give the id that all nodes of the cluster have")
    chosen = timers(options.timers, options.members)
    launched = options.launched or Attached()
    with ScratchFolder(options.data_dir or launched.scratch, "squall-worker-") as scratch:
        folder = scratch.folder
        node = _node_id(options, folder, scratch.token)
        raise_descriptor_limit()
        settings = WorkerSettings(
            datacenter=options.datacenter,
            managers=options.managers,
            cores=options.cores or available_cores(),
            secrets=options.secrets,
            cluster=options.cluster,
            tls=options.tls,
            timers=chosen,
            version=options.version,
            python=python_version(),
            descriptors=descriptor_budget(),
            metrics=options.metrics,
            former=former_process(launched),
            membership=options.membership,
            drain_s=options.drain_s,
            deliver_s=DELIVER_S,
        )
        log = Log(options.log or MemorySink(), RealClock(), level=options.log_level)

        def failed(failure: TaskFailure) -> None:
            log.error("task_failed", task=failure.name, error=repr(failure.error))

        log_restart(log, launched)
        warn_of_open_directory(log, folder)

        async def main(runtime: RealRuntime, tasks: TaskRunner, stop: asyncio.Event) -> int | None:
            host = ProcessHost(settings.cores, folder, str(runtime.boot))
            machine = LinuxMachine(folder)
            worker = WorkerNode(
                cast("Runtime", runtime),
                host,
                machine,
                settings,
                tasks=tasks,
                log=log,
                usage=UsageMeter().read,
            )
            try:
                await worker.run(stop)
            except SquallError as error:
                log.error("worker_ends", why=str(error))
                raise
            return None

        frame = Frame(
            node,
            data_dir=folder,
            dns_server=options.dns_server,
            drain_s=options.drain_s,
            shutdown_s=SHUTDOWN_S,
            on_failure=failed,
        )
        return run(main, frame)
