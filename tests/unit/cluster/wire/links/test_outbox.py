"""The queue of one destination: levels, order, and dropped messages."""

from __future__ import annotations

import pytest

from squall.cluster.wire.header import CORRELATION_MAX, MessageClass
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.links.outbox import Outbox, PutResult, QueuedMessage, QueueLevel
from squall.cluster.wire.links.pending_calls import Calls

LIMITS = WireLimits(
    queue_messages=100,
    queue_overflow_messages=20,
    queue_bytes=10_000,
    control_queue_messages=5,
    control_queue_bytes=1_000,
)
CONTROL, DISPATCH, DATA, TELEMETRY = MessageClass


def entry(message_class: MessageClass = DATA, number: int = 0, size: int = 1) -> QueuedMessage:
    return QueuedMessage(message_class, 0, number, 0, 0.0, b"x" * size)


def fill(outbox: Outbox, count: int, message_class: MessageClass = DATA) -> None:
    for number in range(count):
        assert outbox.put(entry(message_class, number)) is PutResult.QUEUED


def taken(outbox: Outbox) -> list[tuple[MessageClass, int]]:
    found = []
    while (left := outbox.take()) is not None:
        found.append((left.message_class, left.type_number))
    return found


@pytest.mark.parametrize(
    ("count", "level"),
    [
        (84, QueueLevel.HEALTHY),
        (85, QueueLevel.PAUSED),
        (94, QueueLevel.PAUSED),
        (95, QueueLevel.OVERFLOW),
        (120, QueueLevel.OVERFLOW),
    ],
)
def test_the_fill_gives_the_level(count: int, level: QueueLevel) -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, count)
    assert outbox.level is level


def test_a_queue_full_of_what_must_not_be_dropped_refuses() -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, 120)
    for message_class in (DISPATCH, DATA, TELEMETRY):
        assert outbox.put(entry(message_class)) is PutResult.REFUSED
    assert (outbox.waiting, outbox.dropped) == (120, 0)


def test_a_level_is_left_five_percent_below_its_start() -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, 85)
    for _ in range(5):
        outbox.take()
        assert outbox.level is QueueLevel.PAUSED
    outbox.take()
    assert outbox.level is QueueLevel.HEALTHY


def test_a_full_queue_accepts_again_when_there_is_room() -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, 120)
    assert outbox.put(entry()) is PutResult.REFUSED
    outbox.take()
    assert outbox.put(entry()) is PutResult.QUEUED


def test_the_oldest_telemetry_gives_way_to_the_newest() -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, 200, TELEMETRY)
    kept = [number for _, number in taken(outbox)]
    assert kept == list(range(200 - len(kept), 200))
    assert len(kept) <= 120
    assert outbox.dropped == 200 - len(kept)


def test_telemetry_gives_way_to_everything_else_and_nothing_else_is_dropped() -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, 60, TELEMETRY)
    fill(outbox, 120, DATA)
    kept = taken(outbox)
    assert [number for cls, number in kept if cls is DATA] == list(range(120))
    assert outbox.dropped == 60


def test_bytes_count_as_much_as_messages() -> None:
    outbox = Outbox(LIMITS)
    assert outbox.put(entry(size=9_000)) is PutResult.QUEUED
    assert outbox.level is QueueLevel.PAUSED
    assert outbox.put(entry(size=1_001)) is PutResult.REFUSED


def test_a_single_message_larger_than_the_bytes_still_passes_an_empty_queue() -> None:
    assert Outbox(LIMITS).put(entry(size=20_000)) is PutResult.QUEUED


def test_control_has_a_bound_of_its_own_and_is_never_dropped_for_others() -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, 120)
    fill(outbox, 5, CONTROL)
    assert outbox.put(entry(CONTROL)) is PutResult.CONTROL_FULL
    assert taken(outbox)[:5] == [(CONTROL, number) for number in range(5)]


def test_control_is_bounded_in_bytes_too() -> None:
    outbox = Outbox(LIMITS)
    outbox.put(entry(CONTROL, size=900))
    assert outbox.put(entry(CONTROL, size=200)) is PutResult.CONTROL_FULL


def test_dear_classes_go_first_and_cheap_ones_are_not_starved() -> None:
    outbox = Outbox(WireLimits(control_queue_messages=1_000))
    fill(outbox, 300, CONTROL)
    fill(outbox, 50, DATA)
    fill(outbox, 50, TELEMETRY)
    order = [message_class for message_class, _ in taken(outbox)]
    assert order[:64] == [CONTROL] * 64
    assert DATA in order[:80] and TELEMETRY in order[:80]
    assert order[:160].count(CONTROL) > order[:160].count(DATA) > order[:160].count(TELEMETRY)


def test_the_order_inside_a_class_is_kept() -> None:
    outbox = Outbox(WireLimits())
    for number in range(100):
        outbox.put(entry(DATA, number))
        outbox.put(entry(DISPATCH, number))
    order = taken(outbox)
    for message_class in (DATA, DISPATCH):
        assert [n for cls, n in order if cls is message_class] == list(range(100))


def test_what_is_forgotten_is_not_sent_and_takes_no_room() -> None:
    outbox = Outbox(LIMITS)
    entries = [entry(number=number) for number in range(120)]
    for one in entries:
        outbox.put(one)
    assert all(outbox.forget(one) for one in entries)
    assert not outbox.forget(entries[0])
    assert (outbox.waiting, outbox.take(), outbox.level) == (0, None, QueueLevel.HEALTHY)


def test_answers_find_a_place_in_a_full_queue() -> None:
    outbox = Outbox(LIMITS)
    fill(outbox, 120)
    assert outbox.put(entry(), certain=True) is PutResult.QUEUED
    assert outbox.waiting == 121


def test_correlations_wrap_around_those_that_still_wait() -> None:
    calls: Calls[str] = Calls()
    calls.open("first", 1.0)
    calls._last = CORRELATION_MAX
    assert calls.open("second", 1.0).correlation == 2


def test_only_calls_over_time_expire_and_the_next_deadline_is_known() -> None:
    calls: Calls[str] = Calls()
    for name, deadline in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        calls.open(name, deadline)
    assert calls.earliest == 1.0
    assert [call.waiter for call in calls.expired(2.0)] == ["b", "c"]
    assert calls.earliest == 3.0
    assert [call.waiter for call in calls.clear()] == ["a"]
