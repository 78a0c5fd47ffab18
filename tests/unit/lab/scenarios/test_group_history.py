"""The linearizability checker accepts what one order explains, and nothing else."""

from __future__ import annotations

from lab.scenarios.group.history import NEVER, Operation, explain


def write(start: float, end: float, value: str, found: str | None) -> Operation:
    return Operation(f"c{start}", "k", start, value, None, end, found, found is not None)


def read(start: float, end: float, found: str) -> Operation:
    return Operation(f"c{start}", "k", start, None, None, end, found)


def test_operations_one_after_another() -> None:
    assert not explain([write(0, 1, "a", ""), read(2, 3, "a"), write(4, 5, "b", "a")])


def test_a_read_of_an_overwritten_value_is_found() -> None:
    assert explain([write(0, 1, "a", ""), write(2, 3, "b", "a"), read(4, 5, "a")])


def test_overlapping_operations_may_take_either_order() -> None:
    assert not explain([write(0, 9, "a", "b"), write(0, 9, "b", ""), read(10, 11, "a")])


def test_a_write_without_an_answer_may_happen_late_or_never() -> None:
    late = write(0, NEVER, "a", None)
    assert not explain([late, read(1, 2, ""), read(3, 4, "a")])
    assert not explain([late, read(1, 2, "")])


def test_a_value_that_comes_and_goes_is_found() -> None:
    late = write(0, NEVER, "a", None)
    assert explain([late, read(1, 2, "a"), read(3, 4, "")])


def test_a_lost_write_is_found() -> None:
    assert explain([write(0, 1, "a", ""), write(2, 3, "b", "")])


def test_compare_and_set_writes_only_what_it_expected() -> None:
    failed = Operation("c", "k", 2, "b", "x", 3, "a", wrote=False)
    assert not explain([write(0, 1, "a", ""), failed, read(4, 5, "a")])
    wrong = Operation("c", "k", 2, "b", "x", 3, "a", wrote=True)
    assert explain([write(0, 1, "a", ""), wrong])
