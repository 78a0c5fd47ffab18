"""What a producer that waits for a result learns, and handlers that are no coroutines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.coordination.errors import ConfigurationError, StateLostError
from squall.coordination.queue.inspection import RESULT_SLICE_S
from squall.coordination.queue.plugin import Queue
from squall.runtime.log import MemorySink
from tests.unit.coordination.lab.logs import log_of
from tests.unit.coordination.lab.queues import started
from tests.unit.coordination.lab.world import Lab, play


def lose_data(lab: Lab) -> None:
    """Waits of the store go on, as after `FLUSHALL`."""
    for part in (lab.store._records, lab.store._kinds, lab.store._streams):  # pyright: ignore[reportPrivateUsage]
        part.clear()


def test_a_result_of_a_store_that_lost_its_data_is_not_waited_for() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]
        ticket_id = await queue.enqueue("precious")
        waiting = lab.run_on("a", queue.result(ticket_id))
        await asyncio.sleep(1.0)
        lose_data(lab)
        begun = lab.world.now
        with pytest.raises(StateLostError, match=ticket_id):
            await waiting
        assert lab.world.now - begun < 10.0

    play(script)


def test_a_ticket_that_was_enqueued_before_the_loss_is_noticed_is_waited_for() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]
        parts = queue.coordinator.parts
        lose_data(lab)
        before = parts.state_losses
        ticket_id = await queue.enqueue("precious")
        waiting = lab.run_on("a", queue.result(ticket_id))
        while parts.state_losses == before:
            await asyncio.sleep(0.1)
        await asyncio.sleep(2 * RESULT_SLICE_S)
        assert not waiting.done()

        async def work(payload: Any) -> None: ...

        lab.run_on("a", queue.consume(work))
        assert (await waiting).state == "done"

    play(script)


def test_a_handler_that_returns_no_coroutine_runs_once() -> None:
    async def script(lab: Lab) -> None:
        queue = (await started(lab, "a"))["a"]
        ran: list[Any] = []
        ticket_id = await queue.enqueue("precious")
        handler: Any = lambda payload: ran.append(payload)  # noqa: E731
        with pytest.raises(ConfigurationError, match="must be an `async def`"):
            await lab.run_on("a", queue.consume(handler))
        final = await queue.result(ticket_id)
        assert ran == ["precious"]
        assert final.state == "dead_letter" and "async def" in final.error

    play(script)


def test_the_log_of_a_failed_ticket_names_the_queue_and_the_ticket() -> None:
    async def script(lab: Lab) -> None:
        sink, queue = MemorySink(), Queue("mail", max_attempts=1)
        lab.member("a", lambda name: queue, log=log_of(lab, sink))
        lab.world.start("a")
        await lab.ready("a")
        ticket_id = await queue.enqueue("precious")

        async def fail(payload: Any) -> None:
            raise ValueError(payload)

        lab.run_on("a", queue.consume(fail))
        await queue.result(ticket_id)
        (failed,) = [dict(each.fields) for each in sink.records if each.event == "ticket_failed"]
        assert (failed["queue"], failed["ticket_id"]) == ("mail", ticket_id)

    play(script)
