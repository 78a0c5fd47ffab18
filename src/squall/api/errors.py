"""The error tree and the exit codes.

    SquallError                 1   a failure of Squall itself
    ├── UsageError              2   the command line is wrong
    ├── ConfigError           104   the author's file or settings are wrong
    ├── AuthorError           107   the author's code raised outside a step
    └── CallError                   one call inside a step failed (never ends a run)
        ├── TransportError          no answer: timeout, reset, refused, TLS ...
        └── StatusError             `raise_for_status()` on a failed status

`str(error)` is the one line that the user reads: what failed, where, what to do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    PASSED = 0
    INTERNAL = 1
    USAGE = 2
    UNREACHABLE = 3
    INVALID = 98
    THRESHOLDS = 99
    CONFIG = 104
    INTERRUPTED = 105
    AUTHOR = 107


class SquallError(Exception):
    """The base class of all errors that Squall raises on purpose."""

    exit_code = ExitCode.INTERNAL


class UsageError(SquallError):
    exit_code = ExitCode.USAGE


class ConfigError(SquallError):
    """A mistake in a workflow file or a setting, found before the first request."""

    exit_code = ExitCode.CONFIG


class AuthorError(SquallError):
    """The author's code raised outside a step: at import, or in a set-up workflow."""

    exit_code = ExitCode.AUTHOR


class CallError(SquallError):
    """A protocol call failed; counted as a failed execution of its step.

    `reason` is short and stable: it is the key under which failures are counted.
    """

    reason: str

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TransportError(CallError):
    """The exchange ended without an answer. Stamps are `time.perf_counter` readings."""

    def __init__(self, reason: str, *, started: float = 0.0, ended: float = 0.0) -> None:
        super().__init__(reason)
        self.started = started
        self.ended = ended
        self.protocol = "http"
        # "POST https://shop.test/orders": what was not answered.
        self.request = ""
        # True if an earlier call of the same step was answered.
        self.answered = False


class StatusError(CallError):
    """`raise_for_status()` found a failed status; `reason` is like "503 Service Unavailable"."""

    def __init__(self, reason: str, response: Any) -> None:
        super().__init__(reason)
        self.response = response
