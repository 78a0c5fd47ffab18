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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast

from squall.api.errors import TransportError
from squall.api.quantities import parse_span
from squall.api.results import Timed, TimedCall

if TYPE_CHECKING:
    from squall.api.protocols.clients import Clients
    from squall.api.reporting import RunReporter

T = TypeVar("T")


class CheckSink(Protocol):
    """Where inline checks are counted."""

    def check(self, name: str, passed: bool) -> None: ...


class CallNotes(Protocol):
    """The part of a user's client that knows the last exchange of the running step."""

    def note(self, outcome: TimedCall) -> None: ...


class VU:
    """`self.vu`: the virtual user. `id` is unique over the whole test, `iteration` is the number of
    the user's present iteration, from 1."""

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
    """Scheme, name and port for URLs that begin with `/`; `--host` replaces it."""
    vus: ClassVar[int] = 1
    """Virtual users. With `rate`: the users that are ready at the start."""
    duration: ClassVar[str | float] = "1m"
    """How long the load lasts: seconds, or text such as `"1m30s"`."""
    iterations: ClassVar[int | str] = 0
    """Iterations in total, shared by all users: `500` or `"10k"`; `"10/vu"` by each user."""
    stages: ClassVar[Sequence[str]] = ()
    """A ramp of users (`["30s:100", "2m:100"]`) or of starts (`["1m:50/s", "5m:200/s"]`)."""
    rate: ClassVar[str | float] = 0
    """Open model: planned starts of iterations, such as `"500/s"`."""
    max_vus: ClassVar[int] = 0
    """Open model: the most users at any time; 0 is the larger of 100 and ten seconds of starts."""
    start_after: ClassVar[str | float] = 0
    """The load begins so long after that of the other workflows of its layer."""
    think: ClassVar[str | float] = 0
    """Wait after each iteration: `"1s"`, or a random time in `"1s..3s"`."""
    pacing: ClassVar[str | float] = 0
    """Least time between the starts of two iterations of a user."""
    grace: ClassVar[str | float] = "10s"
    """How long running iterations may take to end after the load has ended."""
    timeout: ClassVar[str | float] = "60s"
    """Limit for a call that has no limit of its own."""
    weight: ClassVar[int] = 1
    """The part of this workflow in a load for several: `-u 100` over weights 3 and 1."""
    priority: ClassVar[str] = "auto"
    """`"low"`, `"normal"`, `"high"`, `"exclusive"` or `"auto"`: which workflows get own cores."""
    thresholds: ClassVar[str | Sequence[str]] = ()
    """Conditions that the run must meet, such as `"pay.p(99) < 800ms"`."""
    connections: ClassVar[Literal["vu", "iteration", "request", "shared"]] = "vu"
    """How long a connection is used: by one user, for one iteration or request, or by all users."""
    streams: ClassVar[int] = 10
    """With `connections = "shared"`: users that share one HTTP/2 connection."""
    pool_size: ClassVar[int] = 10
    """With `connections = "shared"`: connections of each process to a server that is not HTTP, such
    as a database. A call waits for a free one."""
    http: ClassVar[Literal["1.1", "auto"]] = "1.1"
    """`"auto"`: `self.client.http` speaks HTTP/2 with `https://` servers that choose it."""
    session: ClassVar[Literal["iteration", "vu"]] = "iteration"
    """`"vu"` keeps cookies from one iteration to the next."""
    on_failure: ClassVar[Literal["stop", "continue"]] = "continue"
    """Whether a failed status ends the iteration. `@step(on_failure=...)` decides for one step."""
    on_control_loss: ClassVar[Literal["stop", "continue"]] = "stop"
    """On a cluster: `"continue"` keeps the load up when no manager answers; it may then overlap."""
    reporting: ClassVar[RunReporter | Sequence[RunReporter] | None] = None
    """Reporters that get the results in addition to the outputs of the command line."""

    client: Clients
    """The clients of this user, one per protocol: `self.client.http`."""
    context: dict[str, Any]
    """Values by name for this iteration: results of steps and start actions, and your own."""
    vu: VU
    """This virtual user: its id, iteration and random generator."""
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
        try:
            value = await call
        except BaseException as error:
            self._note(began, answered=not has_no_answer(error))
            raise
        return Timed(value, self._note(began, answered=True))

    def _note(self, began: float, *, answered: bool) -> float:
        """Makes a timed call the last exchange of its step, whose latency a failure gets."""
        ended = perf_counter()
        cast("CallNotes", self.client.http).note(TimedCall(began, ended, answered))
        return ended - began


def has_no_answer(error: BaseException | None) -> bool:
    """Whether an exception of any library says that the peer did not answer: a connection that
    failed or was lost, a timeout, a cancellation. Libraries wrap such errors in their own, so the
    causes count too."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError | EOFError | TransportError | asyncio.CancelledError):
            return True
        error = error.__cause__ or error.__context__
    return False
