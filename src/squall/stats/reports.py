"""The reports of a core process: one per share and window of one second.

Everything here is a *delta*: what happened since the share's last report. Summing
the reports of all shares gives the run; nothing is ever averaged. Times are seconds.
Field order is the wire format (arrays): append only.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

HTTP1 = "http"
"""The protocol of a report that names none."""
NOT_KNOWN = "not known"
"""The protocol of requests that only the counters of a dead process know."""


class HistogramData(msgspec.Struct, array_like=True, gc=False):
    """A sparse log-linear histogram. `index` holds the numbers of its filled buckets,
    ascending, two bytes each; `counts` what is in them, all of 1, 2, 4 or 8 bytes, as the
    largest needs. Little-endian; `squall.stats.histogram` reads and writes them."""

    count: int = 0
    sum_s: float = 0.0
    min_s: float = 0.0
    max_s: float = 0.0
    index: bytes = b""
    counts: bytes = b""


class OutcomeDelta(msgspec.Struct, array_like=True):
    """Executions of one row that ended the same way.

    `key` is a status code ("200"), "ok" for non-HTTP successes, or a failure reason.
    `service.count` may be lower than `count`: a failure before any exchange has no
    latency. `exchanges` says how many of `count` belong to an exchange of a client. `raised`:
    the author's code failed, by an exception or by what it returned; a client's own exception
    (no answer, `raise_for_status`) does not count. `statuses` are the answers that came before
    the failures, by code; a `key` that is a status counts its own.
    """

    key: str
    ok: bool
    count: int
    exchanges: int
    service: HistogramData
    raised: bool = False
    statuses: dict[int, int] = {}


class RowDelta(msgspec.Struct, array_like=True):
    """One row of the step table: a step, a call with `name=`, or the iteration."""

    name: str
    protocol: str = "http"
    started: int = 0
    interrupted: int = 0
    outcomes: list[OutcomeDelta] = []
    response: HistogramData | None = None
    """From the planned start; only root steps and the iteration of open models."""
    first_byte: HistogramData | None = None


class CheckDelta(msgspec.Struct, array_like=True):
    name: str
    passed: int
    failed: int


class HookDelta(msgspec.Struct, array_like=True):
    """Executions of a check, metric or end action, and how many of them raised in the author's
    own code; a failed assertion of a check is not one of these."""

    name: str
    executions: int = 0
    raised: int = 0


def add_hooks(total: dict[str, HookDelta], hooks: Iterable[HookDelta]) -> None:
    for each in hooks:
        hook = total.setdefault(each.name, HookDelta(each.name))
        hook.executions += each.executions
        hook.raised += each.raised


class MetricDelta(msgspec.Struct, array_like=True):
    """`kind`: counter (sum), gauge (last, min, max), rate (hits of count), sample."""

    name: str
    kind: str
    unit: str
    count: int
    sum: float = 0.0
    last: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0
    hits: int = 0
    values: HistogramData | None = None
    """Samples, histogrammed as if 1.0 of the unit were 1 ms (three digits below 1)."""


class StartsDelta(msgspec.Struct, array_like=True):
    """Counts of iterations. In closed models `planned` equals the starts that were made."""

    planned: int = 0
    made: int = 0
    late: int = 0
    late_max_s: float = 0.0
    dropped: int = 0
    interrupted: int = 0


class RequestsDelta(msgspec.Struct, array_like=True):
    """All exchanges of a share's clients, whatever step or action made them."""

    sent: int = 0
    answered: int = 0
    failed: int = 0
    redirects: int = 0
    reconnects: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    replies: int = 0
    """Of `answered`: answers in protocols that have no status."""


class ProtocolDelta(msgspec.Struct, array_like=True):
    """What the clients of a share did in one protocol, as it is on the wire: a call of
    `self.client.http` on a connection that negotiated HTTP/2 is one of `http2`."""

    name: str
    requests: RequestsDelta
    messages_sent: int = 0
    messages_received: int = 0
    """Messages of WebSockets, events of SSE."""
    connect: HistogramData | None = None
    tls: HistogramData | None = None
    in_flight: int = 0


class WindowReport(msgspec.Struct, array_like=True, tag="window"):
    """The numbers of one share in one window. `window` counts seconds since the workflow's
    start; several reports may name the same window (the last, partial one; a late fold)."""

    workflow: str
    share: int
    window: int
    rows: list[RowDelta]
    iteration: RowDelta
    checks: list[CheckDelta] = []
    metrics: list[MetricDelta] = []
    starts: StartsDelta = msgspec.field(default_factory=StartsDelta)
    requests: RequestsDelta = msgspec.field(default_factory=RequestsDelta)
    dns: HistogramData | None = None
    connect: HistogramData | None = None
    tls: HistogramData | None = None
    users: int = 0
    """Users alive, the most in the window."""
    busy: int = 0
    """Users inside an iteration, the maximum seen in the window."""
    unmeasured: int = 0
    """Requests that only the counters of a dead process know: they are in `requests`, and in no
    row."""
    statuses: dict[int, int] = {}
    """All answers by status code, whatever step or action got them."""
    opened: int = 0
    """Users that became ready."""
    unopened: int = 0
    """Users that did not, because a start action or a resource failed."""
    rested_s: float = 0.0
    """How long users waited after iterations in which nothing was answered."""
    hooks: list[HookDelta] = []
    in_flight: int = 0
    """By how many more requests are under way than at the last report."""
    protocols: list[ProtocolDelta] = []
    """The same exchanges by protocol (`by_protocol`)."""


def by_protocol(report: WindowReport) -> list[ProtocolDelta]:
    """A share lists its protocols once it uses another than HTTP/1; before, all is HTTP/1."""
    return report.protocols or [
        ProtocolDelta(
            HTTP1,
            report.requests,
            connect=report.connect,
            tls=report.tls,
            in_flight=report.in_flight,
        )
    ]


class ErrorSample(msgspec.Struct, array_like=True, tag="error"):
    """The first failure of its kind in one process: (row, reason, line)."""

    workflow: str
    row: str
    reason: str
    at_s: float
    location: str = ""
    """`shop.py:31 in pay`, where an author's line raised."""
    traceback: str | None = None
    request: str = ""
    status: int = 0
    body: str = ""
    share: int = 0


class Blocked(msgspec.Struct, array_like=True):
    """A line of the author that blocked the event loop, and for how long."""

    workflow: str
    step: str
    location: str
    call: str
    seconds: float


class HealthReport(msgspec.Struct, array_like=True, tag="health"):
    """The health of one core process in one second of the run's clock."""

    process: int
    at_s: float
    """Seconds since the first workflow of the run started, at the end of the second."""
    cpu: float
    """Of one core, 0 to 1."""
    lag: HistogramData
    gc_max_s: float = 0.0
    rss_mb: float = 0.0
    blocked: list[Blocked] = []


class ExchangeReport(msgspec.Struct, array_like=True, tag="exchange"):
    """One exchange of a run with `--once`; long bodies are cut."""

    workflow: str
    row: str
    """The step or action that made the call."""
    method: str
    url: str
    peer: str = ""
    request: bytes = b""
    """Head and the start of the body, as sent."""
    response_head: bytes = b""
    body: bytes = b""
    """The start of the decoded body."""
    body_size: int = 0
    error: str = ""
    """Why there was no answer; empty if there was one."""
    dns_s: float = 0.0
    connect_s: float = 0.0
    tls_s: float = 0.0
    first_byte_s: float = 0.0
    total_s: float = 0.0
