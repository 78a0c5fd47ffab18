"""`Backoff` and `Retries`: delays grow to a cap, draw within their jitter, and end."""

from __future__ import annotations

import pytest

from squall.runtime.backoff import Backoff, Retries


def delays(backoff: Backoff, count: int) -> list[float | None]:
    retries = Retries(backoff)
    return [retries.next_delay_s() for _ in range(count)]


def test_delays_grow_up_to_the_cap() -> None:
    assert delays(Backoff(1.0, factor=3.0, cap_s=10.0), 5) == [1.0, 3.0, 9.0, 10.0, 10.0]


def test_a_factor_of_one_waits_the_same_each_time() -> None:
    assert delays(Backoff(0.3, factor=1.0), 3) == [0.3, 0.3, 0.3]


def test_tries_count_the_first_one() -> None:
    assert delays(Backoff(1.0, tries=3), 4) == [1.0, 2.0, None, None]


def test_no_try_begins_at_or_after_the_deadline() -> None:
    retries = Retries(Backoff(1.0, factor=1.0, deadline_s=5.0))
    assert retries.next_delay_s(3.9) == 1.0
    assert retries.next_delay_s(4.0) is None


def test_a_success_starts_over() -> None:
    retries = Retries(Backoff(1.0))
    assert [retries.next_delay_s(), retries.next_delay_s()] == [1.0, 2.0]
    retries.succeeded()
    assert retries.next_delay_s() == 1.0


@pytest.mark.parametrize("jitter", [0.0, 0.25, 1.0])
def test_jitter_draws_the_stated_share_of_the_delay(jitter: float) -> None:
    backoff = Backoff(4.0, jitter=jitter)
    assert backoff.delay_s(1, lambda low, high: low) == 4.0 * (1 - jitter)
    assert backoff.delay_s(1, lambda low, high: high) == 4.0


def test_a_thousand_failures_still_have_a_delay() -> None:
    assert Backoff(0.05, cap_s=30.0).delay_s(1000) == 30.0


@pytest.mark.parametrize(
    "wrong", [{"first_s": -1.0}, {"first_s": 1.0, "factor": 0.5}, {"first_s": 1.0, "jitter": 2.0}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Backoff(**wrong)


def test_a_delay_may_spread_above_and_below_its_middle() -> None:
    backoff = Backoff.around(1.0, 0.1, cap_s=4.0)
    for failures, middle_s in ((1, 1.0), (2, 2.0), (3, 4.0), (9, 4.0)):
        low_s = backoff.delay_s(failures, lambda low, high: low)
        high_s = backoff.delay_s(failures, lambda low, high: high)
        assert low_s == pytest.approx(0.9 * middle_s) and high_s == pytest.approx(1.1 * middle_s)
