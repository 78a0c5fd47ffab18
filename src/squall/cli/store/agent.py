"""`squall agent`: runs load on this machine, with other agents through a store, until SIGTERM."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count
from squall.cli.shared.node_page import page_of_node
from squall.cli.shared.node_settings import checked_name, metrics_address, node_settings
from squall.cluster.client.access import CREDENTIAL, cluster_id, secret_lines
from squall.engine.run.metadata import squall_version
from squall.runtime.log import StreamSink
from squall.store_mode.access import store_prefix, store_url
from squall.store_mode.main import AgentOptions, run_agent
from squall.store_mode.open_store import check_url


def execute(arguments: Namespace) -> int:
    settings = node_settings(arguments)
    options = AgentOptions(
        store=_store(arguments),
        prefix=store_prefix(arguments.prefix),
        secrets=_secrets(secret_lines(arguments.secret_file, settings.cluster)),
        cluster=cluster_id(arguments.cluster, settings.cluster),
        settings=settings,
        cores=_cores(arguments.cores),
        data_dir=Path(arguments.data) if arguments.data else None,
        name=checked_name(arguments.name, "--name") if arguments.name else "",
        timers="fast" if arguments.timers == "fast" else "normal",
        metrics=metrics_address(arguments, settings),
        version=squall_version(),
        pid=os.getpid(),
        log=StreamSink(sys.stderr, as_json=settings.log.json),
        launched=arguments.launched,
    )
    scratch = arguments.launched.scratch if arguments.launched is not None else None
    # In the environment: the URL of a store may have a password.
    place = {"SQUALL_STORE": options.store, "SQUALL_STORE_PREFIX": options.prefix}
    data = options.data_dir or scratch
    with page_of_node(arguments, settings, (), data=data, environment=place):
        return run_agent(options)


def _store(arguments: Namespace) -> str:
    url = store_url(arguments.store)
    if not url:
        raise UsageError("no store named: give one with --store URL or SQUALL_STORE")
    return check_url(url)


def _secrets(lines: list[str]) -> tuple[str, ...]:
    """Any agent may be elected coordinator, so each needs the cluster's own secret."""
    if any(line.startswith(CREDENTIAL) for line in lines):
        raise ConfigError(
            "an agent needs the secret of the cluster itself, not a credential made from it: "
            "any agent may become the coordinator"
        )
    return tuple(lines)


def _cores(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_count(text, "--cores")
    except ConfigError as error:
        raise UsageError(str(error)) from None
