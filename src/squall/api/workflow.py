"""`Workflow`, the class that authors subclass.

One virtual user is one instance. There are three lifetimes: attributes of `self` live as long
as the user; `self.context` and cookies start every iteration as the start actions left them;
class attributes (feeds, resources, metrics) belong to the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from squall.api.quantities import parse_span
from squall.api.results import Timed

if TYPE_CHECKING:
    from squall.api.http import Clients
    from squall.api.reporting import Reporter

T = TypeVar("T")


class CheckSink(Protocol):
    """Where inline checks are counted."""

    def check(self, name: str, passed: bool) -> None: ...


class VU:
    """The identity and state of a virtual user. `id` is unique over the whole test."""

    __slots__ = ("_random", "id", "iteration", "paused_s", "paused_until", "seed", "stop")

    def __init__(self, identity: int, seed: int) -> None:
        self.id = identity
        self.iteration = 0
        self.seed = seed
        self.paused_s = 0.0
        self.paused_until = 0.0
        self.stop = False
        self._random: random.Random | None = None

    @property
    def random(self) -> random.Random:
        """The user's own random generator, seeded with the run's seed and the id."""
        if self._random is None:
            self._random = random.Random(f"{self.seed}:{self.id}")
        return self._random

    def paused_before(self, moment: float) -> float:
        """Seconds of this iteration spent in pauses, if they were over by that moment."""
        return self.paused_s if self.paused_until <= moment else 0.0


class Workflow:
    """The base class of an author's workflows: decorate async methods with `@step()`."""

    abstract: ClassVar[bool] = False
    """True makes this class a base for other workflows that does not run itself. Not inherited."""
    host: ClassVar[str] = ""
    vus: ClassVar[int] = 1
    duration: ClassVar[str | float] = "1m"
    iterations: ClassVar[int | str] = 0
    """Of all users together; `"10/vu"` of each."""
    stages: ClassVar[Sequence[str]] = ()
    rate: ClassVar[str | float] = 0
    max_vus: ClassVar[int] = 0
    start_after: ClassVar[str | float] = 0
    """The load begins so long after that of the other workflows of its layer."""
    think: ClassVar[str | float] = 0
    pacing: ClassVar[str | float] = 0
    grace: ClassVar[str | float] = "10s"
    timeout: ClassVar[str | float] = "60s"
    weight: ClassVar[int] = 1
    """The part of this workflow in a load for several: `-u 100` over weights 3 and 1."""
    priority: ClassVar[str] = "auto"
    thresholds: ClassVar[str | Sequence[str]] = ()
    connections: ClassVar[Literal["vu", "iteration", "request", "shared"]] = "vu"
    session: ClassVar[Literal["iteration", "vu"]] = "iteration"
    on_failure: ClassVar[Literal["stop", "continue"]] = "continue"
    """Whether a failed status ends the iteration. `@step(on_failure=...)` decides for one step."""
    reporting: ClassVar[Reporter | Sequence[Reporter] | None] = None
    """Reporters that get the results in addition to the outputs of the command line."""

    client: Clients
    context: dict[str, Any]
    vu: VU
    _sink: CheckSink

    def check(self, name: str, passed: bool) -> bool:
        """Counts a check by name and returns its result. A failed check does not fail the run."""
        self._sink.check(name, bool(passed))
        return bool(passed)

    async def pause(self, duration: str | float) -> None:
        """Waits for `"1s"`, or a random time in `"1s..3s"`. Pauses never count in a latency."""
        low, high = parse_span(duration)
        began = perf_counter()
        await asyncio.sleep(low if low == high else self.vu.random.uniform(low, high))
        self.vu.paused_until = perf_counter()
        self.vu.paused_s += self.vu.paused_until - began

    async def timed(self, call: Awaitable[T]) -> Timed[T]:
        """Measures any awaitable: `return await self.timed(self.db.fetch(...))`."""
        began = perf_counter()
        value = await call
        return Timed(value, perf_counter() - began)
