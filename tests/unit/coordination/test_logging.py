"""Errors in the application's code appear in Python's own logging without any set-up; values that
cannot work are refused by the call that gets them.
"""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from lab.stores.faulty import FaultyStore
from squall.coordination import ConfigurationError, Coordinator, OptionValues, Queue, Scheduler
from squall.coordination.election.term import Term
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.real.runtime import RealClock

FAST: OptionValues = {"profile": "fast", "unsafe_timings": True}


async def logged(caplog: pytest.LogCaptureFixture, event: str) -> logging.LogRecord:
    async with asyncio.timeout(10.0):
        while True:
            for record in caplog.records:
                if record.getMessage().startswith(f"{event} "):
                    return record
            await asyncio.sleep(0.02)


async def failing(*_: object) -> None:
    raise RuntimeError("no disk")


@pytest.mark.asyncio
async def test_work_jobs_tickets_handlers_and_listeners_that_raise_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, scheduler = Queue("mail", retry_base=0.01), Scheduler()
    scheduler.every(0.1, name="report")(failing)
    async with Coordinator(
        "memory:", queue, scheduler, member_id="m1", work=failing, **FAST
    ) as member:
        member.on("*", failing)
        member.on_signal("note", failing)
        consuming = asyncio.ensure_future(queue.consume(failing))
        await queue.enqueue({"to": "ada"})
        await member.send_signal("m1", "note", correlation_id="order-7")
        for event in ("application_failed", "ticket_failed", "job_failed", "signal_handler_failed"):
            record = await logged(caplog, event)
            assert record.name == "squall.coordination" and record.levelno == logging.ERROR
            text = record.getMessage()
            assert "RuntimeError: no disk" in text and "member=m1" in text and "trace=" in text
        assert await logged(caplog, "event_handler_failed")
        handled = (await logged(caplog, "signal_handler_failed")).getMessage()
        assert "correlation_id=order-7" in handled
        consuming.cancel()


@pytest.mark.asyncio
async def test_a_logger_of_the_application_is_written_to(caplog: pytest.LogCaptureFixture) -> None:
    async def work(term: Term) -> None:
        raise RuntimeError("no disk")

    own = logging.getLogger("shop.locks")
    async with Coordinator("memory:", work=work, log=own, **FAST):
        assert (await logged(caplog, "application_failed")).name == "shop.locks"


@pytest.mark.asyncio
async def test_a_beat_that_does_not_arrive_is_logged_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = RealClock()
    store = FaultyStore(MemoryStore(clock), clock, random.Random(1))
    async with Coordinator(store, **FAST):
        store.faults.down = True
        record = await logged(caplog, "heartbeat_failed")
        store.faults.down = False
    assert record.levelno == logging.WARNING
    assert 'error="memory://: the request was lost"' in record.getMessage(), record.getMessage()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": "high"},
        {"order_key": 5},
        {"delay": "5"},
        {"start_within": "5"},
        {"dedup_id": 7},
        {"max_attempts": "3"},
    ],
)
async def test_a_ticket_that_no_worker_could_read_is_not_enqueued(wrong: dict[str, object]) -> None:
    queue = Queue("mail")
    async with Coordinator("memory:", queue, **FAST):
        (name,) = wrong
        with pytest.raises(ConfigurationError, match=f"{name} is .*: it must be "):
            await queue.enqueue({"to": "ada"}, **wrong)  # type: ignore[arg-type]
        assert await queue.peek() == []
