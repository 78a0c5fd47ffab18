"""Estimates the error of a step's numbers with a block bootstrap over its windows.

The seconds of a run resemble their neighbours, so the bootstrap draws blocks of five seconds,
not single ones; with several runs per side it draws whole runs first. A number of a side is
always computed from the summed counts and buckets of a draw, never averaged. The spread over many
draws is its standard error, and Student's t with the degrees of freedom of the draws turns it into
an interval: plain percentiles of the draws are too narrow for a dozen blocks or three runs. The
draws are seeded: the same documents give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from squall.stats.histogram import bucket_bounds_s

BLOCK_S = 5
DRAWS = 300
"""Enough for a standard error within 4 %."""
RUN_NOISE = 0.005
"""The usual difference of two runs of the same code. A single run per side cannot show it, because
its own seconds agree with each other better than with another run."""
# How many runs the usual difference weighs as much as.
_PRIOR_RUNS = 4
_SEED = 20

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class RunWindows:
    """One row of one run: its whole windows in order, one line each."""

    every_s: int
    count: Counts
    failed: Counts
    buckets: dict[int, Counts]
    """By index of the bucket, a count per window."""
    samples: int
    """In all buckets: a failure may have no latency."""

    @property
    def size(self) -> int:
        return len(self.count)


@dataclass(frozen=True)
class Estimate:
    """A number of one side, its variance, and the variance's degrees of freedom."""

    value: float
    variance: float
    """The variance of the number itself, or of its logarithm where ratios are judged."""
    freedom: float


@dataclass(frozen=True)
class SideEstimates:
    rate: Estimate
    p50: Estimate
    p99: Estimate
    failed: Estimate


