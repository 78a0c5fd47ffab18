"""One line about lost load for each lost worker or process and workflow.

The line names the worker, the time, the amount, how long it was missing, which workers took over,
and what remains unknown. Verdict, summary, live screen and reports show the same line.
"""

from __future__ import annotations

from squall.engine.outcome import Loss
from squall.reporting.number_format import plural

STARTED_LATE = "it started late"
"""The reason of a loss that is the time before a share joined its workflow."""


def loss_line(loss: Loss) -> str:
    """`worker w2 restarted at 12.3 s: Shop, 25 users missing for 1.9 s, refilled by w1`."""
    if not loss.worker and not loss.datacenter:
        return f"process {loss.process} lost at {loss.at_s:.1f} s: {loss.reason}"
    where = f"{loss.datacenter}/" if loss.datacenter else ""
    takers = ", ".join(where + each for each in loss.refilled_by.split(", ") if each)
    happened = what_was_lost(where + loss.worker, loss.reason, takers)
    if not loss.worker:
        happened = f"datacenter {loss.datacenter} lost"
    parts = [f"{happened}{when_lost(loss.at_s, loss.is_last_heard)}: {loss.workflow}"]
    parts.append(f"{_amount(loss)} {loss.below_target_s:.1f} s")
    if loss.reason != STARTED_LATE:
        parts.append(f"refilled by {takers}" if takers else "not refilled")
    if loss.unknown_requests:
        about = " (estimate)" if loss.is_estimate else ""
        parts.append(f"0 to {plural(loss.unknown_requests, 'request')} not known{about}")
    if loss.rows:
        parts.append(f"{plural(loss.rows, 'row')} given out and not finished")
    return ", ".join(parts)


def when_lost(at_s: float, is_last_heard: bool) -> str:
    """The time of death, or of the last sign of life if nothing tells more."""
    return f"{', last heard' if is_last_heard else ''} at {at_s:.1f} s"


def what_was_lost(worker: str, reason: str, refilled_by: str) -> str:
    """Names what ended. A worker that took its own share over was not lost: it was restarted, or
    only one of its core processes died. One that was drained handed its share over."""
    if "restarted" in reason:
        return f"worker {worker} restarted"
    if reason == STARTED_LATE:
        return f"worker {worker} started late"
    if "drained" in reason:
        return f"worker {worker} drained"
    if "core process" in reason or refilled_by == worker:
        return f"a core process of {worker} died"
    return f"worker {worker} lost"


def _amount(loss: Loss) -> str:
    if loss.starts is not None:
        # Its users say little: as many are busy as the target is slow.
        return f"{plural(loss.starts, 'planned start')} missing in"
    if loss.iterations:
        return f"{plural(loss.iterations, 'iteration')} missing for"
    return f"{plural(loss.users, 'user')} missing for"
