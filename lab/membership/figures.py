"""`python -m lab.membership.figures`: the tables of docs/membership.md.

Squall's core and plain SWIM with memberlist's LAN parameters run in the same light simulator. A
seed determines every figure. `--quick` takes a tenth of the samples; a table's name runs that
table alone.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from lab.membership import measures
from lab.membership.clusters import Make, lifeguard, plain
from lab.membership.measures import FalseDeaths, percentile
from squall.cluster.membership.parameters import FAST, LAN

PROTOCOLS = ("squall", "squall, fast", "plain SWIM")
SIZES = (3, 10, 100, 500)
CRASHES = {3: 100, 10: 100, 100: 500, 500: 30}
"""By members. The goal is about 100: one crash in a hundred needs a sample of hundreds."""
PAUSED = (1, 2, 4, 8, 16, 32)
LOSSES = (0.0, 0.01, 0.05, 0.20)
SLOW_TURN_S = 0.1
"""Mean turn of a healthy loop where a tenth of the loops is ten times slower."""
PART_HOURS = 25.0
"""Longer samples are split, each part with a seed of its own."""
T = TypeVar("T")


def make_of(protocol: str) -> Make:
    return {"squall": lifeguard(LAN), "squall, fast": lifeguard(FAST)}.get(protocol, plain)


# One cell of a table each; a process of the pool computes it.


def crash_cell(protocol: str, members: int, crashes: int) -> str:
    times = measures.crash_times(make_of(protocol), members, crashes, seed=1)
    first = " / ".join(f"{percentile(times.first_s, share):.2f}" for share in (0.5, 0.99))
    known = " / ".join(f"{percentile(times.all_s, share):.2f}" for share in (0.5, 0.99))
    missed = f", {times.missed} not known by all" if times.missed else ""
    return f"{first} | {known}{missed}"


def false_cell(protocol: str, members: int, node_hours: float, loss: float, slow: bool) -> str:
    total = FalseDeaths()
    parts = max(round(node_hours / PART_HOURS), 1)
    for seed in range(1, parts + 1):
        found = measures.false_deaths(
            make_of(protocol),
            members,
            node_hours / parts * 3600.0 / members,
            seed,
            loss=loss,
            slow_share=0.1 if slow else 0.0,
            turn_s=SLOW_TURN_S if slow else 0.0,
        )
        total.node_hours += found.node_hours
        total.declared += found.declared
    return per_hour(total)


def pause_cell(protocol: str, paused: int, seconds: float) -> tuple[int, int, float]:
    found = measures.paused_deaths(make_of(protocol), 128, paused, seconds, seed=1)
    return found.declared, found.held, found.node_hours


def traffic_cell(protocol: str, members: int, seconds: float) -> str:
    rate = measures.traffic(make_of(protocol), members, seconds, seed=1)
    return f"{rate.messages:.2f} | {rate.bytes:.0f}"


def heal_cell(protocol: str, members: int, cut_s: float, seeds: int) -> str:
    times = [
        measures.heal_time(make_of(protocol), members, cut_s, seed, within_s=60.0)
        for seed in range(1, seeds + 1)
    ]
    if math.isinf(max(times)):
        healed = sum(not math.isinf(time) for time in times)
        return f"not within 60 s ({healed} of {seeds} did)"
    return f"{percentile(times, 0.5):.2f} / {max(times):.2f}"


def per_hour(found: FalseDeaths) -> str:
    return f"{found.per_node_hour:.3f} ({found.declared} in {found.node_hours:.0f} h)"


# The tables.


class Tables:
    def __init__(self, pool: ProcessPoolExecutor, share: float) -> None:
        self._pool = pool
        self._share = share

    def crash(self) -> None:
        """From a crash to its first and its last observer."""
        self._table(
            "protocol | members | first detection p50 / p99, s | known by all p50 / p99, s",
            crash_cell,
            [
                (protocol, members, max(int(CRASHES[members] * self._share), 10))
                for protocol in PROTOCOLS
                for members in SIZES
            ],
        )

    def loss(self) -> None:
        """False deaths by loss and slow members; no member stops or crashes."""
        cells: list[tuple[object, ...]] = []
        for protocol in ("squall", "plain SWIM"):
            for members in SIZES:
                hours = (100.0 if members == 100 else 20.0) * self._share
                cells += [(protocol, members, hours, loss, False) for loss in LOSSES]
                if members >= 10:
                    cells.append((protocol, members, hours, 0.0, True))
        self._table(
            "protocol | members | node-hours | loss | slow tenth | false deaths per node-hour",
            false_cell,
            cells,
        )

    def pauses(self) -> None:
        """False deaths while some of 128 members stop and go on."""
        seconds = max(300.0 * self._share, 60.0)
        print("protocol | paused members | false deaths declared | per node-hour | heard late")
        for protocol in ("squall", "plain SWIM"):
            cells = [(protocol, paused, seconds) for paused in PAUSED]
            total = 0
            for cell, (declared, heard, hours) in zip(
                cells, self._run(pause_cell, cells), strict=True
            ):
                total += declared
                rate = declared / hours
                print(f"{protocol} | {cell[1]} | {declared} | {rate:.3f} | {heard}", flush=True)
            print(f"{protocol} | all | {total}", flush=True)

    def traffic(self) -> None:
        """The traffic of a node in a calm group."""
        self._table(
            "protocol | members | messages a second | bytes a second",
            traffic_cell,
            [
                (protocol, members, max(60.0 * self._share, 30.0))
                for protocol in PROTOCOLS
                for members in SIZES
            ],
            hide=1,
        )

    def heal(self) -> None:
        """The time from the end of a 50/50 partition until all members see all others alive."""
        seeds = max(int(5 * self._share), 2)
        self._table(
            "protocol | members | partition, s | healed after median / longest, s",
            heal_cell,
            [
                (protocol, members, cut_s, seeds)
                for protocol in ("squall", "plain SWIM")
                for members in (10, 100)
                for cut_s in (15.0, 120.0)
            ],
            hide=1,
        )

    def _table(
        self,
        head: str,
        cell: Callable[..., str],
        rows: Sequence[tuple[object, ...]],
        hide: int = 0,
    ) -> None:
        print(head)
        for row, text in zip(rows, self._run(cell, rows), strict=True):
            shown = row[: len(row) - hide]
            if cell is crash_cell:
                shown = row[:2]
            print(" | ".join([*map(str, shown), text]), flush=True)

    def _run(self, cell: Callable[..., T], rows: Sequence[tuple[object, ...]]) -> Iterator[T]:
        """Yields the results in order, each as soon as it and those before it are ready."""
        futures = [self._pool.submit(cell, *row) for row in rows]
        yield from (future.result() for future in futures)


TABLES = ("crash", "loss", "pauses", "traffic", "heal")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.membership.figures", description="Prints the figures of membership."
    )
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; default all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--jobs", type=int, default=1, help="processes, default 1")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.tables if name not in TABLES]
    if unknown:
        parser.error(f"there is no table {unknown[0]!r}; there are: {', '.join(TABLES)}")
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        tables = Tables(pool, 0.1 if arguments.quick else 1.0)
        for name in arguments.tables or TABLES:
            table: Callable[[], None] = getattr(tables, name)
            print(f"\n# {name}: {table.__doc__}")
            table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
