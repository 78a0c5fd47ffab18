"""When the messages of an outbox are due."""

from __future__ import annotations

import math

from squall.cluster.control.redelivery import Redelivery
from squall.runtime.backoff import Backoff


def sending() -> Redelivery:
    return Redelivery(Backoff(1.0, cap_s=3.0))


def test_a_new_message_is_due_at_once_and_not_while_it_is_under_way() -> None:
    made = sending()
    assert made.is_due("a", 0.0)
    made.sent("a")
    assert not made.is_due("a", 1e9)
    assert made.next_due() == math.inf


def test_a_message_that_fails_waits_longer_each_time() -> None:
    made = sending()
    due: list[float] = []
    for _ in range(4):
        made.sent("a")
        made.failed("a", 0.0)
        due.append(made.next_due())
    assert due == [1.0, 2.0, 3.0, 3.0]


def test_an_answered_message_is_repeated_only_if_it_is_asked_for() -> None:
    made = sending()
    made.answered("a", 0.0)
    made.answered("b", 0.0, 2.0)
    assert not made.is_due("a", 1e9)
    assert not made.is_due("b", 1.9) and made.is_due("b", 2.0)


def test_a_message_that_was_not_needed_for_a_while_is_new_again() -> None:
    made = sending()
    made.answered("a", 0.0)
    made.retain(["b"])
    assert made.is_due("a", 0.0)
