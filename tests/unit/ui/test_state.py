"""What the screen remembers of a run."""

from __future__ import annotations

from squall.stats.snapshot import ErrorLine, NewError
from squall.ui.state import LOG_LINES, RunState
from tests.unit.ui.lab.screens import busy_snapshot, manifest, moment, snapshot, state_of, workflow


def test_errors_are_traced_second_by_second_with_their_place() -> None:
    def at(second: int, count: int):  # type: ignore[no-untyped-def]
        lines = (ErrorLine(count, "pay", "KeyError 'id'"),)
        new = (
            NewError(workflow="Shop", row="pay", reason="KeyError 'id'", location="a.py:3 in pay"),
        )
        return snapshot(
            second, workflows=(moment(errors=lines),), new_errors=new if second == 1 else ()
        )

    state = state_of(at(1, 2), at(2, 2), at(3, 9))
    trace = state.errors[("Shop", "pay", "KeyError 'id'")]
    assert list(trace.per_second) == [2, 0, 7]
    assert trace.location == "a.py:3"


def test_many_kinds_of_errors_stay_bounded() -> None:
    state = RunState(manifest(), 1)
    for second in range(1_000):
        lines = (ErrorLine(1, "pay", f"odd {second}"),)
        state.feed(snapshot(second, workflows=(moment(errors=lines),)))
    assert len(state.errors) <= 201
    assert ("Shop", "pay", "odd 999") in state.errors


def test_events_are_logged_once_until_they_come_again() -> None:
    state = state_of(busy_snapshot(1), busy_snapshot(2))
    texts = [line.text for line in state.log]
    assert texts == [
        "00:01 DEGRADED: loop lag p99 31 ms: the generator was late to see answers",
        "00:01 pay.p(99) < 800ms is failing: 912 ms",
        "00:01 pay: KeyError 'id' at shop.py:31 (first)",
        "00:02 pay: KeyError 'id' at shop.py:31 (first)",
    ]
    state.feed(snapshot(3))
    state.feed(busy_snapshot(4))
    texts = [line.text for line in state.log][4:]
    assert texts[0] == "00:03 VALID again"
    assert texts[2] == "00:04 pay.p(99) < 800ms is failing: 912 ms"


def test_the_log_is_bounded_and_counts_what_it_dropped() -> None:
    state = RunState(manifest(), 1)
    for number in range(LOG_LINES + 5):
        state.note(f"line {number}")
    assert len(state.log) == LOG_LINES
    assert state.logged == LOG_LINES + 5
    assert state.log[0].text == "line 5"


def test_a_workflow_that_has_ended_adds_nothing_to_its_past_or_the_sum() -> None:
    file = manifest(workflow("Shop"), workflow("Browse"))
    both = (moment("Shop"), moment("Browse", ended=True))
    state = state_of(snapshot(1, workflows=both), file=file)
    assert state.workflows["Shop"].count == 1
    assert state.workflows["Browse"].count == 0
    assert state.total.recent[-1].rate == 498.0
