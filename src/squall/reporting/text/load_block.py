"""The LOAD, HTTP (or CALLS) and GENERATOR blocks of the summary."""

from __future__ import annotations

from collections.abc import Sequence

from squall.engine.outcome import RunOutcome, cores_at_once
from squall.reporting.loss_lines import loss_line
from squall.reporting.number_format import brief_duration, data_size, plural, rate, whole_percent
from squall.reporting.text.layout import Paint, section
from squall.reporting.totals import ProtocolTotals, Totals
from squall.stats.manifest import HTTP_PROTOCOLS
from squall.stats.totals.protocols import ProtocolStats
from squall.stats.totals.workflow import WorkflowStats


def load_block(workflows: Sequence[WorkflowStats], paint: Paint) -> list[str]:
    """Planned starts and actual starts."""
    named = len(workflows) > 1
    lines = [
        f"{workflow.name}: {_load(workflow)}" if named else _load(workflow)
        for workflow in workflows
    ]
    return section("LOAD", lines, paint)


def http_block(totals: Totals, paint: Paint) -> list[str]:
    """Empty for a run without a single exchange. Named CALLS if other protocols took part, with a
    line for each."""
    requests = totals.requests
    if not requests.sent and not requests.failed:
        return []
    counts = [f"{status}: {count}" for status, count in totals.statuses.items()]
    counts += [f"{reason}: {count}" for reason, count in totals.no_answer.items()]
    if totals.unknown_statuses:
        counts.append(f"status not known: {totals.unknown_statuses}")
    if not requests.answered:
        counts = counts or ["no answers"]
    lines = [
        ", ".join(
            [
                f"{requests.sent} sent",
                *([f"{requests.failed} failed"] if requests.failed else []),
                plural(requests.redirects, "redirect"),
                plural(requests.reconnects, "reconnect"),
                *(["  ".join(counts)] if counts else []),
            ]
        )
    ]
    parts = [f"{data_size(requests.bytes_sent)} out, {data_size(requests.bytes_received)} in"]
    if totals.first_byte.count:
        parts.insert(0, f"first byte p99 {brief_duration(totals.first_byte.quantile(0.99))}")
    if totals.connect.count:
        connect = brief_duration(totals.connect.quantile(0.99))
        parts.insert(0, f"connect p99 {connect} ({plural(requests.connections, 'connection')})")
    lines.append(", ".join(parts))
    if totals.other_calls:
        lines.append(
            f"other calls  {plural(totals.other_calls, 'request')} not returned by a step "
            "(give them name=...)"
        )
    for each in totals.protocols:
        lines += _protocol(each, totals.span_s)
    named = [each.name for each in totals.protocols]
    return section("HTTP" if HTTP_PROTOCOLS.issuperset(named) else "CALLS", lines, paint)


def _protocol(totals: ProtocolTotals, span_s: float) -> list[str]:
    traffic = totals.traffic
    facts: list[str] = []
    if totals.count:
        p50, p99 = (brief_duration(totals.latency.quantile(q)) for q in (0.5, 0.99))
        calls = f"{plural(totals.count, 'call')}, {totals.failed} failed"
        facts.append(f"{calls}, p50 {p50}, p99 {p99}")
    lines = [f"{totals.name}  {', '.join(facts + (exchanged(traffic, span_s) if traffic else []))}"]
    if traffic is not None and traffic.requests.connections:
        lines.append(f"{' ' * len(totals.name)}  {', '.join(_connections(traffic))}")
    return lines


def exchanged(traffic: ProtocolStats, span_s: float) -> list[str]:
    """What counts in the protocol: its requests, the streams of HTTP/2, messages or events."""
    requests = traffic.requests
    facts: list[str] = []
    if requests.sent:
        unit = "stream" if traffic.name in {"http2", "http3"} else "request"
        facts.append(f"{plural(requests.sent, unit)} ({_rate(requests.answered, span_s)})")
    if requests.failed:
        facts.append(f"{requests.failed} without an answer")
    messages = traffic.messages_received
    if traffic.name == "sse":
        facts.append(f"{plural(messages, 'event')} ({_rate(messages, span_s)})")
    elif messages or traffic.messages_sent:
        facts.append(
            f"messages {traffic.messages_sent} out ({_rate(traffic.messages_sent, span_s)}), "
            f"{messages} in ({_rate(messages, span_s)})"
        )
    return facts


def _connections(traffic: ProtocolStats) -> list[str]:
    requests = traffic.requests
    facts = [plural(requests.connections, "connection")]
    for name, times in (("connect", traffic.connect), ("TLS", traffic.tls)):
        if times.count:
            facts.append(f"{name} p99 {brief_duration(times.quantile(0.99))}")
    return [
        *facts,
        f"{data_size(requests.bytes_sent)} out, {data_size(requests.bytes_received)} in",
    ]


def _rate(count: int, span_s: float) -> str:
    return rate(count / span_s if span_s else 0.0)


def generator_block(
    outcome: RunOutcome, workflows: Sequence[WorkflowStats], paint: Paint
) -> list[str]:
    """The health of the generator, from which the verdict follows."""
    health = outcome.stats.health
    busy = sum(workflow.busy_max for workflow in workflows)
    allowed = sum(
        max(w.manifest.profile.max_vus, w.manifest.profile.vus, w.users.max) for w in workflows
    )
    cores = cores_at_once(outcome.processes, outcome.workflows) or len(health.processes)
    lines: list[str] = []
    # Without a report nothing was measured: no test ran, or its process died at once.
    if health.processes:
        # `busy` is sampled; a very short run may have no sample.
        lines.append(
            f"cpu {whole_percent(health.cpu)} of {plural(cores, 'core')}, "
            f"loop lag p99 {brief_duration(health.lag.quantile(0.99))}, "
            f"gc {brief_duration(health.gc_max_s)}"
            + (f", {plural(busy, 'user')} busy at most of {allowed}" if busy else "")
        )
    lines += [
        paint(f"process {process.index} ended early: {process.died}", "bad")
        for process in outcome.processes
        if process.died and not process.worker
    ]
    lines += [paint(loss_line(loss), "bad") for loss in outcome.losses if loss.worker]
    return section("GENERATOR", lines, paint)


def _load(workflow: WorkflowStats) -> str:
    starts = workflow.starts
    interrupted = f", {starts.interrupted} interrupted" if starts.interrupted else ""
    if workflow.manifest.profile.is_open:
        late = f" (max {brief_duration(starts.late_max_s)})" if starts.late else ""
        return (
            f"{starts.planned} starts planned, {starts.made} made, "
            f"{starts.late} late{late}, {starts.dropped} dropped{interrupted}"
        )
    # Users are counted at the end of a second; a shorter run may never show any.
    users = max(workflow.users.max, workflow.busy_max)
    by = f" by {plural(users, 'user')}" if users else ""
    return f"{plural(starts.made, 'iteration')} started{by}{interrupted}"
