"""Retries under any mix of failures, hints and waiting."""

from __future__ import annotations

import heapq
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.control.deadline import Deadline
from squall.control.retry import Effect, Failure, GiveUp, Reason, Retry, RetryBudget, TryAgain
from squall.control.settings import Jitter, RetryBudgetSettings, RetryPolicy

failures = st.builds(
    Failure, st.sampled_from(list(Effect)), st.one_of(st.just(0.0), st.floats(0, 100))
)
tries = st.lists(st.tuples(st.floats(0, 3), failures), min_size=1, max_size=30)
run = settings(max_examples=200, deadline=None)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    base_s = draw(st.floats(0.01, 2))
    return RetryPolicy(
        max_attempts=draw(st.one_of(st.none(), st.integers(1, 8))),
        base_s=base_s,
        cap_s=base_s * draw(st.floats(1, 50)),
        jitter=draw(st.sampled_from(Jitter)),
        least_attempt_s=draw(st.sampled_from([0.0, 0.5])),
        attempt_timeout_s=draw(st.one_of(st.none(), st.floats(0.1, 5))),
        hint_cap_s=draw(st.sampled_from([1.0, 60.0])),
    )


@given(
    policy=policies(),
    tries=tries,
    given_s=st.floats(0.1, 60),
    idempotent=st.booleans(),
    seed=st.integers(0, 2**32),
)
@run
def test_no_try_begins_after_the_deadline_nor_without_reason(
    policy: RetryPolicy,
    tries: list[tuple[float, Failure]],
    given_s: float,
    idempotent: bool,
    seed: int,
) -> None:
    uniform = random.Random(seed).uniform
    now = 1000.0
    deadline = Deadline.after(now, given_s)
    operation = Retry(policy, deadline=deadline, idempotent=idempotent)
    slept_s = 0.0
    for number, (takes_s, failure) in enumerate(tries, 1):
        timeout_s = operation.begin(now)
        assert timeout_s is not None, "a retry was promised and there is no time for it"
        assert operation.attempts == number
        assert 0 < timeout_s <= deadline.remaining_s(now)
        assert policy.attempt_timeout_s is None or timeout_s <= policy.attempt_timeout_s
        promised_s = min(policy.least_attempt_s, policy.attempt_timeout_s or given_s)
        assert number == 1 or timeout_s >= promised_s
        now += min(takes_s, timeout_s)
        decision = operation.next_delay(failure, now, uniform)
        if isinstance(decision, GiveUp):
            assert_right(decision.reason, policy, operation, failure, idempotent)
            break
        assert failure.effect is Effect.NONE or (failure.effect is Effect.UNKNOWN and idempotent)
        assert policy.max_attempts is None or number < policy.max_attempts
        least_s = min(failure.retry_after_s, policy.hint_cap_s)
        assert least_s <= decision.delay_s <= max(least_s, policy.cap_s)
        now += decision.delay_s
        slept_s += decision.delay_s
        assert now < deadline.at
    assert slept_s < given_s


def assert_right(
    reason: Reason, policy: RetryPolicy, operation: Retry, failure: Failure, idempotent: bool
) -> None:
    match reason:
        case Reason.FINAL:
            assert failure.effect is Effect.FINAL
        case Reason.NOT_IDEMPOTENT:
            assert failure.effect is Effect.UNKNOWN and not idempotent
        case Reason.ATTEMPTS:
            assert operation.attempts == policy.max_attempts
        case Reason.DEADLINE:
            pass
        case Reason.BUDGET:
            raise AssertionError("there is no budget here")


@given(
    policy=policies(),
    arrivals=st.lists(st.floats(0, 20), min_size=1, max_size=80),
    ratio=st.floats(0, 0.5),
    burst=st.floats(1, 10),
    reserve_per_s=st.floats(0, 2),
    seed=st.integers(0, 2**32),
)
@run
def test_the_budget_bounds_what_retries_add_when_everything_fails(
    policy: RetryPolicy,
    arrivals: list[float],
    ratio: float,
    burst: float,
    reserve_per_s: float,
    seed: int,
) -> None:
    uniform = random.Random(seed).uniform
    limits = RetryBudgetSettings(ratio=ratio, burst=burst, reserve_per_s=reserve_per_s)
    budget = RetryBudget(limits, 0)
    tries: list[tuple[float, int, Retry]] = [
        (
            at,
            number,
            Retry(policy, deadline=Deadline.after(at, 60), idempotent=True, budget=budget),
        )
        for number, at in enumerate(arrivals)
    ]
    heapq.heapify(tries)
    first_tries = retries = 0
    while tries:
        now, number, operation = heapq.heappop(tries)
        if operation.begin(now) is None:
            continue
        if operation.attempts == 1:
            first_tries += 1
        else:
            retries += 1
        decision = operation.next_delay(Failure(Effect.NONE), now, uniform)
        if isinstance(decision, TryAgain):
            heapq.heappush(tries, (now + decision.delay_s, number, operation))
        assert retries <= burst + ratio * first_tries + reserve_per_s * now + 1e-6
    assert first_tries == len(arrivals) == budget.first_tries_total
    assert retries <= budget.retries_total


@given(
    steps=st.lists(st.tuples(st.floats(-1, 3), st.booleans()), max_size=100),
    burst=st.floats(1, 10),
)
@run
def test_the_budget_never_holds_more_than_its_burst_nor_less_than_nothing(
    steps: list[tuple[float, bool]], burst: float
) -> None:
    """Also with a clock that stands still or is read out of order."""
    budget = RetryBudget(RetryBudgetSettings(ratio=0.2, burst=burst, reserve_per_s=1), 0)
    now = 0.0
    for seconds, is_first in steps:
        now += seconds
        before = budget.tokens
        if is_first:
            budget.first_try(now)
        else:
            took = budget.take(now)
            assert took or before < 1
        assert 0 <= budget.tokens <= burst
