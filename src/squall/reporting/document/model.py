"""The results document as typed data, for code that reads it.

Has only the keys that merging, comparing and the summary need. Other keys are ignored, so that
documents of later versions under the same number can be read too. Keys that early documents
lack have defaults. Times keep the unit of their key.
"""

from __future__ import annotations

from typing import Any

import msgspec

from squall.engine.outcome import Loss, RunStatus, WorkflowStatus
from squall.stats.manifest import MetricKind, Model
from squall.stats.snapshot import VerdictState

Buckets = list[tuple[int, int]]
"""[index, count] pairs, index ascending."""


class HistogramDoc(msgspec.Struct):
    kind: str
    unit: str
    count: int
    sum_ms: float
    min_ms: float
    max_ms: float
    buckets: Buckets


class RowWindowsDoc(msgspec.Struct):
    every_s: int
    count: list[int]
    failed: list[int]
    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]
    buckets: list[Buckets]


class SampleDoc(msgspec.Struct):
    request: str
    status: int | None
    body: str


class ErrorDoc(msgspec.Struct):
    reason: str
    count: int | None
    first_at_s: float | None
    location: str | None = None
    locations: list[str] = []
    sample: SampleDoc | None = None
    traceback: str | None = None


class OutcomeDoc(msgspec.Struct):
    key: str
    ok: bool
    count: int
    exchanges: int
    raised: bool = False
    statuses: dict[str, int] = {}


class RowDoc(msgspec.Struct, kw_only=True):
    """A step, a named call, or (without name) the iteration."""

    workflow: str = ""
    """Only by datacenter."""
    name: str = ""
    protocol: str = ""
    started: int
    count: int
    ok: int
    failed: int
    interrupted: int
    rps: float
    latency_ms: dict[str, float] | None = None
    errors: list[ErrorDoc] = []
    outcomes: list[OutcomeDoc] = []
    histogram: HistogramDoc
    service_histogram: HistogramDoc | None = None
    first_byte_histogram: HistogramDoc | None = None
    windows: RowWindowsDoc


class StageDoc(msgspec.Struct):
    duration_s: float
    target: float


class ProfileDoc(msgspec.Struct, kw_only=True):
    model: Model
    vus: int
    max_vus: int
    duration_s: float
    iterations: int | None
    rate_per_s: float | None
    stages: list[StageDoc]
    think_s: tuple[float, float] | None
    pacing_s: float | None
    grace_s: float
    iterations_per_vu: int = 0
    start_after_s: float = 0.0


class StartsDoc(msgspec.Struct, kw_only=True):
    planned: int
    made: int
    late: int
    late_max_ms: float
    dropped: int
    interrupted: int


class RequestsDoc(msgspec.Struct, kw_only=True):
    sent: int
    answered: int
    failed: int
    redirects: int
    reconnects: int
    connections: int
    bytes_sent: int
    bytes_received: int
    replies: int = 0
    statuses: dict[str, int] = {}


class ProtocolDoc(msgspec.Struct, kw_only=True):
    name: str
    sent: int
    answered: int
    replies: int
    failed: int
    redirects: int
    reconnects: int
    connections: int
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    connect_histogram: HistogramDoc | None = None
    tls_histogram: HistogramDoc | None = None


class HookDoc(msgspec.Struct):
    name: str
    executions: int
    raised: int


class HookErrorDoc(msgspec.Struct, kw_only=True):
    hook: str
    reason: str
    first_at_s: float
    location: str | None
    locations: list[str] = []
    traceback: str | None


class LoadWindowsDoc(msgspec.Struct, kw_only=True):
    every_s: int
    users: list[int]
    busy: list[int]
    planned: list[int]
    made: list[int]
    late: list[int]
    dropped: list[int]


