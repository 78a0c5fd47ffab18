"""`squall worker`: one worker of a datacenter, until SIGTERM."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count
from squall.cli.access import cluster_id, given_addresses, worker_secrets
from squall.cli.node_settings import checked_name, metrics_address, node_settings
from squall.engine.run_info import squall_version
from squall.nodes.worker.main import WorkerOptions, run_worker
from squall.runtime.log import StreamSink


def execute(arguments: Namespace) -> int:
    settings = node_settings("worker", arguments)
    managers = given_addresses(arguments.managers, "--managers", settings.cluster)
    return run_worker(
        WorkerOptions(
            datacenter=checked_name(arguments.dc, "--dc"),
            managers=managers,
            members=len(managers),
            secrets=worker_secrets(arguments, settings.cluster),
            cluster=cluster_id(arguments, settings.cluster),
            cores=_cores(arguments.cores),
            data_dir=Path(arguments.data) if arguments.data else None,
            name=checked_name(arguments.name, "--name") if arguments.name else "",
            timers="fast" if arguments.timers == "fast" else "lan",
            metrics=metrics_address(arguments, settings),
            version=squall_version(),
            log=StreamSink(sys.stderr, as_json=settings.log.json),
            log_level=settings.log.level,
        )
    )


def _cores(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_count(text, "--cores")
    except ConfigError as error:
        raise UsageError(str(error)) from None
