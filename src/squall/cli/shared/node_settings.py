"""Loads the settings of a node; flags override the file and the environment."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_duration
from squall.cluster.client.access import file_settings, listen_address, secret_file
from squall.cluster.client.datacenter_options import NAME, NAME_RULE
from squall.cluster.settings_tree import Settings
from squall.runtime.interfaces import Address


def checked_name(text: str, flag: str) -> str:
    """Checks the name of a node or datacenter, which every node shows, logs and compares."""
    if not NAME.fullmatch(text):
        raise UsageError(f"{flag} {text!r}: {NAME_RULE}")
    return text


def node_settings(arguments: Namespace) -> Settings:
    flags = {"timers.profile": arguments.timers} if arguments.timers else {}
    settings = file_settings(flags | drain_flag(arguments))
    _warn_of_open_secrets(arguments, settings)
    return settings


def drain_flag(arguments: Namespace) -> dict[str, str]:
    """`--drain-timeout` as a setting; empty if the command has no such flag or it is not given."""
    text: str | None = getattr(arguments, "drain_timeout", None)
    if text is None:
        return {}
    try:
        seconds = parse_duration(text, "--drain-timeout", zero_ok=True)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return {"worker.drain_timeout_s": str(seconds)}


def _warn_of_open_secrets(arguments: Namespace, settings: Settings) -> None:
    """Warns once per file and start. It is no error: containers mount secrets readable by all."""
    first = secret_file(arguments.secret_file, settings.cluster)
    for file in filter(None, (first, *settings.cluster.accepted_secret_files)):
        try:
            mode = Path(file).expanduser().stat().st_mode & 0o777
        except OSError:
            continue  # Reported by the code that reads it.
        if mode & 0o077:
            print(
                f"warning: secret file {file} has mode {mode:o}; other users of this machine can "
                f"read it: chmod 600 {file}",
                file=sys.stderr,
            )


def metrics_address(arguments: Namespace, settings: Settings) -> Address | None:
    text: str = arguments.metrics or settings.metrics.listen
    return listen_address(text, "--metrics", zero_ok=True) if text else None