class WorkflowDoc(msgspec.Struct, kw_only=True):
    name: str
    status: WorkflowStatus
    error: str | None
    is_test: bool
    shape: str
    cores: list[int]
    vus: int
    busy_max: int
    started_at_s: float
    elapsed_s: float
    measured_s: float
    profile: ProfileDoc
    starts: StartsDoc
    requests: RequestsDoc
    dns_histogram: HistogramDoc | None = None
    connect_histogram: HistogramDoc | None = None
    tls_histogram: HistogramDoc | None = None
    protocols: list[ProtocolDoc] = []
    """Empty if there was nothing but HTTP/1."""
    iteration: RowDoc
    steps: list[RowDoc]
    hooks: list[HookDoc] = []
    hook_errors: list[HookErrorDoc]
    windows: LoadWindowsDoc


class CheckDoc(msgspec.Struct):
    workflow: str
    name: str
    passed: int
    failed: int


class MetricDoc(msgspec.Struct, kw_only=True):
    workflow: str
    name: str
    kind: MetricKind
    unit: str
    count: int
    sum: float = 0.0
    last: float = 0.0
    min: float = 0.0
    max: float = 0.0
    hits: int = 0
    mean: float = 0.0
    histogram: HistogramDoc | None = None


class ThresholdDoc(msgspec.Struct, kw_only=True):
    expression: str
    value: float | None
    unit: str
    samples: int
    limit: float | None = None
    passed: bool
    first_failed_at_s: float | None
    note: str
    workflow: str | None
    row: str | None = None
    builtin: bool


class BlockedDoc(msgspec.Struct):
    workflow: str
    step: str
    location: str
    call: str
    seconds: float


class ProcessDoc(msgspec.Struct, kw_only=True):
    index: int
    pid: int
    died: str | None
    worker: str = ""
    seconds: float = 0.0
    cpu: float | None = None
    """None if the process never reported its health."""
    cpu_max: float = 0.0
    lag_histogram: HistogramDoc | None = None
    gc_ms_max: float = 0.0
    rss_mb: float = 0.0
    blocked: list[BlockedDoc] = []


class HealthWindowsDoc(msgspec.Struct, kw_only=True):
    every_s: int
    cpu: list[float]
    cpu_max: list[float]
    loop_lag_p99_ms: list[float]


class GeneratorDoc(msgspec.Struct):
    parent_cpu: float
    processes: list[ProcessDoc]
    windows: HealthWindowsDoc


class HostDoc(msgspec.Struct):
    cores: int
    os: str
    memory_mb: int


class RunDoc(msgspec.Struct, kw_only=True):
    id: str
    file: str
    squall: str
    python: str
    command: list[str]
    git: str | None
    seed: int
    tags: dict[str, str]
    warmup_s: float
    host: HostDoc


class VerdictDoc(msgspec.Struct):
    state: VerdictState
    reasons: list[str]


class DatacenterRequestsDoc(msgspec.Struct, kw_only=True):
    sent: int
    answered: int
    failed: int
    bytes_sent: int
    bytes_received: int


class DatacenterDoc(msgspec.Struct, kw_only=True):
    """The part of one datacenter."""

    name: str
    part: float
    tries: int
    state: str
    reason: str | None
    later_s: float
    elapsed_s: float
    verdict: VerdictDoc
    requests: DatacenterRequestsDoc
    steps: list[RowDoc]
    """With the iteration of each workflow."""
    losses: list[Loss]


class ResultsDoc(msgspec.Struct, kw_only=True):
    """A whole document of `squall run --json`."""

    schema: str
    status: RunStatus
    passed: bool
    exit_code: int
    verdict: VerdictDoc
    run: RunDoc
    started_at: str
    elapsed_s: float
    aborted_by: str | None
    workflows: list[WorkflowDoc]
    checks: list[CheckDoc]
    metrics: list[MetricDoc]
    thresholds: list[ThresholdDoc]
    generator: GeneratorDoc
    losses: list[Loss] = []
    notes: list[str]
    datacenters: list[DatacenterDoc] = []


def typed(document: dict[str, Any]) -> ResultsDoc:
    """Raises `msgspec.ValidationError`, which names the wrong key."""
    return msgspec.convert(document, ResultsDoc)
