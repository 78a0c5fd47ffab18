"""The deadline of a job on the group's clock, its extensions, and how long a plan takes at most."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from squall.cluster.protocol.timers import Timers
from squall.engine.plan.layers import topological_layers
from squall.stats.manifest import FileManifest


class LimitedJob(Protocol):
    """What of a job says how long it may take."""

    @property
    def created_ms(self) -> int: ...
    @property
    def deadline_ms(self) -> int:
        """0: it has none yet."""
        ...

    @property
    def extension_ms(self) -> int:
        """The sum of all extensions."""
        ...

    @property
    def limited(self) -> bool:
        """The client asked for a timeout, which counts from the creation."""
        ...


def deadline_ms(job: LimitedJob) -> int | None:
    """The deadline with its extensions; None while the job has none."""
    return job.deadline_ms + job.extension_ms if job.deadline_ms else None


def extension_cap_ms(job: LimitedJob) -> int:
    """The limit for all extensions of a job together: a quarter of its time, at least a
    minute."""
    base_ms = job.deadline_ms - (job.created_ms if job.limited else 0)
    return max(60_000, base_ms // 4) if job.limited else 60_000


def timeout_text(job: LimitedJob) -> str:
    """Why a job that met its deadline is stopped."""
    text = f"timeout after {(job.deadline_ms - job.created_ms) / 1000.0:g} s"
    if job.extension_ms:
        text += f" and extensions of {job.extension_ms / 1000.0:g} s"
    return text


def longest_run_ms(manifest: FileManifest, timers: Timers, done: Collection[str] = ()) -> int:
    """The longest time that the workflows which are not in `done` may take, one layer after the
    other."""
    total_s = timers.job_margin_s
    layers = topological_layers({w.name: w.depends for w in manifest.workflows}, "workflow")
    for layer in layers:
        left = [manifest.workflow(name) for name in layer if name not in done]
        each_s = [w.profile.duration_s + w.profile.grace_s + timers.stop_grace_s for w in left]
        alone_s = sum(
            s for w, s in zip(left, each_s, strict=True) if w.is_test and w.priority == "exclusive"
        )
        total_s += max(each_s, default=0.0) + alone_s + timers.last_loss_s
    return round(total_s * 1000)
