"""What must be true of a job whatever was done to the machines under it.

The judge compares three witnesses: the results document, the target's own counts, and
what is left on the machine. It knows nothing of the fault, only whether a worker was
lost for good or for a while (then, and only then, something may be unknown).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.lab.exit_codes import losses

OVERLAP_SLACK_S = 0.0
OPEN_EXCESS = 1.05
STAMPS_PER_S = 10
GAP_S = 1.5
"""Longer than a busy machine takes to wake a process."""
STAMP = "made"
"""The field of a request that says when its sender made it, in tenths of a second of the
machine's own clock. `squall target`, which may be late to read, would see two seconds in one; the
sender knows better, and the target still counts. The target of the chaos matrices needs none: it
has the kernel's stamps of all arrivals (`arrivals_s`)."""
BELOW_WINDOW_S = 0.5
BELOW_STEP_S = 0.1
FULL = 0.8
"""The load is below its target while fewer than this part of the planned starts arrive. One of
three nodes makes a third."""


@dataclass(frozen=True)
class Load:
    """What the plan allows at the target."""

    users: int = 0
    """Closed model: never more requests in flight than this."""
    rate_per_s: float = 0.0
    """Open model: never more starts than 1.05 times this in any second. Its requests carry
    `STAMP`, which the target counts."""


def problems(
    document: dict[str, Any], counts: dict[str, Any], load: Load, *, worker_lost: bool
) -> list[str]:
    """One line for each thing that is not as it must be; empty when all is well."""
    return [
        *_sums(document, counts, worker_lost),
        *_double_load(counts),
        *_too_much(counts, load),
    ]


def holes(document: dict[str, Any], counts: dict[str, Any], *, layered: bool = False) -> list[str]:
    """What must not be seen when only managers die: a share that was lost, or a while
    without any start. Between two layers the load may pause."""
    found = [f"{loss['reason']}, although only managers died" for loss in losses(document)]
    if layered:
        return found
    stamps = counts.get("arrivals_s") or [
        int(at) / STAMPS_PER_S for at in counts["fields"].get(STAMP, {})
    ]
    if not stamps:
        return [*found, "no request says when it was made"]
    gap_s = max((later - former for former, later in pairwise(sorted(stamps))), default=0.0)
    return [*found, *([f"no start for {gap_s:.1f} s"] if gap_s > GAP_S else [])]


def below_target_s(
    arrivals_s: Sequence[float], rate_per_s: float, since_s: float, until_s: float
) -> float:
    """How long between two moments fewer starts arrived than planned; `arrivals_s` is sorted."""
    below = 0
    for step in range(int((until_s - since_s - BELOW_WINDOW_S) / BELOW_STEP_S)):
        begin_s = since_s + step * BELOW_STEP_S
        first = bisect_left(arrivals_s, begin_s)
        arrived = bisect_left(arrivals_s, begin_s + BELOW_WINDOW_S) - first
        below += arrived < FULL * rate_per_s * BELOW_WINDOW_S
    return below * BELOW_STEP_S


def stated_and_real(document: dict[str, Any], counts: dict[str, Any]) -> tuple[int, int]:
    """How many requests the result calls unknown at most, and how many it did not count."""
    requests = [workflow["requests"] for workflow in document["workflows"] if workflow["requests"]]
    stated = sum(loss.get("unknown_requests") or 0 for loss in document["losses"])
    return stated, max(0, counts["total"] - sum(each["sent"] for each in requests))


def too_wide(
    stated: int, real: int, *, ratio: float, silent_s: float, rate_per_s: float, in_flight: int
) -> list[str]:
    """An unknown interval that is wider than the facts allow: more than `ratio` times what was not
    counted, and more than the lost share can have sent in `silent_s` without a witness.
    `rate_per_s` is that of the share."""
    if stated <= max(ratio * real, OPEN_EXCESS * silent_s * rate_per_s + in_flight):
        return []
    return [f"{stated} requests are called unknown, {real} were: more than {ratio:g} times as many"]


