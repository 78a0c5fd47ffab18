"""Turns exchanges and results of the author's own protocols into plain data for
`squall run --once`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from squall.api.errors import TransportError
from squall.api.graphql import GraphQLResponse
from squall.api.grpc import GRPCResponse
from squall.api.protocols.response import ProtocolResponse
from squall.api.results import CustomResult, Timed
from squall.api.sse import SSEResponse
from squall.api.websocket import WebsocketResponse
from squall.api.workflow import Workflow
from squall.clients.http import Exchange
from squall.engine.measure.recorder import Row
from squall.engine.users.step_failures import reason_of
from squall.stats.manifest import CALL_PROTOCOLS, HTTP_PROTOCOLS
from squall.stats.reports import ExchangeReport

BODY_BYTES_MAX = 4000
# Protocols whose clients report each call themselves.
_REPORTED = CALL_PROTOCOLS - {"grpc"}
HOOK_FRAMES_MAX = 40


def exchange_report(workflow: str, exchange: Exchange) -> ExchangeReport:
    """`workflow` is empty for a run of a URL, which has no hooks of the author."""
    report = ExchangeReport(
        workflow=workflow,
        row=_current_hook() if workflow else "",
        method=exchange.method,
        url=exchange.url,
        peer=exchange.peer,
        request=exchange.request[:BODY_BYTES_MAX],
    )
    outcome = exchange.outcome
    if isinstance(outcome, ProtocolResponse):
        _add_call(report, outcome)
        return report
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


def _add_call(report: ExchangeReport, response: ProtocolResponse) -> None:
    """The answer of a protocol that is not HTTP."""
    body = response.text.encode()
    report.body, report.body_size = body[:BODY_BYTES_MAX], len(body)
    report.error = response.failure
    report.connect_s, report.first_byte_s, report.total_s = response.timings


def watched(
    workflow: str, names: dict[str, Any], send: Callable[[ExchangeReport], None]
) -> dict[str, Any]:
    """The functions of the generated loop that record a step with a result of the author's own
    type, changed so that they report it too."""
    record, fail = names["CUSTOM"], names["STEP_FAILED"]

    def custom(row: Row, result: Any, *rest: Any) -> bool:
        passed: bool = record(row, result, *rest)
        # The request behind an answer of GraphQL has been reported by the HTTP client, and calls of
        # protocols that are not HTTP by theirs.
        is_known = isinstance(result, GraphQLResponse) and result.http is not None
        if not is_known and not isinstance(result, ProtocolResponse):
            send(_custom_report(workflow, row, result, passed))
        return passed

    def failed(row: Row, error: BaseException, *rest: Any) -> Any:
        is_known = isinstance(error, TransportError) and error.protocol in _REPORTED
        if row.protocol and row.protocol not in HTTP_PROTOCOLS and not is_known:
            report = ExchangeReport(workflow, row.name, row.protocol, "", error=reason_of(error))
            send(report)
        return fail(row, error, *rest)

    return {"CUSTOM": custom, "STEP_FAILED": failed, "WATCHED": True}


def _custom_report(workflow: str, row: Row, result: Any, passed: bool) -> ExchangeReport:
    report = ExchangeReport(workflow, row.name, row.protocol, type(result).__name__)
    if isinstance(result, WebsocketResponse):
        report.url = result.url
        report.body, report.body_size = result.body[:BODY_BYTES_MAX], len(result.body)
        report.total_s = result.ended - result.started
        return report
    if isinstance(result, GRPCResponse):
        _add_grpc(report, result)
        return report
    if isinstance(result, GraphQLResponse):
        body = result.text.encode()
        report.url, report.error = result.url, result.failure
        report.body, report.body_size = body[:BODY_BYTES_MAX], len(body)
        report.total_s = result.ended - result.started
        return report
    if isinstance(result, SSEResponse):
        body = b"\n".join([event.data.encode() for event in result.events])
        report.url = result.url
        report.body, report.body_size = body[:BODY_BYTES_MAX], len(body)
        report.first_byte_s, report.total_s = result.first_event_s, result.ended - result.started
        return report
    if not isinstance(result, CustomResult):
        return report
    # All of this is the author's code, which may raise; what it did is recorded elsewhere.
    with suppress(Exception):
        report.total_s = float(result.timings.get("total", 0.0))
    if not passed:
        report.error = "failed"
        with suppress(Exception):
            report.error = str(result.context())
        return report
    with suppress(Exception):
        is_timed = isinstance(result, Timed)
        body = repr(cast(Any, result).value if is_timed else _fields(result)).encode()
        report.body, report.body_size = body[:BODY_BYTES_MAX], len(body)
    return report


def _add_grpc(report: ExchangeReport, result: GRPCResponse) -> None:
    """The messages as text, and the trailers behind the head."""
    try:
        texts = [str(reply).strip() for reply in result.replies]
    except Exception:
        # The method is not known, or a reply is not of its type.
        texts = [f"({len(reply)} bytes)" for reply in result.raw_replies]
    body = "\n".join(texts).encode()
    pairs = [b"%b: %b\r\n" % pair for pair in result.raw_trailers]
    report.method, report.url, report.request = "GRPC", result.url, result.shown[:BODY_BYTES_MAX]
    report.response_head = result.head.raw.removesuffix(b"\r\n") + b"".join(pairs) + b"\r\n"
    report.body, report.body_size = body[:BODY_BYTES_MAX], len(body)
    report.error = result.failure and result.text
    timings = result.timings
    report.dns_s, report.connect_s, report.tls_s = timings[:3]
    report.first_byte_s, report.total_s = timings.first_byte_s, timings.total_s


def _fields(result: CustomResult) -> dict[str, Any]:
    hidden = ("timings", "error")
    return {name: value for name, value in vars(result).items() if name not in hidden}


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