def estimate_side(runs: Sequence[RunWindows]) -> SideEstimates:
    """The estimates of one side for one row. Every run must have windows with samples."""
    columns = sorted({index for run in runs for index in run.buckets})
    tables = [_table(run, columns) for run in runs]
    spans = [float(run.every_s) for run in runs]
    point = _numbers(_whole(tables, spans), columns)
    blocks = [max(1, round(BLOCK_S / run.every_s)) for run in runs]
    rng = np.random.default_rng(_SEED)
    within = _spread(_draw(rng, tables, spans, blocks, over_runs=False), columns)
    in_blocks = sum(max(len(t) // b - 1, 1) for t, b in zip(tables, blocks, strict=True))
    between = np.zeros_like(within)
    if len(runs) > 1:
        # Draws of n runs show (n - 1) / n of the variance between runs.
        scale = len(runs) / (len(runs) - 1)
        both = _spread(_draw(rng, tables, spans, blocks, over_runs=True), columns) * scale
        between = np.maximum(both - within, 0.0)
    # Rate, p50 and p99; failures are too rare for a usual difference.
    priors = (_PRIOR_RUNS, _PRIOR_RUNS, _PRIOR_RUNS, 0)
    estimates = [
        _estimate(*numbers, in_blocks, len(runs))
        for numbers in zip(point, within.tolist(), between.tolist(), priors, strict=True)
    ]
    return SideEstimates(*estimates)


def student_t(confidence: float, freedom: float) -> float:
    """How many standard errors an interval of this confidence extends to either side."""
    # With t = sqrt(n) tan(a) the density becomes cos(a)**(n - 1), which is easily summed.
    angle = np.linspace(0.0, math.pi / 2, 20_001)
    density = np.cos(angle) ** (freedom - 1)
    within = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    at = float(np.interp(confidence, within / within[-1], angle))
    return math.sqrt(freedom) * math.tan(at)


def _estimate(
    value: float, within: float, between: float, prior_runs: int, in_blocks: int, runs: int
) -> Estimate:
    """Two or three runs show little of how much runs differ, so the usual difference is
    weighed in. The degrees of freedom follow Welch and Satterthwaite."""
    in_runs = runs - 1 + prior_runs
    if in_runs:
        usual = RUN_NOISE**2 / runs
        between = (prior_runs * usual + (runs - 1) * between) / in_runs
    total = within + between
    if not total or not between:
        return Estimate(value, total, float(in_blocks))
    return Estimate(value, total, total**2 / (within**2 / in_blocks + between**2 / in_runs))


def _table(run: RunWindows, columns: Sequence[int]) -> Floats:
    """A line per window: count, failed, then the buckets."""
    empty = np.zeros(run.size, dtype=np.int64)
    parts = [run.count, run.failed, *(run.buckets.get(index, empty) for index in columns)]
    return np.column_stack(parts).astype(np.float64)


def _whole(tables: Sequence[Floats], spans: Sequence[float]) -> Floats:
    """One line: seconds, count, failed, buckets of everything."""
    added = sum(table.sum(axis=0) for table in tables)
    seconds = sum(len(table) * span for table, span in zip(tables, spans, strict=True))
    return np.concatenate(([seconds], np.asarray(added)))[np.newaxis, :]


def _draw(
    rng: np.random.Generator,
    tables: Sequence[Floats],
    spans: Sequence[float],
    blocks: Sequence[int],
    *,
    over_runs: bool,
) -> Floats:
    """A line per draw, as `_whole` makes it."""
    lines = np.zeros((DRAWS, 1 + tables[0].shape[1]))
    for place in range(len(tables)):
        chosen = np.full(DRAWS, place)
        if over_runs:
            chosen = rng.integers(0, len(tables), size=DRAWS)
        for index, table in enumerate(tables):
            rows = np.flatnonzero(chosen == index)
            if not len(rows):
                continue
            weights = _block_weights(rng, len(rows), len(table), blocks[index])
            lines[rows, 0] += len(table) * spans[index]
            lines[rows, 1:] += weights @ table
    return lines


def _block_weights(rng: np.random.Generator, draws: int, size: int, block: int) -> Floats:
    """How often each window is in each draw; blocks wrap around from the end to the start."""
    starts = rng.integers(0, size, size=(draws, math.ceil(size / block), 1))
    picked = ((starts + np.arange(block)) % size).reshape(draws, -1)[:, :size]
    places = (picked + np.arange(draws)[:, np.newaxis] * size).ravel()
    return np.bincount(places, minlength=draws * size).reshape(draws, size).astype(np.float64)


def _numbers(lines: Floats, columns: Sequence[int]) -> list[float]:
    """Rate, p50, p99 and share of failures of one line."""
    return [float(numbers[0]) for numbers in _all_numbers(lines, columns)]


def _all_numbers(lines: Floats, columns: Sequence[int]) -> tuple[Floats, Floats, Floats, Floats]:
    seconds, count, failed = lines[:, 0], np.maximum(lines[:, 1], 1.0), lines[:, 2]
    cumulated = np.cumsum(lines[:, 3:], axis=1)
    edges = np.array([bucket_bounds_s(index) for index in columns])
    return (
        count / seconds,
        _quantile(cumulated, edges, 0.50),
        _quantile(cumulated, edges, 0.99),
        failed / count,
    )


def _quantile(cumulated: Floats, edges: Floats, q: float) -> Floats:
    """Quantiles in seconds, interpolated by rank between the edges of a bucket: a step of a
    whole bucket (1.6 %) would look like a change."""
    wanted = cumulated[:, -1:] * q
    place = np.minimum((cumulated < wanted).sum(axis=1), cumulated.shape[1] - 1)
    rows = np.arange(len(cumulated))
    below = np.where(place > 0, cumulated[rows, place - 1], 0.0)
    inside = np.maximum(cumulated[rows, place] - below, 1.0)
    share = np.clip((wanted[:, 0] - below) / inside, 0.0, 1.0)
    return edges[place, 0] + share * (edges[place, 1] - edges[place, 0])


def _spread(lines: Floats, columns: Sequence[int]) -> Floats:
    """Variances: of logarithms for rate and times, of the share itself for failures."""
    rate, p50, p99, failed = _all_numbers(lines, columns)
    logs = (np.log(numbers) for numbers in (rate, p50, p99))
    return np.array([float(np.var(numbers)) for numbers in (*logs, failed)])
