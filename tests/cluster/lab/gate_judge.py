"""What must be true of a job over several datacenters, beside what is true of every job."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any


def parts_of(document: dict[str, Any], wanted: Collection[str]) -> Iterator[str]:
    """The parts of the datacenters add up to the whole. `wanted` are the datacenters that must
    have one; none: the gates chose."""
    parts = document["datacenters"]
    names = [part["name"] for part in parts]
    if wanted and sorted(names) != sorted(wanted):
        yield f"the result has the datacenters {', '.join(names)}"
    sent = sum(part["requests"]["sent"] for part in parts)
    if sent != (whole := _sent(document)):
        yield f"the datacenters sent {sent} requests, the whole job {whole}"


def whole_plan(document: dict[str, Any], wanted: int) -> Iterator[str]:
    """Every start of the plan was made. A machine that has no time for one drops and counts it."""
    starts = [each["starts"] for each in document["workflows"]]
    planned, dropped = (sum(each[key] for each in starts) for key in ("planned", "dropped"))
    if planned != wanted:
        yield f"{planned} starts were planned, the file says {wanted}"
    if (sent := _sent(document)) != planned - dropped:
        yield f"{sent} requests were sent of {planned}, {dropped} were dropped"


def overlapping_tries(counts: dict[str, Any], *, is_split: bool) -> Iterator[str]:
    """Two tries of a part never run at the same time. Senders are called after the part in a
    datacenter, "JOB.eu1/...": those of a job that was not split are all tries of one part."""
    spans: dict[str, list[float]] = {}
    for sender, times in counts["attempt_times"].items():
        local = sender.partition("/")[0]
        span = spans.setdefault(local, [times["first_s"], times["last_s"]])
        span[0], span[1] = min(span[0], times["first_s"]), max(span[1], times["last_s"])
    by_part: dict[str, list[tuple[float, float, str]]] = {}
    for local, (first, last) in spans.items():
        part = local.rpartition(".")[2].rstrip("0123456789") if is_split else ""
        by_part.setdefault(part, []).append((first, last, local))
    for tries in by_part.values():
        for former, later in pairwise(sorted(tries)):
            if later[0] < former[1]:
                yield f"{later[2]} began {former[1] - later[0]:.3f} s before {former[2]} ended"


def _sent(document: dict[str, Any]) -> int:
    return sum(each["requests"]["sent"] for each in document["workflows"] if each["requests"])
