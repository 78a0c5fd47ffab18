"""Runs many seeds of one scenario in several processes.

The campaign hands out seeds in small batches. Results arrive in any order and are sorted by seed,
so they do not depend on the number of processes. It stops after the first failures, because a
person can debug only one at a time.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from lab.scenarios.registry import find
from lab.sim.run import Outcome, run_seed

BATCH = 5
"""Seeds per batch: a few seconds of work, so that progress is visible."""


@dataclass
class Result:
    """The outcome of a campaign."""

    seeds: int = 0
    simulated_s: float = 0.0
    real_s: float = 0.0
    """Real time, summed over all processes."""
    failures: list[Outcome] = field(default_factory=list[Outcome])
    """In the order of their seeds."""
    tally: Counter[str] = field(default_factory=Counter[str])

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.real_s += outcome.real_s
        self.tally.update(outcome.tally)
        if not outcome.clean:
            self.failures.append(outcome)
            self.failures.sort(key=lambda failed: failed.seed)


def run_campaign(
    name: str,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    mutant: str | None = None,
    parameters: Mapping[str, str] | None = None,
    stop_after: int = 1,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Result:
    """Runs the seeds until `stop_after` of them have failed."""
    result = Result()
    batches = [tuple(seeds[start : start + BATCH]) for start in range(0, len(seeds), BATCH)]
    outcomes = (
        _in_this_process(name, batches, mutant, parameters or {})
        if jobs <= 1
        else _in_processes(name, batches, mutant, parameters or {}, jobs)
    )
    for outcome in outcomes:
        result.add(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
        if len(result.failures) >= stop_after:
            break
    outcomes.close()
    return result


Batches = Sequence[tuple[int, ...]]


def _in_this_process(
    name: str, batches: Batches, mutant: str | None, parameters: Mapping[str, str]
) -> Generator[Outcome]:
    scenario = find(name)
    for batch in batches:
        for seed in batch:
            yield run_seed(scenario, seed, mutant=mutant, parameters=parameters)


def _in_processes(
    name: str, batches: Batches, mutant: str | None, parameters: Mapping[str, str], jobs: int
) -> Generator[Outcome]:
    # Spawn, not fork: a forked interpreter would inherit the files and sockets of this one.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin) as pool:
        left = list(reversed(batches))
        running: set[Future[list[Outcome]]] = set()
        try:
            while left or running:
                while left and len(running) < jobs * 2:
                    batch = left.pop()
                    running.add(pool.submit(_run_batch, name, batch, mutant, dict(parameters)))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    # Objects loaded by now live to the end; the collector need not scan them between seeds.
    gc.collect()
    gc.freeze()


def _run_batch(
    name: str, seeds: tuple[int, ...], mutant: str | None, parameters: dict[str, str]
) -> list[Outcome]:
    scenario = find(name)
    return [run_seed(scenario, seed, mutant=mutant, parameters=parameters) for seed in seeds]
