"""`squall agent`: one machine that meets others in a store, until SIGTERM."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count
from squall.cli.access import CREDENTIAL, cluster_id, secret_lines, store_prefix, store_url
from squall.cli.node_settings import checked_name, metrics_address, node_settings
from squall.engine.run_info import squall_version
from squall.nodes.agent.main import AgentOptions, run_agent
from squall.nodes.agent.opening import check_url
from squall.runtime.log import StreamSink


def execute(arguments: Namespace) -> int:
    settings = node_settings("manager", arguments)
    return run_agent(
        AgentOptions(
            store=_store(arguments),
            prefix=store_prefix(arguments),
            secrets=_secrets(secret_lines(arguments.secret_file, settings.cluster)),
            cluster=cluster_id(arguments, settings.cluster),
            settings=settings,
            cores=_cores(arguments.cores),
            data_dir=Path(arguments.data) if arguments.data else None,
            name=checked_name(arguments.name, "--name") if arguments.name else "",
            timers="fast" if arguments.timers == "fast" else "normal",
            metrics=metrics_address(arguments, settings),
            version=squall_version(),
            pid=os.getpid(),
            log=StreamSink(sys.stderr, as_json=settings.log.json),
        )
    )


def _store(arguments: Namespace) -> str:
    url = store_url(arguments)
    if not url:
        raise UsageError("which store: name it with --store URL or SQUALL_STORE")
    return check_url(url)


def _secrets(lines: list[str]) -> tuple[str, ...]:
    """Any agent may have to coordinate, so each needs the secret itself."""
    if any(line.startswith(CREDENTIAL) for line in lines):
        raise ConfigError(
            "an agent needs the secret of the cluster itself, not a credential made of it: "
            "any of them may be the one that coordinates"
        )
    return tuple(lines)


def _cores(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_count(text, "--cores")
    except ConfigError as error:
        raise UsageError(str(error)) from None
