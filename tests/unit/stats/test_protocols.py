"""Counts by protocol survive every way of adding reports, and sum up to the totals."""

from __future__ import annotations

from squall.stats.histogram import make_data
from squall.stats.manifest import WorkflowManifest
from squall.stats.report_sums import joined, over_shares
from squall.stats.reports import ProtocolDelta, RequestsDelta, RowDelta, WindowReport
from squall.stats.totals.protocols import are_shown, protocols_of
from squall.stats.totals.workflow import WorkflowStats

CONNECT = make_data(1, 0.001, 0.001, 0.001, [10], [1])


def report(share: int, window: int, *, http: int, http2: int = 0) -> WindowReport:
    """A second of a share; one without HTTP/2 lists no protocols."""
    plain = ProtocolDelta("http", RequestsDelta(sent=http, connections=1), connect=CONNECT)
    streams = ProtocolDelta("http2", RequestsDelta(sent=http2, connections=1), messages_sent=7)
    return WindowReport(
        workflow="W",
        share=share,
        window=window,
        rows=[],
        iteration=RowDelta("iteration", "iteration"),
        requests=RequestsDelta(sent=http + http2, connections=2 if http2 else 1),
        connect=CONNECT,
        protocols=[plain, streams] if http2 else [],
    )


def sent(stats: WorkflowStats) -> dict[str, int]:
    return {name: each.requests.sent for name, each in stats.protocols.items()}


def test_reports_that_list_no_protocols_are_http_1() -> None:
    stats = WorkflowStats(WorkflowManifest(name="W"))
    stats.add(report(0, 0, http=3))
    assert sent(stats) == {"http": 3} and not are_shown(stats.protocols)
    stats.add(report(1, 0, http=2, http2=5))
    assert sent(stats) == {"http": 5, "http2": 5} and are_shown(stats.protocols)
    assert stats.requests.sent == 10
    assert stats.protocols["http"].connect.count == stats.connect.count == 2


def test_the_sum_over_shares_and_over_time_has_the_same_counts_by_protocol() -> None:
    parts = [report(0, 0, http=3), report(1, 0, http=2, http2=5), report(1, 1, http=1, http2=4)]
    for reports in (
        parts,
        over_shares(parts),
        over_shares(parts, 2),
        [parts[0], joined(*parts[1:])],
    ):
        stats = WorkflowStats(WorkflowManifest(name="W"))
        for each in reports:
            stats.add(each)
        assert sent(stats) == {"http": 6, "http2": 9}
        assert stats.protocols["http"].connect.count == 3
        assert stats.protocols["http2"].messages_sent == 14
    assert over_shares([parts[0]])[0].protocols == []


def test_an_older_document_counts_as_http_1() -> None:
    stats = WorkflowStats(WorkflowManifest(name="W"))
    stats.requests.sent = 4
    assert {name: each.requests.sent for name, each in protocols_of(stats).items()} == {"http": 4}
