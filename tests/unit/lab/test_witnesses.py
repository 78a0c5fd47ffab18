"""What tests with real processes excuse by the machine, and what they do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.cluster.lab.group import pauses
from tests.cluster.lab.judge import STAMP
from tests.lab.exit_codes import check_code

LATE = "loop lag p99 180 ms: the generator was late to see answers"


class Finished(NamedTuple):
    code: int
    document: dict[str, Any]
    err: str = ""


def invalid(code: int, *reasons: str, aborted_by: str = "") -> Finished:
    verdict = {"state": "INVALID", "reasons": list(reasons)}
    return Finished(code, {"verdict": verdict, "aborted_by": aborted_by or None})


def test_a_run_that_the_machine_delayed_may_end_with_98() -> None:
    check_code(invalid(98, LATE))
    check_code(invalid(98, LATE, "worker w1 restarted at 5.1 s: Load"), loss_of="w1")


def test_an_interrupted_or_aborted_run_keeps_its_code() -> None:
    check_code(invalid(105, LATE), 105)
    check_code(invalid(99, LATE, aborted_by="get.p(50) < 1ms"), 99)


@pytest.mark.parametrize("reason", ["worker w2 lost at 5.1 s: Load", "users could not start"])
def test_other_reasons_are_no_excuse(reason: str) -> None:
    with pytest.raises(AssertionError):
        check_code(invalid(98, LATE, reason), loss_of="w1")


def seen(*lags_ms: float, slowest_ms: float = 30.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """A load with two seconds without a start."""
    processes = [{"loop_lag_ms": {"max": lag}} for lag in lags_ms]
    steps = [{"service_ms": {"max": slowest_ms}}]
    document = {"generator": {"processes": processes}, "workflows": [{"steps": steps}]}
    return document | {"losses": []}, {"fields": {STAMP: {"100": 5, "120": 5}}}


def test_a_pause_of_the_load_is_found() -> None:
    assert pauses(*seen(5.0, 2.0)) == ["no start for 2.0 s"]


def test_one_late_generator_of_two_is_no_reason_for_a_pause() -> None:
    assert pauses(*seen(2000.0, 5.0)) == ["no start for 2.0 s"]


def test_a_pause_in_which_the_machine_stood_still_is_excused() -> None:
    assert pauses(*seen(2000.0, 1900.0)) == []
    assert pauses(*seen(5.0, 5.0, slowest_ms=1900.0)) == []
