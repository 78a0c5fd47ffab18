"""`squall nodes` and `squall drain NODE`: lists the nodes of a datacenter and drains a worker.

Asked of a gate, `squall nodes` shows the datacenters; `--dc NAME` lists the nodes of one.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence

from squall.cli.cluster.group import clock_lines
from squall.cli.shared.cluster_access import client_access
from squall.cli.shared.node_settings import drain_flag
from squall.cluster.client.access import file_settings
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.connection import connected
from squall.cluster.protocol.messages import NodeList, NodeView, WorkerLoad
from squall.cluster.protocol.views import DatacenterView
from squall.reporting.number_format import plural
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop

COLUMNS = (
    "NAME",
    "ROLE",
    "ADDRESS",
    "PID",
    "STATE",
    "BOOT",
    "CORES",
    "FREE",
    "CPU",
    "MEMORY",
    "LAG",
    "HEARD",
)
DATACENTER_COLUMNS = (
    "DC", "STATE", "MANAGERS", "WORKERS", "CORES", "FREE", "QUEUE", "RTT", "WHY",
)  # fmt: skip


def execute(arguments: Namespace) -> int:
    return asyncio.run(_answered(arguments))


async def _answered(arguments: Namespace) -> int:
    async with connected(client_access(arguments), None) as connection:
        await connection.ready(within_s=None)
        if arguments.command == "drain":
            return await _drain(connection.client, arguments)
        return await _nodes(connection.client, arguments)


async def _nodes(client: ClusterClient, arguments: Namespace) -> int:
    answer = await client.nodes(datacenter=arguments.dc or "")
    if arguments.json:
        return print_json(answer)
    lines = datacenter_lines(answer) if answer.datacenters else node_lines(answer)
    print_or_drop("\n".join(lines))
    return 0


def node_lines(answer: NodeList) -> list[str]:
    """The nodes of one datacenter."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for node in answer.nodes:
        is_worker = node.role == "worker"
        rows.append(
            (
                node.name,
                node.role,
                node.address or "-",
                str(node.pid),
                node.state,
                node.boot[:8],
                str(node.cores) if is_worker else "-",
                str(node.free) if is_worker else "-",
                *_shown_load(node.load),
                f"{node.heard_s:.1f} s ago" if is_worker else "-",
            )
        )
    head = f"datacenter {answer.datacenter}"
    doubts = [node.membership for node in answer.nodes if node.membership]
    return [head, *aligned(rows), *doubts, *_alarm_lines(answer.nodes)]


def datacenter_lines(answer: NodeList) -> list[str]:
    """The datacenters of a gate, and the gates."""
    rows: list[tuple[str, ...]] = [DATACENTER_COLUMNS]
    rows += [_datacenter_row(each) for each in answer.datacenters]
    first = answer.datacenters[0].name
    hint = f"squall nodes --dc {first} lists its nodes"
    return [*aligned(rows), *_gate_lines(answer.nodes), hint, *_alarm_lines(answer.nodes)]


def _alarm_lines(nodes: Sequence[NodeView]) -> list[str]:
    """What is wrong with a member of the group."""
    clocks = clock_lines({node.name: node.clock_s for node in nodes})
    return [*clocks, *(f"ALARM {node.same_name}" for node in nodes if node.same_name)]


def _datacenter_row(each: DatacenterView) -> tuple[str, ...]:
    """What a datacenter last said is not shown once it is out of reach: it is not true any more."""
    known = each.health not in ("unreachable", "unknown")
    numbers = (each.workers, each.cores, each.free, each.queued)
    measured = known and each.rtt_ms >= 0
    return (
        each.name,
        each.health,
        f"{each.managers_heard if known else 0}/{each.managers_total}",
        *(str(number) if known else "-" for number in numbers),
        f"{each.rtt_ms:.0f} +-{each.rtt_deviation_ms:.0f} ms" if measured else "-",
        each.reason,
    )


def _gate_lines(gates: Sequence[NodeView]) -> list[str]:
    if not gates:
        return []
    shown = ", ".join(f"{each.name} {each.state}" for each in gates)
    regions = list(dict.fromkeys(each.region for each in gates if each.region))
    where = f" (regions {', '.join(regions)})" if regions else ""
    return [f"gates: {shown}{where}"]


def _shown_load(load: WorkerLoad | None) -> tuple[str, str, str]:
    if load is None:
        return "-", "-", "-"
    return _percent(load.cpu), _percent(load.memory), f"{load.lag_s * 1000:.0f} ms"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f} %"


async def _drain(client: ClusterClient, arguments: Namespace) -> int:
    within_s = file_settings(drain_flag(arguments)).worker.drain_timeout_s
    answer = await client.drain(arguments.node, resume=arguments.resume, within_s=within_s)
    if arguments.json:
        return print_json(answer)
    if arguments.resume:
        print_or_drop(f"{answer.node} takes work again")
    elif answer.running:
        print_or_drop(
            f"{answer.node} gets no new work; {plural(answer.running, 'share')} still running, "
            f"for {within_s:g} s at most"
        )
    else:
        print_or_drop(f"{answer.node} is drained: nothing runs on it")
    return 0
