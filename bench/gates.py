"""Three gates in front of datacenters, all real processes on this machine: `make bench-gates`.

- `squall dev --datacenters 3 --gates 3`: the time until every datacenter takes jobs;
- submission to first request, of a job over two datacenters;
- 200 queued jobs of one second each, which the gates spread over three datacenters;
- what the gate that leads a job pays to merge the live numbers of 100 datacenters.

The table names the bar of each number; `--check` fails if one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator
from typing import NamedTuple

from cluster import first_request, queued, running
from lab.scale_merging import measure as merging
from squall.cluster.protocol.submission import Targets

READY_S = 10.0
FIRST_REQUEST_S = 0.8
GAP_S = 10.0
JOB_S = 1.0
"""Of a queued job of one second, as an average: three run beside each other."""
MERGING_CORE = 0.3
STEPS = 10
BOTH = Targets(weights=(("eu", 0.6), ("us", 0.4)))
GATED = ("--gates", "3", "--workers", "1", "--cores", "1")


class Line(NamedTuple):
    what: str
    measured: float
    bar: float
    unit: str
    note: str = ""


def measure(quick: bool) -> Iterator[Line]:
    with running(["--datacenters", "3", *GATED]) as at:
        yield Line("three gates and three datacenters are ready", at.facts["ready_s"], READY_S, "s")
        jobs = 20 if quick else 200
        whole_s, gap_s = asyncio.run(queued(at, jobs))
        yield Line(
            f"{jobs} queued jobs of 1 s: each",
            whole_s / jobs,
            JOB_S,
            "s",
            f"{whole_s:.0f} s in all",
        )
        yield Line("  longest time in which none ended", gap_s, GAP_S, "s")
    with running(["--datacenters", "2", *GATED]) as at:
        times = asyncio.run(first_request(at, 3 if quick else 9, BOTH))
        middle = statistics.median(times)
        note = f"worst {max(times) * 1000:.0f} ms"
        yield Line("submission to first request", middle * 1000, FIRST_REQUEST_S * 1000, "ms", note)
    cost = merging(100, STEPS)["cpu_of_a_second"]
    what = f"merging 100 reports a second of {STEPS} steps"
    yield Line(what, cost * 100, MERGING_CORE * 100, "% of a core")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    missed = 0
    for line in measure(options.quick):
        is_missed = line.measured > line.bar
        missed += is_missed
        end = f"  {line.note}" if line.note else ""
        mark = "MISSED" if is_missed else "ok"
        print(
            f"{line.what:48} {line.measured:8.2f} {line.unit:11} bar {line.bar:g}  {mark}{end}",
            flush=True,
        )
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
