"""What a run says of load that was lost: one line for each worker or process and workflow.

The line says who, when, how much, for how long, who took over, and how much nobody can
know. It is the same in the verdict, the summary, the live screen and the reports.
"""

from __future__ import annotations

from squall.engine.outcome import Loss
from squall.reporting.format import plural


def loss_line(loss: Loss) -> str:
    """`worker w2 lost at 12.3 s: Shop, 25 users missing for 5.9 s, refilled by w1`."""
    if not loss.worker:
        return f"process {loss.process} lost at {loss.at_s:.1f} s: {loss.reason}"
    parts = [f"worker {loss.worker} lost at {loss.at_s:.1f} s: {loss.workflow}"]
    parts.append(f"{_amount(loss)} missing for {loss.below_target_s:.1f} s")
    parts.append(f"refilled by {loss.refilled_by}" if loss.refilled_by else "not refilled")
    if loss.unknown_requests:
        about = " (estimate)" if loss.is_estimate else ""
        parts.append(f"0 to {plural(loss.unknown_requests, 'request')} not known{about}")
    if loss.rows:
        parts.append(f"{plural(loss.rows, 'row')} given out and not finished")
    return ", ".join(parts)


def _amount(loss: Loss) -> str:
    if loss.starts is not None:
        return f"{plural(loss.starts, 'start')} of {plural(loss.users, 'user')}"
    if loss.iterations:
        return plural(loss.iterations, "iteration")
    return plural(loss.users, "user")
