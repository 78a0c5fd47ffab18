"""Turns an exchange into plain data for `squall run --once`."""

from __future__ import annotations

import sys

from squall.api.errors import TransportError
from squall.api.workflow import Workflow
from squall.clients.http import Exchange
from squall.stats.reports import ExchangeReport

BODY_BYTES_MAX = 4000
HOOK_FRAMES_MAX = 40


def exchange_report(workflow: str, exchange: Exchange) -> ExchangeReport:
    report = ExchangeReport(
        workflow=workflow,
        row=_current_hook(),
        method=exchange.method,
        url=exchange.url,
        peer=exchange.peer,
        request=exchange.request[:BODY_BYTES_MAX],
    )
    outcome = exchange.outcome
    if isinstance(outcome, TransportError):
        report.error = outcome.reason
        report.total_s = max(outcome.ended - outcome.started, 0.0)
        return report
    body = outcome.body
    report.response_head = outcome.head.raw
    report.body = body[:BODY_BYTES_MAX]
    report.body_size = len(body)
    timings = outcome.timings
    report.dns_s, report.connect_s, report.tls_s = (
        timings.dns_s,
        timings.connect_s,
        timings.tls_s,
    )
    report.first_byte_s, report.total_s = timings.first_byte_s, timings.total_s
    return report


def _current_hook() -> str:
    """The step or action that made the call: the nearest workflow method on the stack."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(HOOK_FRAMES_MAX):
        if frame is None:
            return ""
        owner = frame.f_locals.get("self")
        if isinstance(owner, Workflow) and not frame.f_code.co_filename.startswith("<squall"):
            return frame.f_code.co_name
        frame = frame.f_back
    return ""
