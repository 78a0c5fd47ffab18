"""The retry core, case by case."""

from __future__ import annotations

import pytest

from squall.control.deadline import NEVER, Deadline
from squall.control.retry import (
    Effect,
    Failure,
    GiveUp,
    Reason,
    Retry,
    RetryBudget,
    TryAgain,
)
from squall.control.settings import (
    DISPATCH_RETRY,
    PROGRESS_RETRY,
    REGISTRATION_RETRY,
    Jitter,
    RetryBudgetSettings,
    RetryPolicy,
)

NONE = Failure(Effect.NONE)
UNKNOWN = Failure(Effect.UNKNOWN)


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


def retry(
    policy: RetryPolicy | None = None,
    *,
    deadline: Deadline = NEVER,
    idempotent: bool = True,
    budget: RetryBudget | None = None,
) -> Retry:
    return Retry(policy or RetryPolicy(), deadline=deadline, idempotent=idempotent, budget=budget)


def longest_delays(policy: RetryPolicy, count: int) -> list[float]:
    operation = retry(policy)
    delays: list[float] = []
    for _ in range(count):
        operation.begin(0)
        decision = operation.next_delay(NONE, 0, highest)
        assert isinstance(decision, TryAgain)
        delays.append(decision.delay_s)
    return delays


def test_the_longest_delay_doubles_up_to_the_cap() -> None:
    policy = RetryPolicy(max_attempts=None, base_s=0.5, cap_s=3)
    assert longest_delays(policy, 5) == [0.5, 1, 2, 3, 3]


def test_delays_stay_finite_after_very_many_attempts() -> None:
    policy = RetryPolicy(max_attempts=None, base_s=0.5, cap_s=30)
    assert longest_delays(policy, 2000)[-1] == 30


def test_full_jitter_reaches_down_to_nothing_and_equal_jitter_to_half() -> None:
    full, equal = (
        retry(RetryPolicy(jitter=Jitter.FULL)),
        retry(RetryPolicy(jitter=Jitter.EQUAL)),
    )
    full.begin(0)
    equal.begin(0)
    assert full.next_delay(NONE, 0, lowest) == TryAgain(0)
    assert equal.next_delay(NONE, 0, lowest) == TryAgain(0.25)
    assert equal.next_delay(NONE, 0, highest) == TryAgain(0.5)


def test_decorrelated_jitter_grows_from_its_own_last_delay() -> None:
    policy = RetryPolicy(max_attempts=None, base_s=1, cap_s=20, jitter=Jitter.DECORRELATED)
    assert longest_delays(policy, 4) == [3, 9, 20, 20]
    again = retry(policy)
    again.begin(0)
    assert again.next_delay(NONE, 0, lowest) == TryAgain(1)


def test_the_first_try_counts_as_an_attempt() -> None:
    operation = retry(RetryPolicy(max_attempts=2))
    operation.begin(0)
    assert isinstance(operation.next_delay(NONE, 0, lowest), TryAgain)
    operation.begin(0)
    assert operation.next_delay(NONE, 0, lowest) == GiveUp(Reason.ATTEMPTS)


def test_an_unknown_outcome_is_repeated_only_if_the_operation_is_idempotent() -> None:
    careful = retry(idempotent=False)
    careful.begin(0)
    assert careful.next_delay(UNKNOWN, 0, lowest) == GiveUp(Reason.NOT_IDEMPOTENT)
    assert isinstance(careful.next_delay(NONE, 0, lowest), TryAgain)
    repeatable = retry(idempotent=True)
    repeatable.begin(0)
    assert isinstance(repeatable.next_delay(UNKNOWN, 0, lowest), TryAgain)


def test_a_final_failure_is_never_repeated() -> None:
    operation = retry()
    operation.begin(0)
    assert operation.next_delay(Failure(Effect.FINAL), 0, lowest) == GiveUp(Reason.FINAL)


def test_the_hint_of_the_peer_is_the_least_delay_up_to_its_cap() -> None:
    operation = retry(RetryPolicy(max_attempts=None, hint_cap_s=60))
    operation.begin(0)
    assert operation.next_delay(Failure(Effect.NONE, 7), 0, highest) == TryAgain(7)
    assert operation.next_delay(Failure(Effect.NONE, 0.1), 0, highest) == TryAgain(0.5)
    assert operation.next_delay(Failure(Effect.NONE, 1e9), 0, highest) == TryAgain(60)


def test_a_hint_that_is_no_number_says_nothing() -> None:
    operation = retry()
    operation.begin(0)
    assert operation.next_delay(Failure(Effect.NONE, float("nan")), 0, highest) == TryAgain(0.5)


def test_a_retry_that_could_not_begin_before_the_deadline_is_not_waited_for() -> None:
    operation = retry(deadline=Deadline(10))
    operation.begin(0)
    assert operation.next_delay(Failure(Effect.NONE, 9), 0, lowest) == TryAgain(9)
    assert operation.next_delay(Failure(Effect.NONE, 9), 1, lowest) == GiveUp(Reason.DEADLINE)


def test_a_retry_gets_at_least_the_time_that_the_policy_asks_for() -> None:
    operation = retry(RetryPolicy(least_attempt_s=2), deadline=Deadline(10))
    operation.begin(0)
    assert operation.next_delay(Failure(Effect.NONE, 8), 0, lowest) == TryAgain(8)
    assert operation.next_delay(Failure(Effect.NONE, 8.1), 0, lowest) == GiveUp(Reason.DEADLINE)


def test_a_try_is_told_how_much_time_it_has() -> None:
    operation = retry(RetryPolicy(attempt_timeout_s=4), deadline=Deadline(10))
    assert operation.begin(0) == 4
    assert operation.begin(9) == 1
    assert operation.begin(10) is None
    assert operation.attempts == 2


def test_the_budget_is_charged_for_retries_that_happen_and_for_no_others() -> None:
    budget = RetryBudget(RetryBudgetSettings(ratio=0.1, burst=1, reserve_per_s=0), 0)
    doomed = retry(RetryPolicy(max_attempts=1), budget=budget)
    doomed.begin(0)
    assert doomed.next_delay(NONE, 0, lowest) == GiveUp(Reason.ATTEMPTS)
    assert budget.tokens == 1
    first = retry(budget=budget)
    first.begin(0)
    assert isinstance(first.next_delay(NONE, 0, lowest), TryAgain)
    second = retry(budget=budget)
    second.begin(0)
    assert second.next_delay(NONE, 0, lowest) == GiveUp(Reason.BUDGET)
    assert (budget.first_tries_total, budget.retries_total, budget.refused_total) == (3, 1, 1)


def test_traffic_and_time_fill_the_budget_up_to_its_burst() -> None:
    budget = RetryBudget(RetryBudgetSettings(ratio=0.25, burst=2, reserve_per_s=0.5), 0)
    assert budget.take(0) and budget.take(0)
    assert not budget.take(0)
    for _ in range(4):
        budget.first_try(0)
    assert budget.take(0)
    assert not budget.take(1.9)
    assert budget.take(2)
    assert budget.take(1000) and budget.take(1000)
    assert not budget.take(1000)


@pytest.mark.parametrize(
    ("policy", "longest"),
    [(REGISTRATION_RETRY, [0.5, 1, 2]), (PROGRESS_RETRY, [0.2, 0.4]), (DISPATCH_RETRY, [0.3, 0.6])],
)
def test_each_kind_of_call_has_its_policy(policy: RetryPolicy, longest: list[float]) -> None:
    assert longest_delays(policy, len(longest)) == longest
    assert policy.max_attempts == len(longest) + 1
