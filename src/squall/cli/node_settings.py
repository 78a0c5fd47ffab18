"""The settings of a node from the command line, with the flags that override them."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path

from squall.api.errors import UsageError
from squall.cli.access import SETTINGS_FILE, address_of
from squall.runtime.interfaces import Address
from squall.runtime.settings import Sources
from squall.settings import Role, Settings, load_settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def checked_name(text: str, flag: str) -> str:
    """The name of a node or datacenter: it is shown, logged and compared on every node."""
    if not NAME.fullmatch(text):
        raise UsageError(
            f"{flag} {text!r}: a name has 1 to 63 letters, digits, dots, dashes or underscores "
            "and begins with a letter or digit"
        )
    return text


def node_settings(role: Role, arguments: Namespace) -> Settings:
    file = Path(os.environ.get("SQUALL_CONFIG", SETTINGS_FILE))
    flags = {"timers.profile": arguments.timers} if arguments.timers else {}
    sources = Sources(file if file.is_file() else None, flags=flags)
    return load_settings(role, sources).tree


def metrics_address(arguments: Namespace, settings: Settings) -> Address | None:
    text: str = arguments.metrics or settings.metrics.listen
    return address_of(text, "--metrics", zero_ok=True) if text else None
