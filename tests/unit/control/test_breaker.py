"""The circuit breaker, case by case."""

from __future__ import annotations

from squall.control.breaker import Blocked, Breaker, Breakers, CircuitState, Permit
from squall.control.classes import MessageClass
from squall.control.settings import BreakerSettings

CONTROL, DISPATCH, DATA, TELEMETRY = MessageClass
OPEN, CLOSED, HALF_OPEN = CircuitState.OPEN, CircuitState.CLOSED, CircuitState.HALF_OPEN


def passed(breaker: Breaker, now: float) -> Permit:
    permit = breaker.ask(DISPATCH, now)
    assert isinstance(permit, Permit)
    return permit


def blocked(breaker: Breaker, now: float) -> Blocked:
    answer = breaker.ask(DISPATCH, now)
    assert isinstance(answer, Blocked)
    return answer


def fail(breaker: Breaker, now: float, count: int = 1) -> None:
    for _ in range(count):
        breaker.failed(passed(breaker, now), now, "timed out")


def opened(settings: BreakerSettings | None = None) -> Breaker:
    """Opened at 0."""
    breaker = Breaker(settings or BreakerSettings(), "m1")
    fail(breaker, 0, 3)
    return breaker


def test_the_third_failure_in_thirty_seconds_opens() -> None:
    breaker = Breaker(BreakerSettings())
    fail(breaker, 0)
    fail(breaker, 15)
    assert breaker.state(29) is CLOSED
    fail(breaker, 30)
    assert breaker.state(30) is OPEN


def test_failures_further_apart_never_open() -> None:
    breaker = Breaker(BreakerSettings())
    for number in range(100):
        fail(breaker, number * 15.1)
    assert breaker.state(0) is CLOSED


def test_an_open_circuit_says_why_and_for_how_long() -> None:
    breaker = opened()
    assert blocked(breaker, 4) == Blocked(6, "timed out")
    assert not breaker.would_pass(4)


def test_control_passes_an_open_circuit_and_counts_for_nothing() -> None:
    breaker = opened()
    permit = breaker.ask(CONTROL, 1)
    assert isinstance(permit, Permit)
    breaker.succeeded(permit, 1)
    assert breaker.state(1) is OPEN
    fresh = Breaker(BreakerSettings())
    for _ in range(10):
        permit = fresh.ask(CONTROL, 0)
        assert isinstance(permit, Permit)
        fresh.failed(permit, 0, "timed out")
    assert fresh.state(0) is CLOSED


def test_after_ten_seconds_one_request_at_a_time_probes() -> None:
    breaker = opened()
    assert breaker.state(10) is HALF_OPEN
    assert breaker.would_pass(10)
    passed(breaker, 10)
    assert blocked(breaker, 11).retry_after_s == 9
    assert not breaker.would_pass(11)


def test_a_probe_that_succeeds_closes_with_a_clean_slate() -> None:
    breaker = opened()
    breaker.succeeded(passed(breaker, 10), 11)
    assert breaker.state(11) is CLOSED
    fail(breaker, 11, 2)
    assert breaker.state(11) is CLOSED


def test_a_probe_that_fails_opens_for_as_long_again() -> None:
    breaker = opened()
    breaker.failed(passed(breaker, 10), 12, "refused")
    assert blocked(breaker, 13) == Blocked(9, "refused")
    assert breaker.state(22) is HALF_OPEN


def test_an_abandoned_probe_lets_the_next_one_go() -> None:
    breaker = opened()
    breaker.abandoned(passed(breaker, 10), 10.5)
    passed(breaker, 10.5)


def test_a_probe_that_is_never_heard_of_again_does_not_block_for_ever() -> None:
    breaker = opened()
    lost = passed(breaker, 10)
    following = passed(breaker, 20)
    breaker.failed(lost, 20, "late")
    assert breaker.state(20) is HALF_OPEN
    breaker.succeeded(following, 21)
    assert breaker.state(21) is CLOSED


def test_several_successes_can_be_asked_for() -> None:
    breaker = opened(BreakerSettings(probes_max=2, successes_to_close=2))
    first, second = passed(breaker, 10), passed(breaker, 10)
    blocked(breaker, 10)
    breaker.succeeded(first, 10)
    breaker.succeeded(first, 10)
    assert breaker.state(10) is HALF_OPEN
    breaker.succeeded(second, 10)
    assert breaker.state(10) is CLOSED


def test_requests_from_before_the_opening_say_nothing_about_now() -> None:
    breaker = Breaker(BreakerSettings())
    old = [passed(breaker, 0) for _ in range(3)]
    fail(breaker, 0, 3)
    assert breaker.state(10) is HALF_OPEN
    breaker.succeeded(old[0], 10)
    assert breaker.state(10) is HALF_OPEN
    breaker.failed(old[1], 10, "late")
    assert breaker.state(10) is HALF_OPEN
    breaker.succeeded(passed(breaker, 10), 10)
    breaker.failed(old[2], 10, "late")
    assert breaker.status(10).failures_in_window == 0


def test_the_status_counts_what_happened() -> None:
    breaker = opened()
    blocked(breaker, 1)
    blocked(breaker, 2)
    status = breaker.status(3)
    assert (status.peer, status.state, status.retry_after_s) == ("m1", OPEN, 7)
    assert (status.passed_total, status.failed_total, status.blocked_total) == (3, 3, 2)
    assert (status.opened_total, status.last_reason) == (1, "timed out")


def test_each_peer_has_a_circuit_of_its_own() -> None:
    breakers = Breakers(BreakerSettings())
    fail(breakers.of("bad", 0), 0, 3)
    assert breakers.of("bad", 0).state(0) is OPEN
    assert breakers.of("good", 0).state(0) is CLOSED
    assert [status.peer for status in breakers.statuses(0)] == ["bad", "good"]


def test_a_peer_that_came_back_with_a_new_boot_starts_closed() -> None:
    breakers = Breakers(BreakerSettings())
    fail(breakers.of("m1", 0), 0, 3)
    breakers.forget("m1")
    breakers.forget("never seen")
    assert breakers.of("m1", 0).state(0) is CLOSED


def test_the_least_recently_used_idle_circuit_makes_room() -> None:
    breakers = Breakers(BreakerSettings(peers_max=3))
    fail(breakers.of("bad", 0), 0, 3)
    breakers.of("a", 0)
    breakers.of("b", 0)
    breakers.of("a", 0)
    breakers.of("c", 0)
    assert {status.peer for status in breakers.statuses(0)} == {"bad", "a", "c"}
    assert (len(breakers), breakers.evicted_total) == (3, 1)


def test_the_number_of_circuits_is_bounded_even_if_none_is_idle() -> None:
    breakers = Breakers(BreakerSettings(peers_max=2))
    for peer in "abc":
        fail(breakers.of(peer, 0), 0)
    assert [status.peer for status in breakers.statuses(0)] == ["b", "c"]
