"""`squall agent`: an agent as a process, with the real runtime, store and core processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from squall.api.errors import ConfigError, SquallError
from squall.engine.limits import available_cores, descriptor_budget, raise_descriptor_limit
from squall.engine.machine import LinuxMachine, node_identity
from squall.engine.scratch import Scratch, python_version
from squall.nodes.agent.node import AgentNode, AgentPlan
from squall.nodes.agent.opening import DEFAULT_PREFIX, opened_store
from squall.nodes.agent.pace import pace_of
from squall.nodes.agent.schedules_judging import judged
from squall.nodes.agent.secret_check import proof_of, signing_secret
from squall.nodes.agent.timers import Profile, agent_timers
from squall.nodes.worker.processes import ProcessHost
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.log import Log, LogSink, MemorySink
from squall.runtime.metrics_http import MetricsServer, Probes
from squall.runtime.real import RealClock, RealRuntime
from squall.runtime.real_aside import in_thread
from squall.runtime.real_run import Frame, run
from squall.runtime.tasks import TaskFailure, TaskInfo, TaskRunner
from squall.settings import Settings
from squall.wire.secrets import Secrets, worker_credential

SHUTDOWN_S = 40.0
DELIVER_S = 12.0
"""Of the six tenths of the shutdown that are the node's own; the rest is to leave the
election in order."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What `squall agent` takes. Without `data_dir` the agent has a directory for its life
    only, and a new node id each time."""

    store: str
    secrets: tuple[str, ...]
    """Of the cluster: the one to send with, then those that are accepted too."""
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


def run_agent(options: AgentOptions) -> int:
    """Until SIGTERM or SIGINT; the exit code. Foreseeable mistakes are `SquallError`s."""
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
    with Scratch(options.data_dir, "squall-agent-") as scratch:
        folder = scratch.folder
        fresh = f"{options.name or 'agent'}-{scratch.token}"
        node = node_identity(folder, options.name if options.data_dir else "", fresh)
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
                    world, store, host, LinuxMachine(folder), plan, tasks=tasks, log=log
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
        timers=agent_timers(options.store, options.timers),
        pace=pace_of(options.store),
        cores=options.cores or available_cores(),
        settings=options.settings,
        version=options.version,
        python=python_version(),
        descriptors=descriptor_budget(),
        deliver_s=DELIVER_S,
        pid=options.pid,
        judge=partial(in_thread, judged),
    )
