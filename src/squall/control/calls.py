"""Drivers of the client side: run an operation again, or not at all.

They hold no policy: `retry` and `breaker` decide, these await. A cancellation is never
retried, never swallowed, and gives a probe back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from squall.control.breaker import Blocked, Breaker
from squall.control.classes import MessageClass
from squall.control.deadline import NEVER, Deadline
from squall.control.errors import CircuitOpen, DeadlinePassed
from squall.control.failures import answered, judge, unanswered
from squall.control.retry import Failure, GiveUp, Retry, RetryBudget, Uniform
from squall.control.settings import RetryPolicy
from squall.runtime.interfaces import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a try is told: which one it is, and until when it may take."""

    number: int
    deadline: Deadline


async def retrying(
    operation: Callable[[Attempt], Awaitable[T]],
    policy: RetryPolicy,
    *,
    clock: Clock,
    uniform: Uniform,
    idempotent: bool,
    deadline: Deadline = NEVER,
    budget: RetryBudget | None = None,
    judge: Callable[[Exception], Failure] = judge,
) -> T:
    """The result, or the last error with a note that says why it was the last.

    Raises `DeadlinePassed` when there was no time for a first try.
    """
    retry = Retry(policy, deadline=deadline, idempotent=idempotent, budget=budget)
    last: Exception | None = None
    while True:
        now = clock.now()
        timeout_s = retry.begin(now)
        if timeout_s is None:
            raise last or DeadlinePassed("no time is left for this operation")
        attempt = Attempt(retry.attempts, Deadline.after(now, timeout_s))
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s):
                return await operation(attempt)
        except Exception as error:
            decision = retry.next_delay(judge(error), clock.now(), uniform)
            if isinstance(decision, GiveUp):
                error.add_note(f"attempt {retry.attempts} was the last: {decision.reason.value}")
                raise
            last = error
        await clock.sleep(decision.delay_s)


async def guarded(
    operation: Callable[[], Awaitable[T]],
    breaker: Breaker,
    message_class: MessageClass,
    *,
    clock: Clock,
) -> T:
    """Runs the operation if the circuit lets it, and tells the circuit how it ended."""
    permit = breaker.ask(message_class, clock.now())
    if isinstance(permit, Blocked):
        raise CircuitOpen(breaker.peer, permit.reason, retry_after_s=permit.retry_after_s)
    try:
        result = await operation()
    except Exception as error:
        if answered(error):
            breaker.succeeded(permit, clock.now())
        elif unanswered(error):
            breaker.failed(permit, clock.now(), str(error) or type(error).__name__)
        else:
            breaker.abandoned(permit, clock.now())
        raise
    except BaseException:
        breaker.abandoned(permit, clock.now())
        raise
    breaker.succeeded(permit, clock.now())
    return result
