"""What a client of a cluster can fail with, and which exit code each has.

SquallError
├── Unreachable     3    no manager answers, or none that knows our secret
├── JobLost         3    a job that was accepted is not known any more
└── Refused              a manager said no; 2 for a wrong question, 104 for a wrong job
"""

from __future__ import annotations

from squall.api.errors import ExitCode, SquallError
from squall.wire.errors import RemoteError
from squall.wire.messages import ErrorCode


class Unreachable(SquallError):
    exit_code = ExitCode.UNREACHABLE


class JobLost(SquallError):
    """The log that held the job is gone."""

    exit_code = ExitCode.UNREACHABLE


class Refused(SquallError):
    """`code` is the `ErrorCode` of the answer."""

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
    ErrorCode.NOT_FOUND: "the cluster does not know it",
    ErrorCode.CONFLICT: "another job was submitted with this key",
    ErrorCode.FORBIDDEN: "this credential may not do that",
    ErrorCode.UNKNOWN_TYPE: "this manager is of another version and cannot do that",
    ErrorCode.INTERNAL: "the manager failed; its log says why",
}


def refused(error: RemoteError) -> Refused:
    """The answer of a manager as the one line that a person reads."""
    text = error.text or _WITHOUT_TEXT.get(error.code, error.code)
    return Refused(text, error.code, _EXIT_CODES.get(error.code, ExitCode.INTERNAL))
