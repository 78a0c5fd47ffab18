"""What a host of attempts reports to its owner. Keys are opaque to the engine."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, TypeVar

import msgspec

from squall.engine.core_protocol import OutputLine
from squall.stats.attempt_record import RecordEnd, SurvivingCounters
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

HostReport = WindowReport | HealthReport | ErrorSample | OutputLine | SurvivingCounters
"""`SurvivingCounters` come once, before the end of an attempt whose process died."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt cannot run."""

    text: str
    """One line that says what is wrong, where, and what to do."""
    exit_code: int
    retryable: bool = False
    """Another worker, or the same one later, may run it."""


class AttemptEvents(Protocol[K_contra]):
    """Receives the events of attempts. Each call runs in its own turn of the loop, never inside a
    call from the owner to the host."""

    def on_loaded(self, key: K_contra) -> None:
        """The code is loaded. No user is open, and no request was sent."""
        ...

    def on_ready(self, key: K_contra) -> None: ...
    def on_refused(self, key: K_contra, refusal: Refusal) -> None: ...
    def on_report(self, key: K_contra, report: HostReport) -> None: ...
    def on_held(self, key: K_contra, why: str, silent_s: float) -> None:
        """The process is alive, but its loop is blocked; `why` is "" when it runs again."""
        ...

    def on_ended(self, key: K_contra, end: RecordEnd) -> None:
        """`end.cut` says why it ended before its time; empty for an end by itself."""
        ...
