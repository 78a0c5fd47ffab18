"""Squall against wrk, k6 and Locust on one core, as ratios.

nginx has core 0, the generator core 1. Rounds are interleaved, because a shared machine
changes its speed by a third between minutes: a ratio is taken within one round only, and
the table shows medians with quartiles. Squall's counts are held against nginx's own.

Ratios to wrk compare CPU time per request, which is what decides how much load a core makes and
which others on the machine change least; the rates are printed too. Ratios to k6 and
Locust compare rates, because their CPU time includes a start of seconds.
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
    rows: list[Row] = []
    with Nginx(core=0) as nginx:
        for part in options.parts or PARTS:
            rows += PARTS[part](nginx, options.rounds, options.seconds)
    print(f"\none core, {options.rounds} rounds of {options.seconds} s")
    for row in rows:
        print(f"  {row.what:<34}{row.shown:<24}{row.bar_shown:<12}{_mark(row)}")
    return 1 if options.check and not all(row.holds for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=int, default=5, help="length of one run (5)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s, to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
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
        ratios["wrk"].append(pair.ratio)
        if number < PEER_ROUNDS:
            for peer in (generators.k6, generators.locust):
                outcome = _told(peer, nginx, 64, min(seconds, PEER_SECONDS))
                ratios[peer.__name__].append(pair.squall.rate / outcome.rate)
    return [
        _ratio_row("squall / wrk, 64 users", ratios["wrk"], 0.75),
        _ratio_row("squall / k6, 64 users", ratios["k6"], 4),
        _ratio_row("squall / Locust, 64 users", ratios["locust"], 8),
        _limit_row("parent process, % of a core", max(parent_cpu) * 100, 5),
        _limit_row("runs whose count is not nginx's", wrong_counts, 0),
    ]


def _many_connections(nginx: Nginx, rounds: int, seconds: int) -> list[Row]:
    pairs = [_pair(nginx, number, 1000, seconds) for number in range(rounds)]
    return [_ratio_row("squall / wrk, 1000 users", [pair.ratio for pair in pairs], 0.6)]


def _over_tls(nginx: Nginx, rounds: int, seconds: int) -> list[Row]:
    """The same GET over TLS, and with a handshake for each."""
    requests: list[float] = []
    handshakes: list[float] = []
    url = nginx.tls_url
    for _ in range(rounds):
        wrk = generators.wrk(url, 64, seconds)
        squall = generators.squall(url, 64, seconds, "--insecure")
        requests.append(wrk.cost_s / squall.cost_s)
        _tell("wrk TLS", 64, wrk)
        _tell("squall TLS", 64, squall)
        wrk = generators.wrk(url, 64, seconds, "-H", "Connection: close")
        squall = generators.squall(url, 64, seconds, "--insecure", file="hello_close.py")
        handshakes.append(squall.cost_s / wrk.cost_s)
        _tell("wrk new", 64, wrk)
        _tell("squall new", 64, squall)
    cost = statistics.median(handshakes)
    return [
        _ratio_row("squall / wrk over TLS, 64 users", requests, 0.7),
        _limit_row("handshake, times the cost of wrk's", cost, 2),
    ]


def _journeys(nginx: Nginx, rounds: int, seconds: int) -> list[Row]:
    """GET, GET of JSON with a check, POST of JSON with a check: all three generators per round."""
    ratios: dict[str, list[float]] = {"k6": [], "locust": []}
    failed = 0
    for _ in range(rounds):
        squall = generators.squall(nginx.url, 64, seconds, file="journey.py")
        _tell("squall journey", 64, squall)
        k6 = generators.k6(nginx.url, 64, seconds, "journey.js")
        _tell("k6 journey", 64, k6)
        locust = generators.locust(nginx.url, 64, seconds, "journey_locust.py")
        _tell("locust journey", 64, locust)
        ratios["k6"].append(squall.rate / k6.rate)
        ratios["locust"].append(squall.rate / locust.rate)
        failed += squall.failed_checks + k6.failed_checks + locust.failed_checks
    return [
        _ratio_row("squall / k6, journey", ratios["k6"], 6.5),
        _ratio_row("squall / Locust, journey", ratios["locust"], 8),
        _limit_row("failed checks of all three", failed, 0),
    ]


def _many_users(nginx: Nginx, rounds: int, seconds: int) -> list[Row]:
    """10,000 users: memory, the longest pause of the collector once all are connected, and how late
    the loop of the saturated core is."""
    warmup = ("--warmup", f"{WARMUP_S}s")
    outcome = generators.squall(nginx.url, 10_000, WARMUP_S + seconds, *warmup)
    _tell("squall", 10_000, outcome)
    processes = outcome.document["generator"]["processes"]
    pauses = [process["gc_ms_max"] for process in processes]
    lags = [process["loop_lag_ms"]["p99"] for process in processes]
    memory = max(process["rss_mb"] for process in processes)
    return [
        _limit_row("resident, 10000 users, MB", memory, 100),
        _limit_row("loop lag p99, 10000 users, ms", max(lags), 100),
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
    def ratio(self) -> float:
        return self.wrk.cost_s / self.squall.cost_s

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
    cost = f"{outcome.cost_s * 1e6:>8.1f} us of CPU" if outcome.cpu_s else ""
    print(f"{name:<16}{users:>6} users {outcome.rate:>10.0f}/s{cost}", flush=True)


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


PARTS: dict[str, Callable[[Nginx, int, int], list[Row]]] = {
    "get": _against_peers,
    "tls": _over_tls,
    "journey": _journeys,
    "connections": _many_connections,
    "users": _many_users,
}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError) as problem:
        sys.exit(f"bench/speed.py: {problem}")
