"""The drivers of the client side: they await what the cores decide."""

from __future__ import annotations

import asyncio

import pytest
from stopped_clock import StoppedClock

from squall.control.breaker import Breaker, CircuitState
from squall.control.calls import Attempt, guarded, retrying
from squall.control.classes import MessageClass
from squall.control.deadline import NEVER, Deadline
from squall.control.errors import CircuitOpen, DeadlinePassed, Overloaded
from squall.control.retry import RetryBudget
from squall.control.settings import BreakerSettings, RetryBudgetSettings, RetryPolicy
from squall.wire.errors import NotSent, OutcomeUnknown, RemoteError

POLICY = RetryPolicy(max_attempts=3, base_s=0.5)


def highest(low: float, high: float) -> float:
    return high


class Peer:
    """Fails with the given errors in turn, then answers."""

    def __init__(self, clock: StoppedClock, *errors: BaseException, takes_s: float = 0) -> None:
        self.clock = clock
        self.errors = list(errors)
        self.takes_s = takes_s
        self.attempts: list[tuple[int, float]] = []

    async def ask(self, attempt: Attempt) -> str:
        self.attempts.append((attempt.number, attempt.deadline.remaining_s(self.clock.now())))
        self.clock.time += self.takes_s
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        return "answer"

    async def call(
        self,
        *,
        deadline: Deadline = NEVER,
        idempotent: bool = True,
        budget: RetryBudget | None = None,
    ) -> str:
        return await retrying(
            self.ask,
            POLICY,
            clock=self.clock,
            uniform=highest,
            idempotent=idempotent,
            deadline=deadline,
            budget=budget,
        )


@pytest.mark.asyncio
async def test_an_operation_is_tried_until_it_succeeds() -> None:
    clock = StoppedClock()
    peer = Peer(clock, NotSent("refused"), Overloaded(3))
    assert await peer.call() == "answer"
    assert clock.slept == [0.5, 3]


@pytest.mark.asyncio
async def test_the_last_error_is_raised_and_says_why_it_was_the_last() -> None:
    clock = StoppedClock()
    peer = Peer(clock, *(NotSent(f"number {number}") for number in range(3)))
    with pytest.raises(NotSent, match="number 2") as caught:
        await peer.call()
    assert caught.value.__notes__ == ["attempt 3 was the last: all attempts are used"]
    assert clock.slept == [0.5, 1]


@pytest.mark.asyncio
async def test_what_cannot_be_repeated_is_raised_at_once() -> None:
    clock = StoppedClock()
    with pytest.raises(OutcomeUnknown):
        await Peer(clock, OutcomeUnknown("lost")).call(idempotent=False)
    with pytest.raises(RemoteError):
        await Peer(clock, RemoteError("forbidden")).call()
    assert clock.slept == []


@pytest.mark.asyncio
async def test_each_try_is_told_what_is_left_of_the_time() -> None:
    clock = StoppedClock()
    peer = Peer(clock, NotSent("a"), NotSent("b"), takes_s=2)
    assert await peer.call(deadline=Deadline.after(clock.now(), 10)) == "answer"
    assert peer.attempts == [(1, 10), (2, 7.5), (3, 4.5)]


@pytest.mark.asyncio
async def test_no_sleep_goes_past_the_deadline() -> None:
    clock = StoppedClock()
    with pytest.raises(Overloaded):
        await Peer(clock, Overloaded(20)).call(deadline=Deadline.after(clock.now(), 10))
    assert clock.slept == []


@pytest.mark.asyncio
async def test_an_operation_without_time_is_not_begun() -> None:
    clock = StoppedClock()
    peer = Peer(clock)
    with pytest.raises(DeadlinePassed):
        await peer.call(deadline=Deadline(clock.now()))
    assert peer.attempts == []


@pytest.mark.asyncio
async def test_a_sleep_that_took_too_long_ends_in_the_error_before_it() -> None:
    class Oversleeper(StoppedClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds + 100)

    clock = Oversleeper()
    with pytest.raises(NotSent, match="first"):
        await Peer(clock, NotSent("first")).call(deadline=Deadline.after(clock.now(), 10))


@pytest.mark.asyncio
async def test_a_try_that_overstays_is_ended_by_its_timeout() -> None:
    async def hang(attempt: Attempt) -> None:
        await asyncio.get_running_loop().create_future()

    clock = StoppedClock()
    policy = RetryPolicy(max_attempts=2, attempt_timeout_s=1e-6)
    with pytest.raises(TimeoutError) as caught:
        await retrying(hang, policy, clock=clock, uniform=highest, idempotent=True)
    assert caught.value.__notes__ == ["attempt 2 was the last: all attempts are used"]


@pytest.mark.asyncio
async def test_a_cancellation_is_not_an_error_to_be_repeated() -> None:
    clock = StoppedClock()
    with pytest.raises(asyncio.CancelledError):
        await Peer(clock, asyncio.CancelledError()).call()
    assert clock.slept == []


@pytest.mark.asyncio
async def test_operations_share_the_budget_of_their_destination() -> None:
    clock = StoppedClock()
    settings = RetryBudgetSettings(ratio=0, burst=2, reserve_per_s=0)
    budget = RetryBudget(settings, clock.now())
    assert await Peer(clock, NotSent("a"), NotSent("b")).call(budget=budget) == "answer"
    with pytest.raises(NotSent) as caught:
        await Peer(clock, NotSent("c")).call(budget=budget)
    assert caught.value.__notes__ == ["attempt 1 was the last: the retry budget is used up"]


async def guarded_call(
    peer: Peer, breaker: Breaker, message_class: MessageClass = MessageClass.DISPATCH
) -> str:
    async def operation() -> str:
        return await peer.ask(Attempt(1, NEVER))

    return await guarded(operation, breaker, message_class, clock=peer.clock)


@pytest.mark.asyncio
async def test_three_requests_without_an_answer_open_the_circuit_of_the_peer() -> None:
    clock = StoppedClock()
    breaker = Breaker(BreakerSettings(), "m1")
    peer = Peer(clock, *(OutcomeUnknown("lost") for _ in range(4)))
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            await guarded_call(peer, breaker)
    with pytest.raises(CircuitOpen, match=r"m1 is not asked for 10\.0 s: lost"):
        await guarded_call(peer, breaker)
    with pytest.raises(OutcomeUnknown):
        await guarded_call(peer, breaker, MessageClass.CONTROL)
    clock.time += 10
    assert await guarded_call(peer, breaker) == "answer"
    assert breaker.state(clock.now()) is CircuitState.CLOSED


@pytest.mark.asyncio
async def test_rejections_and_our_own_mistakes_leave_the_circuit_closed() -> None:
    clock = StoppedClock()
    breaker = Breaker(BreakerSettings(), "m1")
    for error in (Overloaded(1), RemoteError("forbidden"), KeyError("ours")) * 3:
        with pytest.raises(type(error)):
            await guarded_call(Peer(clock, error), breaker)
    assert breaker.status(clock.now()).failures_in_window == 0


@pytest.mark.asyncio
async def test_a_cancelled_probe_gives_its_place_back() -> None:
    clock = StoppedClock()
    breaker = Breaker(BreakerSettings(), "m1")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await guarded_call(Peer(clock, TimeoutError()), breaker)
    clock.time += 10
    with pytest.raises(asyncio.CancelledError):
        await guarded_call(Peer(clock, asyncio.CancelledError()), breaker)
    assert await guarded_call(Peer(clock), breaker) == "answer"
