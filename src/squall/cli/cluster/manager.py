"""`squall manager`: runs a manager of a datacenter until SIGTERM."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path

from squall.api.errors import UsageError
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
from squall.cluster.ledger.replica.types import FORMED_SIZES
from squall.cluster.manager.main import run_manager
from squall.cluster.manager.node import ManagerPlan
from squall.engine.run.metadata import squall_version
from squall.runtime.interfaces import Address


def execute(arguments: Namespace) -> int:
    settings = node_settings(arguments)
    members = members_of(arguments.members, any_size=arguments.join)
    if arguments.name not in members:
        raise UsageError(f"--name {arguments.name} is not among --members {', '.join(members)}")
    if arguments.join and len(members) < 2:
        raise UsageError("--join: also name the managers of the existing group in --members")
    data = Path(arguments.data)
    plan = ManagerPlan(
        datacenter=checked_name(arguments.dc, "--dc"),
        listen=listen_address(arguments.listen, "--listen"),
        members=members,
        secrets=node_secrets(secret_lines(arguments.secret_file, settings.cluster)),
        cluster=cluster_id(arguments.cluster, settings.cluster),
        settings=settings,
        tls=link_tls(settings.tls),
        dns_server=dns_server(settings.cluster),
        metrics=metrics_address(arguments, settings),
        joins=arguments.join,
        pid=os.getpid(),
        version=squall_version(),
        disk_free=lambda: shutil.disk_usage(data).free,
    )
    return run_manager(plan, name=arguments.name, data=data, launched=arguments.launched)


def members_of(entries: list[str], *, any_size: bool = False) -> dict[str, Address]:
    """Parses `m1=10.0.0.1:7400,m2=...`; the flag may be repeated. With `any_size` the members
    only say where an existing group is."""
    found: dict[str, Address] = {}
    for word in ",".join(entries).split(","):
        name, equals, address = word.strip().partition("=")
        if not name or not equals:
            raise UsageError(f"--members {word.strip()}: write NAME=HOST:PORT")
        checked_name(name, "--members")
        if name in found:
            raise UsageError(f"--members: {name} is named twice")
        found[name] = address_of(address, f"--members {name}=")
    if len(set(found.values())) < len(found):
        raise UsageError("--members: two managers have the same address")
    if any_size:
        return found
    if len(found) == 2:
        raise UsageError("--members: a group of 2 survives no failure; use 1 or 3")
    if len(found) not in FORMED_SIZES:
        raise UsageError(f"--members: {len(found)} managers; a group has 1, 3 or 5")
    return found
