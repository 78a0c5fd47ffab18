"""Runs a scenario with one seed and returns its outcome.

The outcome of a seed depends on scenario, seed, mutant and parameters, and on nothing
else. Real time is measured for the speed only.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from lab.sim.errors import SimulationError
from lab.sim.world import World
from squall.runtime import invariants

TAIL_LINES = 60


VERDICTS = ("CheckFailed", "NotLive", "NodeFailed", "InvariantViolation")
ACCIDENTS = ("AttributeError:", "TypeError:", "NameError:", "UnboundLocalError:")


@dataclass(frozen=True)
class Scenario:
    """A program for a world, with the known bugs that it must find."""

    name: str
    summary: str
    run: Callable[[World], Awaitable[None]]
    mutants: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name of each bug that can be switched on, and what it does."""
    hunt: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parameters under which the mutants are hunted: those that aim the faults at them."""
    limit_s: float = 3600.0
    """Simulated seconds after which it counts as stuck."""


@dataclass(frozen=True)
class Outcome:
    seed: int
    failure: str
    """Empty: clean. Else one line."""
    details: str
    """The traceback of a failure that is not the verdict of a check."""
    tail: tuple[str, ...]
    digest: str
    lines: int
    simulated_s: float
    real_s: float
    tally: Mapping[str, int]

    @property
    def clean(self) -> bool:
        return not self.failure

    @property
    def is_verdict(self) -> bool:
        """The simulation judged the code, and no mistake in a mutant or scenario stopped it."""
        is_accident = any(error in self.failure for error in ACCIDENTS)
        return self.failure.startswith(VERDICTS) and not is_accident


def run_seed(
    scenario: Scenario,
    seed: int,
    *,
    mutant: str | None = None,
    parameters: Mapping[str, str] | None = None,
    echo: Callable[[str], None] | None = None,
    packets: bool = False,
) -> Outcome:
    world = World(seed, mutant=mutant, parameters=parameters, limit_s=scenario.limit_s, echo=echo)
    started = time.perf_counter()
    failure = details = ""

    def violated(violation: invariants.InvariantViolation) -> None:
        # A violation counts even if the code that raised it swallows it.
        world.loop.fail(violation, "", None)

    with invariants.watching(violated):
        try:
            world.loop.run(_run(scenario, world))
        except SimulationError as error:
            failure = f"{type(error).__name__}: {error}"
            cause = error.__cause__
            details = "" if cause is None else "".join(traceback.format_exception(cause))
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            details = "".join(traceback.format_exception(error))
    if failure:
        world.trace.note("scenario", failure.partition("\n")[0])
    outcome = Outcome(
        seed,
        failure,
        details,
        tuple(world.trace.tail(TAIL_LINES, packets=packets)),
        world.trace.digest(),
        world.trace.lines,
        world.now,
        time.perf_counter() - started,
        world.tally,
    )
    world.close()
    # Between two runs, so that no run collects the garbage of another one.
    gc.collect()
    return outcome


async def _run(scenario: Scenario, world: World) -> None:
    await scenario.run(world)
