"""What a gate pays to merge the live numbers of many datacenters: `python -m lab.scale_merging`.

Every second each datacenter sends one report of its part, summed over all its shares, so its size
depends on the steps of the test and not on the number of workers. The job's leader among the gates
decodes and adds it, and makes one snapshot a second.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter

import msgspec

from squall.cluster.protocol.gates.job_reports import JobReports, WorkflowReports
from squall.cluster.results.datacenter_totals import MergedTotals
from squall.engine.run_options import RunOptions
from squall.stats.histogram import bucket_index, make_data
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from squall.stats.reports import (
    HistogramData,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)

SECONDS = 20
DRAWN = 2_000
HISTOGRAMS = 20
REQUESTS_PER_STEP = 20_000
"""In a second of one datacenter: enough to fill the buckets that a real step fills."""


def measure(datacenters: int, steps: int) -> dict[str, float]:
    """CPU of one second of a job, and the bytes that it receives."""
    flow = WorkflowManifest(
        name="load",
        profile=Profile(model="closed", vus=100, max_vus=100, duration_s=3600.0),
        steps=[StepManifest(name=f"step{number}", protocol="http") for number in range(steps)],
    )
    manifest = FileManifest(path="scale.py", workflows=[flow])
    names = [f"dc{number}" for number in range(datacenters)]
    totals = MergedTotals(
        manifest, RunOptions(), [(name, 1.0 / datacenters, manifest) for name in names]
    )
    draw = random.Random(1)
    samples = [_histogram(draw) for _ in range(HISTOGRAMS)]
    spent_s, size = 0.0, 0
    for second in range(SECONDS):
        sent = [msgspec.msgpack.encode(_reports(name, second, steps, samples)) for name in names]
        size += sum(map(len, sent))
        began = time.process_time()
        for index, each in enumerate(sent):
            totals.take(index, msgspec.msgpack.decode(each, type=JobReports), float(second))
        totals.second(float(second) + 0.5)
        spent_s += time.process_time() - began
    return {
        "datacenters": datacenters,
        "steps": steps,
        "cpu_of_a_second": spent_s / SECONDS,
        "bytes_of_a_second": size / SECONDS,
    }


def _reports(stream: str, second: int, steps: int, samples: list[HistogramData]) -> JobReports:
    rows = [_row(f"step{number}", samples[number % HISTOGRAMS]) for number in range(steps)]
    report = WindowReport(
        workflow="load",
        share=0,
        window=second,
        rows=rows,
        iteration=_row("iteration", samples[0]),
        starts=StartsDelta(planned=REQUESTS_PER_STEP, made=REQUESTS_PER_STEP, dropped=0),
        requests=RequestsDelta(sent=REQUESTS_PER_STEP * steps, answered=REQUESTS_PER_STEP * steps),
        users=100,
    )
    encoded = msgspec.Raw(msgspec.msgpack.encode(report))
    workflow = WorkflowReports(name="load", started_at_s=0.0, upto=second + 1, reports=[encoded])
    return JobReports(stream=stream, elapsed_s=float(second), workers=1000, workflows=[workflow])


def _row(name: str, histogram: HistogramData) -> RowDelta:
    count = REQUESTS_PER_STEP
    outcome = OutcomeDelta("200", True, count, count, histogram)
    return RowDelta(name, started=count, outcomes=[outcome])


def _histogram(draw: random.Random) -> HistogramData:
    """The times of a service with a median of 20 ms and a long tail."""
    times = [draw.lognormvariate(math.log(0.02), 0.6) for _ in range(DRAWN)]
    found = Counter(bucket_index(each) for each in times)
    repeated = REQUESTS_PER_STEP // DRAWN
    return make_data(
        REQUESTS_PER_STEP,
        sum(times) * repeated,
        min(times),
        max(times),
        sorted(found),
        [found[bucket] * repeated for bucket in sorted(found)],
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.scale_merging", description=__doc__)
    parser.add_argument(
        "sizes",
        nargs="*",
        default=["10x1", "100x1", "100x10", "100x50"],
        metavar="DATACENTERSxSTEPS",
        help="datacenters of the job and steps of the test, for example 100x10",
    )
    for size in parser.parse_args(argv).sizes:
        datacenters, steps = (int(each) for each in size.split("x"))
        print(json.dumps(measure(datacenters, steps)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
