"""How long to wait between tries, and when to give up: the one policy that every retry uses.

`Backoff` is a value: a module states its policy once, beside the reason for its numbers.
`Retries` counts the failures of one operation against such a policy. Neither sleeps, reads
a clock or draws by itself, so both run unchanged in the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Uniform = Callable[[float, float], float]
"""`Random.uniform` of the runtime."""

# Two to the 60th times any first delay is past any cap, and still a float.
GROWTHS_MAX = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow from `first_s` by `factor` up to `cap_s`.

    `jitter` is the share of a delay that is drawn at random: 0 waits exactly the delay, 0.5
    waits between half of it and all of it, 1 anything up to it. Use it where many nodes fail
    at the same moment and would otherwise return together.
    """

    first_s: float
    factor: float = 2.0
    cap_s: float = math.inf
    jitter: float = 0.0
    tries: int | None = None
    """How many tries an operation has in all; None tries until its deadline, or for ever."""
    deadline_s: float | None = None
    """How long after its start an operation may begin another try."""

    def __post_init__(self) -> None:
        if self.first_s < 0 or self.factor < 1 or self.cap_s < 0 or not 0 <= self.jitter <= 1:
            raise ValueError(f"no backoff: {self}")

    @classmethod
    def around(
        cls,
        first_s: float,
        spread: float,
        *,
        factor: float = 2.0,
        cap_s: float = math.inf,
        tries: int | None = None,
    ) -> Backoff:
        """Delays drawn from `spread` below to `spread` above: 0.1 waits 0.9 to 1.1 of each."""
        high = 1.0 + spread
        jitter = 2.0 * spread / high
        return cls(first_s * high, factor, cap_s * high, jitter=jitter, tries=tries)

    def delay_s(self, failures: int, uniform: Uniform | None = None) -> float:
        """The wait after this many failures in a row. Without `uniform` there is no jitter."""
        growths = min(max(failures, 1) - 1, GROWTHS_MAX)
        delay_s = min(self.cap_s, self.first_s * self.factor**growths)
        if uniform is None or self.jitter == 0:
            return delay_s
        return uniform(delay_s * (1 - self.jitter), delay_s)


class Retries:
    """Counts the failures of one operation and says when its next try may begin."""

    def __init__(self, backoff: Backoff, uniform: Uniform | None = None) -> None:
        self._backoff = backoff
        self._uniform = uniform
        self.failures = 0

    def next_delay_s(self, elapsed_s: float = 0.0) -> float | None:
        """A try failed, `elapsed_s` after the first one began: the wait before the next one,
        or None if there is no next one."""
        self.failures += 1
        backoff = self._backoff
        if backoff.tries is not None and self.failures >= backoff.tries:
            return None
        delay_s = backoff.delay_s(self.failures, self._uniform)
        if backoff.deadline_s is not None and elapsed_s + delay_s >= backoff.deadline_s:
            return None
        return delay_s

    def succeeded(self) -> None:
        """The operation worked: the next failure waits `first_s` again."""
        self.failures = 0
