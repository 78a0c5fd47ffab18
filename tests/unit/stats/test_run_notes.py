"""Notes on a finished run: their words and numbers."""

from __future__ import annotations

import pytest

from squall.stats.reports import ErrorSample, OutcomeDelta, RowDelta
from squall.stats.run_notes import MAYBE_TLS, always_failed, notes_of
from squall.stats.totals.run import RunStats
from tests.unit.stats.lab.reports import (
    RequestsDelta,
    data,
    file_manifest,
    row,
    window,
    workflow_manifest,
)

CLOSED, RESET = "connection closed before a response", "connection reset"


@pytest.mark.parametrize(
    ("count", "said"), [(1, "raised in its only execution"), (2, "raised in all 2 executions")]
)
def test_a_step_that_always_raised_says_how_often(count: int, said: str) -> None:
    stats = RunStats(file_manifest())
    failed = OutcomeDelta("KeyError: 'id'", False, count, 0, data([]), raised=True)
    stats.add(window(0, [RowDelta(name="pay", started=count, outcomes=[failed])], iterations=count))
    (step,) = always_failed(stats)
    assert (step.name, step.text) == ("pay", f"{said}: KeyError: 'id'")


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ({"503 Service Unavailable": 3}, "503 Service Unavailable"),
        ({"timeout after 5 s": 2, "404": 1}, "timeout after 5 s (2 times) and 1 other reason"),
    ],
)
def test_a_step_that_always_failed_says_why(reasons: dict[str, int], said: str) -> None:
    stats = RunStats(file_manifest())
    outcomes = [OutcomeDelta(key, False, count, 0, data([])) for key, count in reasons.items()]
    failing = RowDelta(name="pay", started=3, outcomes=outcomes)
    stats.add(window(0, [failing], iterations=3))
    (step,) = always_failed(stats)
    assert (step.name, step.row, step.raised) == ("pay", "pay", False)
    assert step.text == f"failed in all 3 executions: {said}"
    stats.add(window(1, [row("pay", [0.1], [])]))
    assert always_failed(stats) == []


@pytest.mark.parametrize(("rested_s", "said"), [(9.99, "99.9 %"), (10.0, "100 %"), (0.5, "5 %")])
def test_rested_time_has_no_exponent(rested_s: float, said: str) -> None:
    stats = RunStats(file_manifest(workflow_manifest(steps=())))
    report = window(9, users=1)
    report.rested_s = rested_s
    stats.add(report)
    (note,) = notes_of(stats)
    assert note.startswith(f"Shop: users rested for {said} of their time ")


@pytest.mark.parametrize(
    ("reasons", "url", "received", "hinted"),
    [
        ([CLOSED], "http://shop.test/", 0, True),
        ([RESET, CLOSED], "http://shop.test/", 0, True),
        ([CLOSED], "https://shop.test/", 0, False),
        ([CLOSED], "http://shop.test/", 20, False),
        ([CLOSED, "timeout after 5 s"], "http://shop.test/", 0, False),
        (["connection refused: shop.test:80"], "http://shop.test/", 0, False),
        ([], "", 0, False),
    ],
)
def test_a_port_that_closes_every_plain_connection_may_speak_tls(
    reasons: list[str], url: str, received: int, hinted: bool
) -> None:
    stats = RunStats(file_manifest())
    requests = RequestsDelta(sent=3, failed=3, bytes_received=received)
    stats.add(window(0, [row("pay", [], [0.1] * 3)], requests=requests))
    for reason in reasons:
        stats.add(ErrorSample("Shop", "pay", reason, 0.1, request=f"GET {url}"))
    assert any(MAYBE_TLS in note for note in notes_of(stats)) == hinted
