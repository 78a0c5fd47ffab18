"""`squall gate`: runs a gate, which hands jobs over to datacenters, until SIGTERM."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path

from squall.api.errors import UsageError
from squall.cli.cluster.members import members_of
from squall.cli.shared.node_page import page_of_node, reach_of
from squall.cli.shared.node_settings import checked_name, metrics_address, node_settings
from squall.cluster.client.access import (
    address_of,
    cluster_id,
    dns_server,
    link_tls,
    listen_address,
    node_secrets,
    secret_lines,
)
from squall.cluster.gate.main import run_gate
from squall.cluster.gate.node import GatePlan
from squall.engine.run.metadata import squall_version
from squall.runtime.addresses import shown_address


def execute(arguments: Namespace) -> int:
    settings = node_settings(arguments)
    if settings.timers.profile == "lan":
        # Gates are regions apart: with the timers of one network they would elect without need.
        settings = node_settings(Namespace(**{**vars(arguments), "timers": "wan"}))
    members = members_of(arguments.members, any_size=arguments.join, role="gate")
    if arguments.name not in members:
        raise UsageError(f"--name {arguments.name} is not among --members {', '.join(members)}")
    if arguments.join and len(members) < 2:
        raise UsageError("--join: also name the gates of the existing group in --members")
    data = Path(arguments.data)
    region: str = arguments.region or ""
    plan = GatePlan(
        listen=listen_address(arguments.listen, "--listen"),
        members=members,
        datacenters=datacenters_of(arguments.datacenter),
        region=checked_name(region, "--region") if region else "",
        secrets=node_secrets(secret_lines(arguments.secret_file, settings.cluster)),
        cluster=cluster_id(arguments.cluster, settings.cluster),
        settings=settings,
        tls=link_tls(settings.tls),
        dns_server=dns_server(settings.cluster),
        metrics=metrics_address(arguments, settings),
        joins=arguments.join,
        membership=True,
        pid=os.getpid(),
        version=squall_version(),
        disk_free=lambda: shutil.disk_usage(data).free,
    )
    reach = reach_of(plan.listen, list(members.values()))
    with page_of_node(arguments, settings, reach, data=data):
        return run_gate(plan, name=arguments.name, data=data, launched=arguments.launched)


def datacenters_of(entries: list[str]) -> dict[str, tuple[str, ...]]:
    """Parses `eu=10.0.0.1:7400;10.0.0.2:7400,us=...`; the flag may be repeated. One manager of a
    datacenter is enough: it names the others."""
    found: dict[str, tuple[str, ...]] = {}
    for word in ",".join(entries).split(","):
        name, equals, addresses = word.strip().partition("=")
        if not name or not equals:
            raise UsageError(f"--datacenter {word.strip()}: write NAME=HOST:PORT")
        checked_name(name, "--datacenter")
        if name in found:
            raise UsageError(f"--datacenter: {name} is named twice; separate its managers by ;")
        flag = f"--datacenter {name}="
        found[name] = tuple(shown_address(address_of(a, flag)) for a in addresses.split(";"))
    return found
