"""Values that cannot be stored are refused in one line by the call that gets them, and never end
a worker, a job or a member.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from squall.coordination import (
    ConfigurationError,
    Coordinator,
    JobRecord,
    OptionValues,
    Queue,
    Scheduler,
)
from squall.coordination.queue import records
from squall.coordination.queue.records import TicketTooLargeError
from squall.coordination.records import keys
from squall.coordination.records.plain_json import ERROR_MAX, error_text, plain_json
from tests.unit.coordination.lab.world import FAST as TIMING
from tests.unit.coordination.lab.world import Lab, play

FAST: OptionValues = {"profile": "fast", "unsafe_timings": True}
LOOP: list[Any] = []
LOOP.append(LOOP)
UNFIT = [object(), float("nan"), {"deep": [float("inf")]}, {1: 2}, "\udc80", LOOP]
SOON_S = 30.0


@pytest.mark.parametrize("unfit", UNFIT, ids=lambda value: type(value).__name__)
def test_what_json_does_not_have_is_refused_in_one_line(unfit: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^payload is .*plain JSON data") as refused:
        plain_json("payload", unfit)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("fit", [None, 1, "ä", [1, (2, 3)], {"a": {"b": True}}])
def test_plain_data_is_taken(fit: object) -> None:
    assert plain_json("payload", fit)


@pytest.mark.asyncio
@pytest.mark.parametrize("unfit", UNFIT, ids=lambda value: type(value).__name__)
async def test_no_ticket_and_no_result_is_made_of_it_and_nothing_is_lost(unfit: object) -> None:
    queue = Queue("work")
    async with Coordinator("memory:", queue, **FAST):
        with pytest.raises(ConfigurationError, match="payload"):
            await queue.enqueue(unfit)
        made = await queue.enqueue({"n": 1})
        async for ticket in queue.claim():
            assert ticket.ticket_id == made, "nothing was enqueued before"
            with pytest.raises(ConfigurationError, match="result"):
                await ticket.complete(unfit)
            await ticket.complete("fit")
            break
        final = await queue.result(made)
        assert (final.state, final.attempt, final.result) == ("done", 1, "fit")


@pytest.mark.asyncio
async def test_a_result_above_the_limit_is_refused_like_a_payload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "PAYLOAD_MAX_BYTES", 1000)
    queue = Queue("work", max_attempts=1)
    async with Coordinator("memory:", queue, **FAST):
        with pytest.raises(TicketTooLargeError, match="the payload has 1002 bytes"):
            await queue.enqueue("x" * 1000)
        made = await queue.enqueue(1)
        async for ticket in queue.claim():
            async with ticket:
                ticket.result = "x" * 1000
            break
        final = await queue.result(made)
        assert final.state == "dead_letter"
        assert final.error.startswith("TicketTooLargeError: the result has 1002 bytes")


@pytest.mark.asyncio
async def test_a_worker_goes_on_after_a_handler_that_returns_it_or_raises_what_is_no_text() -> None:
    queue = Queue("work", max_attempts=1)

    async def handler(payload: str) -> object:
        if payload == "returns":
            return object()
        if payload == "raises":
            raise FileNotFoundError("no file \udc80")
        return "fit"

    async with Coordinator("memory:", queue, **FAST):
        made = [await queue.enqueue(each) for each in ("returns", "raises", "works")]
        consuming = asyncio.ensure_future(queue.consume(handler))
        finals = [await queue.result(each, timeout_s=SOON_S) for each in made]
        assert not consuming.done()
        consuming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await consuming
    assert [final.state for final in finals] == ["dead_letter", "dead_letter", "done"]
    assert finals[0].error.startswith("ConfigurationError: result is object")
    assert finals[1].error == "FileNotFoundError: no file \\udc80"


@pytest.mark.asyncio
async def test_jobs_are_refused_whose_ticket_could_not_be_made() -> None:
    scheduler = Scheduler()
    with pytest.raises(ConfigurationError, match="payload is object"):
        scheduler.enqueue("tick", "work", object(), every=1.0)
    async with Coordinator("memory:", scheduler, **FAST):
        with pytest.raises(ConfigurationError, match="payload is float"):
            await scheduler.add("tick", JobRecord(every=1.0, queue="work", payload=float("nan")))


@pytest.mark.asyncio
async def test_metadata_that_fails_at_the_start_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match="metadata is dict"):
        async with Coordinator("memory:", metadata=lambda: {"x": object()}, **FAST):
            pass


@pytest.mark.parametrize("way", ["raises", "is no JSON"])
def test_a_member_outlives_metadata_that_fails_and_beats_with_the_last(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def metadata() -> Mapping[str, Any]:
        nonlocal calls
        calls += 1
        if 4 <= calls < 8:
            if way == "raises":
                raise OSError("no disk")
            return {"x": object()}
        return {"calls": calls}

    async def script(lab: Lab) -> None:
        seen: list[int] = []
        lab.start("a", metadata=metadata)
        await lab.ready("a")
        while calls < 10:
            await asyncio.sleep(0.1)
            (beat,) = await lab.store.get(keys.heartbeat("a"))
            assert beat is not None
            assert beat.age_s < 2.0 * TIMING.heartbeat_interval
            seen.append(msgspec.json.decode(beat.value)["metadata"]["calls"])
        assert seen == sorted(seen)
        assert {3, 8} <= set(seen) and not {4, 5, 6, 7} & set(seen)

    play(script, limit_s=60.0)
    told = [each for each in caplog.records if "metadata_failed" in each.getMessage()]
    assert len(told) == 1, "once for a row of failures"


def test_texts_of_errors_can_be_stored_whatever_is_in_them() -> None:
    assert error_text("plain ä") == "plain ä"
    assert error_text(ValueError("\udc80")) == "ValueError: \\udc80"
    assert len(error_text("x" * 10**6)) == ERROR_MAX + len("...")
