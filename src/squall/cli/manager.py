"""`squall manager`: one manager of a datacenter, until SIGTERM."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path

from squall.api.errors import UsageError
from squall.cli.access import address_of, cluster_id, node_secrets
from squall.cli.cluster_words import GROUP_SIZES
from squall.cli.node_settings import checked_name, metrics_address, node_settings
from squall.engine.run_info import squall_version
from squall.nodes.manager.main import run_manager
from squall.nodes.manager.node import ManagerPlan
from squall.runtime.interfaces import Address


def execute(arguments: Namespace) -> int:
    settings = node_settings("manager", arguments)
    members = members_of(arguments.members, any_size=arguments.join)
    if arguments.name not in members:
        raise UsageError(f"--name {arguments.name} is not among --members {', '.join(members)}")
    if arguments.join and len(members) < 2:
        raise UsageError("--join: name the managers of the group in --members too")
    data = Path(arguments.data)
    plan = ManagerPlan(
        datacenter=checked_name(arguments.dc, "--dc"),
        listen=address_of(arguments.listen, "--listen"),
        members=members,
        secrets=node_secrets(arguments, settings.cluster),
        cluster=cluster_id(arguments, settings.cluster),
        settings=settings,
        metrics=metrics_address(arguments, settings),
        joins=arguments.join,
        pid=os.getpid(),
        version=squall_version(),
        disk_free=lambda: shutil.disk_usage(data).free,
    )
    return run_manager(plan, name=arguments.name, data=data)


def members_of(entries: list[str], *, any_size: bool = False) -> dict[str, Address]:
    """`m1=10.0.0.1:7400,m2=...`; the flag may be repeated. With `any_size` they only say
    where a group is that exists."""
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
        raise UsageError("--members: two managers have one address")
    if any_size:
        return found
    if len(found) == 2:
        raise UsageError("--members: 2 managers survive no failure, use 1 or 3")
    if len(found) not in GROUP_SIZES:
        raise UsageError(f"--members: {len(found)} managers; a group has 1, 3 or 5")
    return found
