"""`squall manager`: runs a manager of a datacenter until SIGTERM."""

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
    cluster_id,
    dns_server,
    link_tls,
    listen_address,
    node_secrets,
    secret_lines,
)
from squall.cluster.manager.main import run_manager
from squall.cluster.manager.node import ManagerPlan
from squall.engine.run.metadata import squall_version


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
        membership=True,
        pid=os.getpid(),
        version=squall_version(),
        disk_free=lambda: shutil.disk_usage(data).free,
    )
    reach = reach_of(plan.listen, list(members.values()))
    with page_of_node(arguments, settings, reach, data=data):
        return run_manager(plan, name=arguments.name, data=data, launched=arguments.launched)
