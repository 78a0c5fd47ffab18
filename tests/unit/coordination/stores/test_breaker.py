"""When the circuit of a store opens, and what closes it."""

from __future__ import annotations

from squall.coordination.stores.breaker import BreakerState, StoreBreaker


def opened(at: float = 0.0) -> StoreBreaker:
    breaker = StoreBreaker()
    for number in range(10):
        assert breaker.admit(at + number)
        breaker.failed(at + number)
    return breaker


def test_ten_failures_in_a_row_open_it_for_a_minute() -> None:
    breaker = StoreBreaker()
    for number in range(9):
        breaker.failed(float(number))
    assert breaker.state(9.0) is BreakerState.CLOSED
    breaker.failed(9.0)
    assert breaker.state(9.0) is BreakerState.OPEN
    assert not breaker.admit(68.9)
    assert breaker.state(69.0) is BreakerState.HALF_OPEN


def test_a_success_in_between_resets_the_count() -> None:
    breaker = StoreBreaker()
    for number in range(9):
        breaker.failed(float(number))
    breaker.succeeded()
    for number in range(9):
        breaker.failed(10.0 + number)
    assert breaker.state(20.0) is BreakerState.CLOSED


def test_a_burst_of_one_moment_counts_once() -> None:
    breaker = StoreBreaker()
    for number in range(50):
        breaker.failed(5.0 + number * 0.0019)
    assert breaker.failures == 1
    breaker.failed(5.2)
    assert breaker.failures == 2


def test_half_open_lets_one_probe_through_and_its_end_decides() -> None:
    breaker = opened()
    assert breaker.admit(70.0)
    assert not breaker.admit(70.0)
    breaker.failed(71.0)
    assert breaker.state(71.0) is BreakerState.OPEN
    assert not breaker.admit(130.9)
    assert breaker.admit(131.0)
    breaker.succeeded()
    assert breaker.state(131.0) is BreakerState.CLOSED
    assert breaker.failures == 0


def test_a_probe_that_never_ends_does_not_block_for_ever() -> None:
    breaker = opened()
    assert breaker.admit(70.0)
    assert not breaker.admit(129.9)
    assert breaker.admit(130.0)


def test_a_failure_that_was_begun_before_it_opened_does_not_keep_it_open() -> None:
    breaker = opened()
    breaker.failed(60.0)
    assert breaker.state(69.0) is BreakerState.HALF_OPEN


def test_by_hand() -> None:
    breaker = opened()
    breaker.reset()
    assert breaker.admit(10.0)


def test_a_hang_opens_it_at_once_and_not_for_long() -> None:
    breaker = StoreBreaker()
    for _ in range(12):
        breaker.hung(5.0)
    assert breaker.state(5.0) is BreakerState.OPEN
    # The metric must not say 0 while the circuit is open.
    assert breaker.unanswered == 12
    assert not breaker.admit(9.9)
    assert breaker.admit(10.0)


def test_a_probe_that_hangs_too_opens_it_for_a_minute() -> None:
    breaker = StoreBreaker()
    breaker.hung(5.0)
    assert breaker.admit(10.0)
    breaker.hung(15.0)
    assert not breaker.admit(74.9)
    assert breaker.admit(75.0)


def test_a_hang_that_began_before_it_opened_does_not_keep_it_open() -> None:
    breaker = StoreBreaker()
    breaker.hung(5.0)
    breaker.hung(9.0)
    assert breaker.admit(10.0)


def test_an_answer_closes_it_and_forgets_the_tries_that_hung() -> None:
    breaker = StoreBreaker()
    breaker.hung(8.0)
    breaker.succeeded()
    assert breaker.state(8.0) is BreakerState.CLOSED
    assert breaker.unanswered == 0
