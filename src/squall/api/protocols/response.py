"""What the responses of all protocols that are not HTTP have in common."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from squall.api.results import CallResult


class CallTimings(NamedTuple):
    """Times in seconds."""

    connect_s: float
    """Until the call had its connection: name, connect, TLS, log-in, or the wait for a free one of
    a pool. 0 on a reused connection, and not in `total_s`."""
    first_byte_s: float
    """From sending the request to the first byte of the answer."""
    total_s: float
    """From sending the request to the last byte of the answer."""


class CallSource(Protocol):
    """What was asked, and of whom; the texts are made on demand."""

    @property
    def address(self) -> str:
        """The URL without its password."""
        ...

    @property
    def operation(self) -> str:
        """Like "GET cart:7"."""
        ...


class ProtocolResponse(CallResult, msgspec.Struct, eq=False, gc=False):
    """One answered call. Stamps are `time.perf_counter` readings. A subclass adds fields with
    defaults."""

    source: CallSource
    started: float
    first_byte: float
    ended: float
    connect_s: float = 0.0
    error: str = ""
    """Why the call failed, in the words or with the code of the server; empty if it did not. Calls
    with equal errors are counted together."""
    bytes_sent: int = 0
    bytes_received: int = 0
    answered: bool = True
    # Calls behind this response; more than 1 for a pipeline.
    exchanges: int = 1

    @property
    def ok(self) -> bool:
        """Whether the server did what was asked."""
        return not self.error

    @property
    def failure(self) -> str:
        """The key under which a failed call is counted; empty if it did not fail."""
        return self.error

    @property
    def url(self) -> str:
        """The address of the server, without the password."""
        return self.source.address

    @property
    def request(self) -> str:
        """Like "REDIS GET cart:7 redis://127.0.0.1:6379": what was asked."""
        return f"{self.protocol.upper()} {self.source.operation} {self.source.address}"

    @property
    def text(self) -> str:
        """The answer as `--once` and the sample of a failure show it."""
        return self.error

    @property
    def status_code(self) -> int:
        """0: only answers of HTTP have a status."""
        return 0

    @property
    def timings(self) -> CallTimings:
        """How long connecting, the first byte and the whole call took."""
        return CallTimings(
            self.connect_s, self.first_byte - self.started, self.ended - self.started
        )

    def __repr__(self) -> str:
        outcome = self.error or f"{self.bytes_received} B"
        return f"<{type(self).__name__} {self.source.operation}: {outcome}>"
