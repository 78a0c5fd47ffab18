"""Resting users: how long, and that they can be woken."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from squall.api.workflow import VU
from squall.engine.users import think_time
from squall.engine.users.think_time import ThinkTime
from squall.stats.manifest import Profile


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lengths of the rests, which take no time."""
    lengths: list[float] = []

    async def rest(self: Any, vu: VU, seconds: float) -> None:
        lengths.append(seconds)

    monkeypatch.setattr(ThinkTime, "_rest", rest)
    monkeypatch.setattr(think_time, "perf_counter", lambda: 100.0)
    return lengths


def made(**profile: Any) -> ThinkTime:
    return ThinkTime(Profile(**profile), random.Random(7))


@pytest.mark.asyncio
async def test_think_time_and_pacing(rested: list[float]) -> None:
    await made(think_s=(2.0, 2.0)).between(VU(1, 0), 99.0)
    await made(pacing_s=5.0).between(VU(1, 0), 98.0)
    await made(pacing_s=5.0).between(VU(1, 0), 90.0)
    await made(pacing_s=5.0, think_s=(4.0, 4.0)).between(VU(1, 0), 98.0)
    assert rested == [2.0, 3.0, 0.0, 4.0]
    spread = made(think_s=(1.0, 3.0))
    for _ in range(50):
        await spread.between(VU(1, 0), 99.0)
    assert all(1.0 <= seconds <= 3.0 for seconds in rested[4:])
    assert len(set(rested[4:])) > 40
    assert not made().thinks
    assert spread.thinks


@pytest.mark.asyncio
async def test_quick_failures_rest_longer_each_time_up_to_a_second(rested: list[float]) -> None:
    pauses = made()
    for failures in (1, 2, 5, 7, 8, 50, 10_000):
        await pauses.after_failure(VU(1, 0), failures, 0.001)
    longest = [0.01, 0.02, 0.16, 0.64, 1.0, 1.0, 1.0]
    assert all(top / 2 <= seconds <= top for seconds, top in zip(rested, longest, strict=True))
    await pauses.after_failure(VU(1, 0), 50, 0.060)
    assert rested[-1] == 0.0, "a slow failure does not spin"


@pytest.mark.asyncio
async def test_a_resting_user_can_be_woken() -> None:
    pauses = made(think_s=(3600.0, 3600.0))
    users = [VU(n, 0) for n in (1, 2)]
    tasks = [asyncio.create_task(pauses.between(vu, 0.0)) for vu in users]
    await asyncio.sleep(0)
    assert pauses.count == 2
    pauses.wake(users[0])
    await tasks[0]
    assert pauses.count == 1
    pauses.wake(users[0])
    pauses.wake_all()
    await tasks[1]
    assert pauses.count == 0


@pytest.mark.asyncio
async def test_a_stopped_or_cancelled_user_does_not_stay() -> None:
    pauses = made(think_s=(3600.0, 3600.0))
    stopped = VU(1, 0)
    stopped.stop = True
    await pauses.between(stopped, 0.0)
    task = asyncio.create_task(pauses.between(VU(2, 0), 0.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pauses.count == 0
