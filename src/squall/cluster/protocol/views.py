"""What reports and answers show: counters of an attempt, the load of a worker, a workflow, a part
of a job, a datacenter."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """The cumulative counters of one attempt."""

    planned: int = 0
    made: int = 0
    finished: int = 0
    """Iterations that ended, counted or interrupted."""
    sent: int = 0
    answered: int = 0
    failed: int = 0
    """Failed executions of steps, as in the step table. Exchanges without an answer are among
    them, but their own number is only in the results document."""
    users: int = 0
    actions: int = 0
    """Executed steps: they measure progress."""


class WorkerLoad(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How busy the machine of a worker is, since its last report."""

    cpu: float | None = None
    """The share of all its processors in use, from 0 to 1; None: unknown."""
    memory: float | None = None
    """The share of its memory in use."""
    lag_s: float = 0.0
    """The longest delay of the loop of its main process."""


class WorkflowView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    state: str
    layer: int = 0
    cores: int = 0
    attempts: int = 0
    lost: int = 0
    error: str = ""
    adjusted: str = ""
    """The adjustment of its load while it runs: "paused", "300/s", "20 users"."""
    priority: str = "auto"
    workers: list[str] = []
    """The workers that run it now; in the view of one job."""
    counters: Counters | None = None
    """Summed over its attempts, as their last reports say; in the view of one job that is not
    over. Of one that is, clients take them from its result."""


class PartView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The part of one datacenter in a job of the gates."""

    datacenter: str = ""
    """Empty: none has it yet."""
    part: float = 1.0
    """Its part of the load, from 0 to 1."""
    tries: int = 0
    """How often it was given to a datacenter."""
    state: str = "queued"
    reason: str = ""
    why: str = ""
    """Why this datacenter was chosen."""


class DatacenterView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One datacenter, as the answering gate knows it."""

    name: str
    health: str
    """healthy, busy, degraded, unhealthy, unreachable, unknown."""
    reason: str = ""
    """Why it is not healthy."""
    leader: str = ""
    managers: list[str] = []
    """host:port of its managers."""
    managers_heard: int = 0
    managers_total: int = 0
    workers: int = 0
    cores: int = 0
    free: int = 0
    """Less the cores of jobs that this gate sent there and that no report counts yet."""
    queued: int = 0
    active_jobs: int = 0
    rtt_ms: float = -1.0
    """Negative: not measured yet."""
    rtt_deviation_ms: float = 0.0
    heard_s: float = -1.0
    """Seconds since its last answer; negative: it never answered."""
