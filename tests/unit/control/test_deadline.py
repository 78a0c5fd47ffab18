"""Deadlines: what is left, and the earlier of two."""

from __future__ import annotations

import math

from squall.control.deadline import NEVER, Deadline


def test_what_remains_shrinks_to_zero_and_no_further() -> None:
    deadline = Deadline.after(100, 5)
    assert deadline.remaining_s(102) == 3
    assert not deadline.expired(104.9)
    assert deadline.expired(105)
    assert deadline.remaining_s(200) == 0


def test_a_part_of_the_work_never_gets_more_than_the_whole() -> None:
    deadline = Deadline.after(0, 5)
    assert deadline.sooner(3, 1).remaining_s(3) == 1
    assert deadline.sooner(3, 10).remaining_s(3) == 2


def test_never_leaves_all_the_time() -> None:
    assert NEVER.remaining_s(1e12) == math.inf
    assert not NEVER.expired(1e12)
    assert NEVER.sooner(0, 2) == Deadline(2)
