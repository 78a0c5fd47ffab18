"""`squall gate`: the gate as a process, with the real runtime."""

from __future__ import annotations

import asyncio
from pathlib import Path

from squall.cluster.gate.node import GateNode, GatePlan
from squall.cluster.group.process import run_member
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.runtime.real.launcher import Attached
from squall.runtime.tasks import TaskRunner


def run_gate(plan: GatePlan, *, name: str, data: Path, launched: Attached | None = None) -> int:
    """Runs until SIGTERM; returns the exit code of the process."""

    async def node(runtime: Runtime, tasks: TaskRunner, log: Log, stop: asyncio.Event) -> int:
        return await GateNode(runtime, tasks, plan, log).run(stop)

    return run_member(
        node,
        name=name,
        data=data,
        settings=plan.settings.log,
        dns_server=plan.dns_server,
        launched=launched,
    )
