"""What a run did in each protocol is in the summary, the document, the page and on the screen."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec

from squall.engine.outcome import RunOutcome
from squall.reporting.document.build import SCHEMA_PATH, build_document, encode_document
from squall.reporting.document.merge import merge_outcomes
from squall.reporting.document.rebuild import rebuild
from squall.reporting.page.workflow import workflow_section
from squall.reporting.text.summary import render_summary
from squall.stats.histogram import make_data
from squall.stats.reports import ProtocolDelta, RequestsDelta, RowDelta, WindowReport
from tests.unit.reporting.conftest import MakeOutcome

TIMES = make_data(2, 0.004, 0.002, 0.002, [200], [2])


def with_websocket(outcome: RunOutcome) -> RunOutcome:
    """The run with 50 answers on two sessions, in its last second."""
    requests = RequestsDelta(sent=51, answered=50, failed=1, replies=50, connections=2)
    outcome.stats.add(
        WindowReport(
            workflow="Shop",
            share=1,
            window=9,
            rows=[],
            iteration=RowDelta("iteration", "iteration"),
            requests=requests,
            connect=TIMES,
            tls=TIMES,
            protocols=[ProtocolDelta("websocket", requests, 60, 70, TIMES, TIMES)],
        )
    )
    return outcome


def protocols(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in document["workflows"][0]["protocols"]}


def test_a_run_of_http_1_lists_no_protocols(make_outcome: MakeOutcome) -> None:
    outcome = make_outcome()
    assert build_document(outcome)["workflows"][0]["protocols"] == []
    assert outcome.stats.snapshot(10.0).workflows[0].protocols == ()


def test_each_protocol_is_in_every_output(make_outcome: MakeOutcome) -> None:
    outcome = with_websocket(make_outcome())
    document = msgspec.json.decode(encode_document(build_document(outcome)))
    jsonschema.validate(document, msgspec.json.decode(SCHEMA_PATH.read_bytes()))
    found = protocols(document)
    assert set(found) == {"http", "websocket"}
    whole = document["workflows"][0]["requests"]
    assert found["http"]["sent"] + found["websocket"]["sent"] == whole["sent"]
    session = found["websocket"]
    assert (session["messages_sent"], session["messages_received"]) == (60, 70)
    assert session["messages_per_s"] == 13.0 and session["tls_ms"]["max"] == 2.0
    summary = render_summary(outcome)
    assert "websocket  51 requests (5.00/s), 1 without an answer, messages 60 out" in summary
    assert "2 connections, connect p99 2 ms, TLS p99 2 ms" in summary
    assert "Protocols" in str(workflow_section(document, document["workflows"][0], 0))
    (shown,) = outcome.stats.snapshot(10.0).workflows
    assert {each.name: each.connections for each in shown.protocols}["websocket"] == 2


def test_a_document_keeps_its_protocols_and_older_ones_have_none(make_outcome: MakeOutcome) -> None:
    document = build_document(with_websocket(make_outcome()))
    assert protocols(build_document(rebuild(document))) == protocols(document)
    older = build_document(make_outcome())
    del older["workflows"][0]["protocols"]
    both = protocols(build_document(merge_outcomes([rebuild(document), rebuild(older)])))
    assert both["websocket"]["sent"] == 51
    plain = older["workflows"][0]["requests"]["sent"]
    assert both["http"]["sent"] == protocols(document)["http"]["sent"] + plain