def unsaid(document: dict[str, Any], live: str, logs: str) -> list[str]:
    """Losses that the live output or the log did not name. Of a share that began late nothing is
    lost but its first moments, which are known only once it begins: the result names them."""
    found: list[str] = []
    for loss in losses(document):
        number, attempt, worker = loss["share"], loss["attempt"], loss["worker"]
        if not worker and (lost := loss.get("datacenter")):
            # The whole part is lost: the gates say so, and the log of the datacenter cannot.
            if not re.search(rf"part \d+ in {re.escape(lost)} is lost", live):
                found.append(f"the live output does not name the loss of datacenter {lost}")
            continue
        if not re.search(rf"share {number} on {re.escape(worker)} (lost|ended early)", live):
            found.append(f"the live output does not name the loss of share {number} on {worker}")
        lost = rf"share_lost .*share={number} attempt={attempt}\b"
        if not re.search(rf"{lost}|shares_ended_early .*\b{number}#{attempt}\b", logs):
            found.append(f"no log names the loss of share {number}, attempt {attempt}")
    return found


def _sums(document: dict[str, Any], counts: dict[str, Any], worker_lost: bool) -> Iterator[str]:
    """counted <= the target's count <= counted + interrupted + unknown outcome + u."""
    requests = [workflow["requests"] for workflow in document["workflows"] if workflow["requests"]]
    sent = sum(each["sent"] for each in requests)
    answered = sum(each["answered"] for each in requests)
    unknown = sum(loss.get("unknown_requests") or 0 for loss in document["losses"])
    total = counts["total"]
    if unknown and not worker_lost:
        yield f"{unknown} requests are called unknown although no worker was lost"
    if answered > total:
        yield f"{answered} answers are counted, the target gave only {total}"
    if total > sent + unknown:
        yield f"the target saw {total} requests, the result accounts for {sent} + {unknown}"


def _double_load(counts: dict[str, Any]) -> Iterator[str]:
    """Attempts at one share follow each other; they never overlap."""
    by_share: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for name, times in counts["attempt_times"].items():
        share, _, attempt = name.rpartition("#")
        if share:
            by_share.setdefault(share, []).append((int(attempt), times))
    for share, attempts in by_share.items():
        attempts.sort(key=lambda entry: entry[0])
        for (number, former), (_, later) in pairwise(attempts):
            if later["first_s"] < former["last_s"] - OVERLAP_SLACK_S:
                over_s = former["last_s"] - later["first_s"]
                yield f"{share}: attempt {number} sent {over_s:.3f} s into the next"


def _too_much(counts: dict[str, Any], load: Load) -> Iterator[str]:
    if load.users and counts["max_concurrent_requests"] > load.users:
        yield f"{counts['max_concurrent_requests']} requests in flight with {load.users} users"
    if load.rate_per_s:
        yield from _too_fast(counts, load.rate_per_s)


def _too_fast(counts: dict[str, Any], rate_per_s: float) -> Iterator[str]:
    """In any second, wherever it begins."""
    # A process may lose its core between a start and its request: one each.
    shares = {name.rpartition("#")[0] for name in counts["attempt_times"]}
    most = int(rate_per_s * OPEN_EXCESS) + len(shares)
    if "arrivals_s" in counts:
        arrived = most_in_a_second(counts["arrivals_s"])
    else:
        made = {int(at): count for at, count in counts["fields"].get(STAMP, {}).items()}
        if sum(made.values()) != counts["total"]:
            yield f"{counts['total'] - sum(made.values())} requests do not say when they were made"
            return
        tenths = range(STAMPS_PER_S)
        arrived = max((sum(made.get(at + tenth, 0) for tenth in tenths) for at in made), default=0)
    if arrived > most:
        yield f"{arrived} starts in a second, the plan allows {most}"


def most_in_a_second(arrivals_s: Sequence[float]) -> int:
    """`arrivals_s` is sorted."""
    return max(
        (bisect_left(arrivals_s, at + 1.0) - first for first, at in enumerate(arrivals_s)),
        default=0,
    )
