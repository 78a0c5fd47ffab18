"""Names of this process for records and messages that people read.

No decision may use them: two processes may have the same names.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessIdentity:
    hostname: str
    pid: int


def this_process() -> ProcessIdentity:
    return ProcessIdentity(socket.gethostname(), os.getpid())


def variable(name: str) -> str | None:
    """An environment variable; None when it is unset or empty."""
    return os.environ.get(name) or None
