"""The search accepts a history that one order explains, and no other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lab.histories import linearizability
from lab.histories.linearizability import NEVER, Operation, explain

Register = Operation[int | None, int]


def step(state: int, request: int | None, answer: int | None) -> Iterable[int]:
    """A register of numbers: a request is the number to write, or None to read; the answer is the
    number that was there."""
    if answer is not None and answer != state:
        return []
    return [state if request is None else request]


def write(called: float, returned: float, value: int, found: int | None) -> Register:
    return Operation("w", value, called, returned, found)


def read(called: float, returned: float, found: int) -> Register:
    return Operation("r", None, called, returned, found)


def problem(*operations: Register) -> str:
    return explain(operations, 0, step)


def test_one_after_another() -> None:
    assert not problem(write(0, 1, 5, 0), read(2, 3, 5), write(4, 5, 6, 5), read(6, 7, 6))


def test_a_stale_read_is_found() -> None:
    assert problem(write(0, 1, 5, 0), write(2, 3, 6, 5), read(4, 5, 5))


def test_a_lost_write_is_found() -> None:
    assert problem(write(0, 1, 5, 0), write(2, 3, 6, 0))


def test_what_overlaps_may_take_either_order() -> None:
    assert not problem(write(0, 9, 5, 6), write(0, 9, 6, 0), read(10, 11, 5))
    assert not problem(write(0, 9, 5, 0), write(0, 9, 6, 5), read(10, 11, 6))


def test_reads_that_overlap_a_write_agree_on_its_moment() -> None:
    assert not problem(write(0, 9, 5, 0), read(1, 2, 0), read(3, 4, 5))
    assert problem(write(0, 9, 5, 0), read(1, 2, 5), read(3, 4, 0))


def test_an_operation_without_an_answer_happens_late_or_never() -> None:
    lost = write(0, NEVER, 5, None)
    assert not problem(lost, read(1, 2, 0), read(3, 4, 5))
    assert not problem(lost, read(1, 2, 0), write(3, 4, 6, 0), read(5, 6, 6))


def test_an_operation_without_an_answer_happens_at_most_once() -> None:
    lost = write(0, NEVER, 5, None)
    assert problem(lost, read(1, 2, 5), write(3, 4, 6, 5), read(5, 6, 5))


def test_an_operation_does_not_happen_before_its_call() -> None:
    assert problem(read(0, 1, 5), write(2, NEVER, 5, None))


def test_operations_at_the_same_moment_may_take_either_order() -> None:
    assert not problem(write(0, 1, 5, 0), read(1, 2, 0))
    assert not problem(write(0, 1, 5, 0), read(1, 2, 5))


def test_the_report_shows_what_fits_next_nowhere() -> None:
    text = problem(write(0, 1, 5, 0), write(2, 3, 6, 5), read(4, 5, 5))
    assert "after 6" in text
    assert [line[0] for line in text.splitlines()[1:]] == [".", ".", "*"]


def test_a_search_that_gives_up_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "STEPS_MAX", 10)
    overlapping = [write(0, NEVER, number, None) for number in range(1, 8)]
    # None of them has an answer: the read makes all of them matter.
    assert "no order was found in 10 steps" in problem(*overlapping, read(10, 11, 99))


def test_many_operations_in_a_row_need_no_deep_search() -> None:
    row = [write(2 * at, 2 * at + 1, at + 1, at) for at in range(2_000)]
    assert not problem(*row)
