"""`squall worker`: runs a worker of a datacenter until SIGTERM."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count
from squall.cli.shared.node_settings import checked_name, metrics_address, node_settings
from squall.cluster.client.access import (
    cluster_id,
    dns_server,
    given_addresses,
    link_tls,
    secret_lines,
    worker_secrets,
)
from squall.cluster.worker.main import WorkerOptions, run_worker
from squall.engine.run.metadata import squall_version
from squall.runtime.log import StreamSink


def execute(arguments: Namespace) -> int:
    settings = node_settings(arguments)
    managers = given_addresses(arguments.managers, "--managers", settings.cluster)
    return run_worker(
        WorkerOptions(
            datacenter=checked_name(arguments.dc, "--dc"),
            managers=managers,
            members=len(managers),
            secrets=worker_secrets(secret_lines(arguments.secret_file, settings.cluster)),
            cluster=cluster_id(arguments.cluster, settings.cluster),
            tls=link_tls(settings.tls),
            dns_server=dns_server(settings.cluster),
            cores=_cores(arguments.cores),
            data_dir=Path(arguments.data) if arguments.data else None,
            name=checked_name(arguments.name, "--name") if arguments.name else "",
            timers="fast" if arguments.timers == "fast" else "lan",
            drain_s=settings.worker.drain_timeout_s,
            membership=settings.membership.max_nodes > 0,
            metrics=metrics_address(arguments, settings),
            version=squall_version(),
            log=StreamSink(sys.stderr, as_json=settings.log.json),
            log_level=settings.log.level,
            launched=arguments.launched,
        )
    )


def _cores(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_count(text, "--cores")
    except ConfigError as error:
        raise UsageError(str(error)) from None
