"""Errors of a client of a cluster, and their exit codes.

SquallError
├── Unreachable       3    no manager answers, or none accepts our secret
├── JobLost           3    the cluster no longer knows a job that it accepted
└── RequestRefused         a manager refused: 2 for a wrong request, 104 for a wrong job
"""

from __future__ import annotations

from squall.api.errors import ExitCode, SquallError
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode


class Unreachable(SquallError):
    exit_code = ExitCode.UNREACHABLE


class JobLost(SquallError):
    """The cluster lost the log that held the job."""

    exit_code = ExitCode.UNREACHABLE


class RequestRefused(SquallError):
    """A manager refused the request; `code` is the `ErrorCode` of its answer."""

    def __init__(self, text: str, code: str, exit_code: ExitCode) -> None:
        super().__init__(text)
        self.code = code
        self.exit_code = exit_code


_EXIT_CODES: dict[str, ExitCode] = {
    ErrorCode.NOT_FOUND: ExitCode.USAGE,
    ErrorCode.CONFLICT: ExitCode.USAGE,
    ErrorCode.FORBIDDEN: ExitCode.USAGE,
    ErrorCode.UNKNOWN_TYPE: ExitCode.USAGE,
    ErrorCode.BAD_MESSAGE: ExitCode.CONFIG,
}
_WITHOUT_TEXT: dict[str, str] = {
    ErrorCode.NOT_FOUND: "the cluster does not know what was asked for",
    ErrorCode.CONFLICT: "a different job was submitted with this key; choose another --key",
    ErrorCode.FORBIDDEN: "this credential may not do that",
    ErrorCode.UNKNOWN_TYPE: "this manager runs another version of Squall and cannot do that",
    ErrorCode.INTERNAL: "the manager failed; its log says why",
}


def request_refused(error: RemoteError) -> RequestRefused:
    """The refusal of a manager as one line for people."""
    text = error.text or _WITHOUT_TEXT.get(error.code, error.code)
    return RequestRefused(text, error.code, _EXIT_CODES.get(error.code, ExitCode.INTERNAL))
