"""Result types: what a step returns decides whether it is measured.

A step annotated with a subclass of `CallResult` or `CustomResult` is a test step. With any
other annotation it is an action, which runs but is not measured.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


class CallResult:
    """The outcome of one protocol call made by a Squall client."""

    __slots__ = ()
    protocol: ClassVar[str] = "call"


class CustomResult:
    """Subclass this to measure any protocol of your own.

    Construct it with keywords: `timings={"total": seconds}`, `error="..."` and any field of the
    subclass. `successful` defaults to "no error".
    """

    protocol: ClassVar[str] = "custom"
    timings: dict[str, float]
    """Seconds by name; `total` is the latency of the step."""
    error: str | None
    """Why it failed; None if it did not."""

    def __init__(
        self,
        *,
        timings: dict[str, float] | None = None,
        error: str | BaseException | None = None,
        **fields: Any,
    ) -> None:
        self.timings = timings if timings is not None else {}
        self.error = None if error is None else str(error) or type(error).__name__
        for name, value in fields.items():
            setattr(self, name, value)

    @property
    def successful(self) -> bool:
        """Whether the execution counts as ok: no error, unless a subclass decides otherwise."""
        return self.error is None

    def context(self) -> str:
        """Why the call failed: the key under which failures are counted."""
        return self.error or "failed"


class TimedCall:
    """How a call inside `self.timed()` ended. Stamps are `time.perf_counter` readings."""

    __slots__ = ("answered", "ended", "started")

    def __init__(self, started: float, ended: float, answered: bool) -> None:
        self.started = started
        self.ended = ended
        # False if neither this call nor an earlier one of its step was answered.
        self.answered = answered


class Timed(CustomResult, Generic[T]):
    """The result of `await self.timed(awaitable)`: `.value` is what it returned."""

    value: T
    """What the awaitable returned."""

    def __init__(self, value: T, seconds: float) -> None:
        super().__init__(timings={"total": seconds})
        self.value = value

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.timings["total"]
