"""Gauges that only a coordinator can know: it sets them by itself, and resets them when it no
longer leads, so that an old value does not keep an alert firing.
"""

from __future__ import annotations

import asyncio

from squall.coordination import Queue, Scheduler
from squall.coordination.members.housekeeping import METRICS_INTERVAL_S
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.queue.plugin import COUNT_S
from squall.coordination.scheduler.records import RunRecord
from tests.unit.coordination.lab.world import Lab, play


def depth(metrics: CoordinationMetrics, state: str) -> float:
    return metrics.gauge(metrics.families.queue_depth, "mail", state).value


def test_a_coordinator_says_how_full_a_queue_is_without_being_asked() -> None:
    async def script(lab: Lab) -> None:
        queue = Queue("mail", window=2)
        lab.member("a", plugin=lambda name: queue)
        lab.world.start("a")
        await lab.led()
        for number in range(5):
            await lab.run_on("a", queue.enqueue(number))
        await asyncio.sleep(2.0 * COUNT_S)
        metrics = lab.members["a"].parts.metrics
        assert (depth(metrics, "pending"), depth(metrics, "published")) == (3, 2)
        age = metrics.gauge(metrics.families.queue_age_s, "mail").value
        assert COUNT_S / 2.0 < age <= 2.0 * COUNT_S

    play(script)


def test_a_former_leader_resets_its_gauges() -> None:
    async def script(lab: Lab) -> None:
        queues: dict[str, Queue] = {}

        def plugin(name: str) -> Queue:
            return queues.setdefault(name, Queue("mail"))

        lab.member("a", plugin=plugin)
        lab.member("b", plugin=plugin)
        lab.world.start("a")
        lab.world.start("b")
        await lab.ready("a", "b")
        first = await lab.led()
        member = lab.members[first]
        await lab.run_on(first, queues[first].enqueue(1))
        await asyncio.sleep(METRICS_INTERVAL_S + 2.0 * COUNT_S)
        metrics, families = member.parts.metrics, member.parts.metrics.families
        assert depth(metrics, "published") == 1
        assert metrics.gauge(families.members, "healthy").value == 2
        assert metrics.gauge(families.keys, "heartbeat").value == 2
        await lab.run_on(first, member.hand_over(allow_early=True))
        second = await lab.led(but=first)
        await asyncio.sleep(1.0)
        assert depth(metrics, "published") == 0
        assert metrics.gauge(families.queue_age_s, "mail").value == 0
        assert metrics.gauge(families.members, "healthy").value == 0
        assert metrics.gauge(families.keys, "heartbeat").value == 0
        others = lab.members[second].parts.metrics
        assert depth(others, "published") == 1
        assert others.gauge(others.families.members, "healthy").value == 2
        # Asking a member that does not lead changes nothing of what it shows.
        assert (await lab.run_on(first, queues[first].stats())).published == 1
        assert depth(metrics, "published") == 0

    play(script)


def test_the_lag_of_a_job_is_not_shown_by_a_former_leader() -> None:
    async def script(lab: Lab) -> None:
        def plugin(name: str) -> Scheduler:
            scheduler = Scheduler()

            @scheduler.every(3.0, jitter=2.0)
            async def tick(run: RunRecord) -> None: ...

            return scheduler

        lab.member("a", plugin=plugin)
        lab.world.start("a")
        await lab.led()
        await asyncio.sleep(10.0)
        member = lab.members["a"]
        metrics = member.parts.metrics
        lag = metrics.gauge(metrics.families.schedule_lag_s, "tick")
        assert lag.value > 0.0
        await lab.run_on("a", member.stop())
        assert lag.value == 0.0

    play(script)
