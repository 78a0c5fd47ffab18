"""`squall agent`: an agent as a process, with the real runtime, store and core processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from squall.api.errors import ConfigError, SquallError
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.cluster.worker.main import former_process
from squall.cluster.worker.process_host import ProcessHost
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
from squall.runtime.metrics_http import MetricsServer, Probes
from squall.runtime.real.disk import warn_of_open_directory
from squall.runtime.real.launcher import Attached, log_restart
from squall.runtime.real.node_process import Frame, run
from squall.runtime.real.runtime import RealClock, RealRuntime
from squall.runtime.real.threads import in_thread
from squall.runtime.tasks import TaskFailure, TaskInfo, TaskRunner
from squall.store_mode.node import AgentNode, AgentPlan
from squall.store_mode.open_store import DEFAULT_PREFIX, opened_store
from squall.store_mode.schedules.comparison import judged
from squall.store_mode.secret_check import proof_of, signing_secret
from squall.store_mode.timers import Profile, agent_timers
from squall.store_mode.transport.tuning import tuning_of

SHUTDOWN_S = 40.0
DELIVER_S = 12.0
"""The worker may take this long to deliver results at shutdown. The node has 60 % of `SHUTDOWN_S`
in total; the rest of that share is for leaving the election."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of `squall agent`. Without `data_dir` the agent uses a temporary directory and
    has a new node id at each start."""

    store: str
    secrets: tuple[str, ...]
    """The cluster's secrets: the first one sends, and all are accepted."""
    cluster: str
    settings: Settings
    prefix: str = DEFAULT_PREFIX
    cores: int | None = None
    data_dir: Path | None = None
    name: str = ""
    timers: Profile = "normal"
    metrics: Address | None = None
    version: str = ""
    pid: int = 0
    log: LogSink | None = None
    launched: Attached | None = None
    """What the launcher says, if there is one."""


def run_agent(options: AgentOptions) -> int:
    """Runs until SIGTERM or SIGINT and returns the exit code. Wrong options raise `SquallError`."""
    if options.cores is not None and options.cores < 1:
        raise ConfigError(f"--cores {options.cores} is not at least 1")
    settings = options.settings.log
    log = Log(
        options.log or MemorySink(),
        RealClock(),
        level=settings.level,
        events_per_s=settings.events_per_s,
        burst=settings.burst,
    )
    launched = options.launched or Attached()
    log_restart(log, launched)
    with ScratchFolder(options.data_dir or launched.scratch, "squall-agent-") as scratch:
        folder = scratch.folder
        fresh = f"{options.name or 'agent'}-{scratch.token}"
        node = node_identity(folder, options.name if options.data_dir else "", fresh)
        warn_of_open_directory(log, folder)
        raise_descriptor_limit()
        plan = plan_of(options)

        def failed(failure: TaskFailure) -> None:
            log.error("task_failed", task=failure.name, error=repr(failure.error))

        def unfinished(tasks: tuple[TaskInfo, ...]) -> None:
            log.error("did_not_stop", tasks=", ".join(task.name for task in tasks))

        async def main(runtime: RealRuntime, tasks: TaskRunner, stop: asyncio.Event) -> int | None:
            world = cast("Runtime", runtime)
            async with opened_store(options.store, options.prefix, world) as store:
                host = ProcessHost(plan.cores, folder, str(runtime.boot))
                agent = AgentNode(
                    world,
                    store,
                    host,
                    LinuxMachine(folder),
                    plan,
                    tasks=tasks,
                    log=log,
                    usage=UsageMeter().read,
                )
                metrics = MetricsServer(runtime.network, agent.worker.registry, Probes())
                try:
                    if options.metrics is not None:
                        await metrics.start(options.metrics)
                    await agent.run(stop)
                except SquallError as error:
                    log.error("agent_ends", why=str(error))
                    raise
                finally:
                    await metrics.close()
            return None

        frame = Frame(
            node,
            data_dir=folder,
            drain_s=options.settings.worker.drain_timeout_s,
            shutdown_s=SHUTDOWN_S,
            on_failure=failed,
            on_unfinished=unfinished,
        )
        return run(main, frame)


def plan_of(options: AgentOptions) -> AgentPlan:
    sending, *accepted = options.secrets
    cluster = options.cluster
    return AgentPlan(
        cluster=cluster,
        node_secrets=Secrets.of_node(sending, accepted),
        worker_secrets=Secrets.of_credential(
            worker_credential(sending), [worker_credential(each) for each in accepted]
        ),
        proofs=tuple(proof_of(each, cluster) for each in options.secrets),
        signing=tuple(signing_secret(each, cluster) for each in reversed(options.secrets)),
        timers=agent_timers(options.store, options.timers, options.settings.jobs),
        tuning=tuning_of(options.store),
        cores=options.cores or available_cores(),
        settings=options.settings,
        version=options.version,
        python=python_version(),
        descriptors=descriptor_budget(),
        deliver_s=DELIVER_S,
        former=former_process(options.launched or Attached()),
        pid=options.pid,
        judge=partial(in_thread, judged),
    )
