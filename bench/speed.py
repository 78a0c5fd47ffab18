"""Squall against wrk, k6 and Locust on one core, as ratios.

nginx has core 0, the generator core 1. Rounds are interleaved, because a shared machine
changes its speed by a third between minutes: a ratio is taken within one round only, and
the table shows medians with quartiles. Squall's counts are held against nginx's own.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import generators
from generators import Outcome
from nginx_target import Nginx

Generator = Callable[[str, int, int], Outcome]
PEER_ROUNDS = 3
PEER_SECONDS = 3
"""k6 and Locust are slower by an order of magnitude: fewer and shorter rounds will do."""
WARMUP_S = 20
"""Ten thousand users have connected by then; the collector has frozen what they are."""


@dataclass(frozen=True)
class Row:
    """One line of the table. `bar` is the limit, on the side that `at_least` says."""

    what: str
    value: float
    shown: str
    bar: float
    bar_shown: str
    at_least: bool

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def main() -> int:
    options = _options()
    if (os.cpu_count() or 1) < 2:
        print("two cores are needed: one for nginx, one for the generator", file=sys.stderr)
        return 1
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with Nginx(core=0) as nginx:
        rows = _against_peers(nginx, options.rounds, options.seconds)
        rows += _many_connections(nginx, options.rounds, options.seconds)
        rows += _many_users(nginx, options.seconds)
    print(f"\none core, GET of 12 bytes, {options.rounds} rounds of {options.seconds} s")
    for row in rows:
        print(f"  {row.what:<34}{row.shown:<24}{row.bar_shown:<12}{_mark(row)}")
    return 1 if options.check and not all(row.holds for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=int, default=5, help="length of one run (5)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s, to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 2
    return options


def _against_peers(nginx: Nginx, rounds: int, seconds: int) -> list[Row]:
    """64 users: squall and wrk in every round, k6 and Locust in the first ones."""
    ratios: dict[str, list[float]] = {"wrk": [], "k6": [], "locust": []}
    parent_cpu: list[float] = []
    wrong_counts = 0
    for number in range(rounds):
        pair = _pair(nginx, number, 64, seconds)
        parent_cpu.append(_parent_cpu(pair.squall.document))
        wrong_counts += not pair.counts_agree
        ratios["wrk"].append(pair.squall.rate / pair.wrk.rate)
        if number < PEER_ROUNDS:
            for peer in (generators.k6, generators.locust):
                outcome = _told(peer, nginx, 64, min(seconds, PEER_SECONDS))
                ratios[peer.__name__].append(pair.squall.rate / outcome.rate)
    return [
        _ratio_row("squall / wrk, 64 users", ratios["wrk"], 0.5),
        _ratio_row("squall / k6, 64 users", ratios["k6"], 4),
        _ratio_row("squall / Locust, 64 users", ratios["locust"], 8),
        _limit_row("parent process, % of a core", max(parent_cpu) * 100, 5),
        _limit_row("runs whose count is not nginx's", wrong_counts, 0),
    ]


def _many_connections(nginx: Nginx, rounds: int, seconds: int) -> list[Row]:
    pairs = [_pair(nginx, number, 1000, seconds) for number in range(rounds)]
    ratios = [pair.squall.rate / pair.wrk.rate for pair in pairs]
    return [_ratio_row("squall / wrk, 1000 users", ratios, 0.45)]


def _many_users(nginx: Nginx, seconds: int) -> list[Row]:
    """10,000 users: memory, and the longest pause of the collector once all are connected.

    Loop lag is not a pause here: the loop of a saturated core sees thousands of ready
    sockets per turn and is late because it works.
    """
    warmup = ("--warmup", f"{WARMUP_S}s")
    outcome = generators.squall(nginx.url, 10_000, WARMUP_S + seconds, *warmup)
    _tell("squall", 10_000, outcome)
    processes = outcome.document["generator"]["processes"]
    pauses = [process["gc_ms_max"] for process in processes]
    memory = max(process["rss_mb"] for process in processes)
    return [
        _limit_row("resident, 10000 users, MB", memory, 120),
        _limit_row("longest pause, 10000 users, ms", max(pauses), 20),
    ]


@dataclass(frozen=True)
class Pair:
    """Squall and wrk in the same round."""

    squall: Outcome
    wrk: Outcome
    counted: int
    """What nginx counted while squall ran."""

    @property
    def counts_agree(self) -> bool:
        requests = self.squall.document["workflows"][0]["requests"]
        return requests["answered"] <= self.counted <= requests["sent"]


def _pair(nginx: Nginx, number: int, users: int, seconds: int) -> Pair:
    """Who goes first changes with every round."""
    wrk = _told(generators.wrk, nginx, users, seconds) if number % 2 == 0 else None
    before = nginx.requests()
    squall = _told(generators.squall, nginx, users, seconds)
    counted = nginx.requests() - before
    print(f"{'':<10}nginx counted {counted}, squall sent {squall.requests}")
    return Pair(squall, wrk or _told(generators.wrk, nginx, users, seconds), counted)


def _told(generator: Generator, nginx: Nginx, users: int, seconds: int) -> Outcome:
    outcome = generator(nginx.url, users, seconds)
    _tell(generator.__name__, users, outcome)
    return outcome


def _tell(name: str, users: int, outcome: Outcome) -> None:
    print(f"{name:<10}{users:>6} users {outcome.rate:>10.0f}/s", flush=True)


def _parent_cpu(document: Mapping[str, Any]) -> float:
    return float(document["generator"]["parent_cpu"])


def _ratio_row(what: str, ratios: list[float], bar: float) -> Row:
    median = statistics.median(ratios)
    low = high = median
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    shown = f"{median:.2f}  [{low:.2f} {high:.2f}]"
    return Row(what, median, shown, bar, f">= {bar:g}", at_least=True)


def _limit_row(what: str, value: float, bar: float) -> Row:
    return Row(what, value, f"{value:.3g}", bar, f"<= {bar:g}", at_least=False)


def _mark(row: Row) -> str:
    return "ok" if row.holds else "FAIL"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError) as problem:
        sys.exit(f"bench/speed.py: {problem}")
