"""What load control can end a call with.

SquallError
├── RemoteError
│   └── Overloaded        this node sheds the request; the caller gets the hint
├── ControlOverrun        a peer has too much CONTROL waiting; its connection is closed
├── CircuitOpen           not sent: the last requests to this peer failed
└── DeadlinePassed        not begun: no time was left
"""

from __future__ import annotations

from squall.api.errors import ExitCode, SquallError
from squall.wire.errors import RemoteError
from squall.wire.messages import ErrorCode


class Overloaded(RemoteError):
    """Raised where the request is served; travels to the caller as a typed answer."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(ErrorCode.OVERLOADED, retry_after_s=retry_after_s)


class ControlOverrun(SquallError):
    def __init__(self, source: str, waiting: int) -> None:
        super().__init__(f"{source or 'a peer'} has {waiting} control messages waiting")
        self.source = source
        self.waiting = waiting


class CircuitOpen(SquallError):
    """Safe to send again, or to another peer at once."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, peer: str, reason: str, *, retry_after_s: float) -> None:
        super().__init__(f"{peer} is not asked for {retry_after_s:.1f} s: {reason}")
        self.peer = peer
        self.reason = reason
        self.retry_after_s = retry_after_s


class DeadlinePassed(SquallError, TimeoutError):
    exit_code = ExitCode.UNREACHABLE
