"""Messages without a broker: inboxes, headers, latencies."""

from __future__ import annotations

import asyncio
from time import perf_counter, time_ns

import pytest

from squall.api.errors import CallError
from squall.api.protocols.brokers.messages import SENT_HEADER, ReceivedMessage
from squall.clients.brokers import inbox as inbox_module
from squall.clients.brokers.headers import as_text, stamped
from squall.clients.brokers.inbox import Inbox
from squall.clients.brokers.user_calls import WaitingTasks


def _message(text: str = "x", **fields: object) -> ReceivedMessage:
    return ReceivedMessage(text.encode(), "place", perf_counter(), **fields)  # type: ignore[arg-type]


def test_an_inbox_gives_messages_in_order_and_waits_for_all_of_them() -> None:
    async def body() -> None:
        inbox = Inbox()
        inbox.put(_message("a"), 1)
        waiting = asyncio.ensure_future(inbox.take(3))
        await asyncio.sleep(0)
        with pytest.raises(CallError, match="already waits"):
            await inbox.take(3)
        inbox.put(_message("b"), 2)
        await asyncio.sleep(0)
        assert not waiting.done()
        inbox.put(_message("c"), 3)
        inbox.put(_message("d"), 4)
        taken = await waiting
        assert [(each.text, tag) for each, tag in taken] == [("a", 1), ("b", 2), ("c", 3)]
        ((last, _),) = await inbox.take(1)
        assert last.text == "d"

    asyncio.run(body())


def test_a_call_that_is_given_up_takes_nothing() -> None:
    async def body() -> None:
        inbox = Inbox()
        waiting = asyncio.ensure_future(inbox.take(1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        inbox.put(_message("a"))
        assert (await inbox.take(1))[0][0].text == "a"

    asyncio.run(body())


def test_an_inbox_that_ended_gives_what_it_has_and_then_the_reason() -> None:
    async def body() -> None:
        inbox = Inbox()
        inbox.put(_message())
        inbox.end(ConnectionResetError("gone"))
        assert len(await inbox.take(1)) == 1
        with pytest.raises(ConnectionResetError, match="gone"):
            await inbox.take(1)

    asyncio.run(body())


def test_messages_that_nobody_receives_are_dropped_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox_module, "MOST_UNREAD", 2)
    inbox = Inbox()
    for text in "abc":
        inbox.put(_message(text))
    taken = asyncio.run(inbox.take(2))
    assert [each.text for each, _ in taken] == ["b", "c"]
    assert inbox.fault() == "messages were dropped: more than 2 waited to be received"
    assert inbox.fault() == ""


def test_a_stamp_is_a_header_and_gives_the_latency() -> None:
    assert stamped(None, False) is None
    sent = stamped({"a": "b"}, True)
    assert sent is not None
    assert sent["a"] == "b"
    later = ReceivedMessage(b"", "place", perf_counter() + 2.0, dict(sent))
    assert later.latency_s == pytest.approx(2.0, abs=1.0)
    early = ReceivedMessage(b"", "place", perf_counter(), {SENT_HEADER: str(time_ns() - 10**9)})
    assert early.latency_s == pytest.approx(1.0, abs=0.5)
    assert _message().latency_s is None
    assert _message(headers={SENT_HEADER: "soon"}).latency_s is None


def test_headers_are_text() -> None:
    assert as_text([("a", b"\xff1"), (b"b", 7)]) == {"a": "\ufffd1", "b": "7"}


def test_a_lost_connection_ends_the_tasks_that_wait_and_no_others() -> None:
    async def body() -> None:
        waiting = WaitingTasks()
        never = asyncio.get_running_loop().create_future()
        tasks = [asyncio.ensure_future(waiting.on(asyncio.shield(never))) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        waiting.lose("gone")
        waiting.lose("again")
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        assert [str(each.exception()) for each in tasks[1:]] == ["gone", "gone"]
        assert waiting.lost == "gone"

    asyncio.run(body())
