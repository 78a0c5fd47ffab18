"""Followers of a job come and go; they miss nothing that is kept and see nothing twice."""

from __future__ import annotations

import asyncio

from squall.cluster.group.telemetry.job_stream import (
    BYTES_PER_ANSWER,
    ITEMS_PER_ANSWER,
    OTHERS_KEPT,
    SNAPSHOTS_KEPT,
    JobStream,
)
from squall.cluster.protocol.messages import StreamEvent, StreamLine, StreamSnapshot
from squall.stats.snapshot import Snapshot


def snapshot(second: int) -> StreamSnapshot:
    made = Snapshot(
        elapsed_s=float(second), workflows=(), cpu=0.0, processes=1, lag_p99_s=0.0, gc_max_s=0.0
    )
    return StreamSnapshot(made)


def test_items_come_in_order_and_once() -> None:
    stream = JobStream(1000)
    stream.put(StreamEvent(0.0, "created"))
    stream.put(snapshot(1))
    stream.put(StreamLine("vu 1", "hello"))
    upto, items, missed = stream.after(0)
    assert [type(item).__name__ for item in items] == [
        "StreamEvent", "StreamSnapshot", "StreamLine",
    ]  # fmt: skip
    assert (upto, missed) == (1003, 0)
    assert stream.after(upto) == (1003, [], 0)


def test_who_asks_for_the_present_gets_the_last_snapshot() -> None:
    stream = JobStream(0)
    for second in range(5):
        stream.put(snapshot(second))
    upto, items, _ = stream.after(-1)
    assert upto == 5
    assert items == [snapshot(4)]


def test_old_snapshots_are_not_missed_but_old_lines_are_told() -> None:
    stream = JobStream(0)
    for second in range(SNAPSHOTS_KEPT + 10):
        stream.put(snapshot(second))
    assert stream.after(0)[2] == 0
    for number in range(OTHERS_KEPT + 3):
        stream.put(StreamLine("", str(number)))
    assert stream.after(0)[2] == 3
    assert stream.after(stream.last - 5)[2] == 0


def test_a_long_backlog_comes_in_pieces() -> None:
    stream = JobStream(0)
    for number in range(ITEMS_PER_ANSWER + 50):
        stream.put(StreamLine("", str(number)))
    upto, items, _ = stream.after(0)
    assert len(items) == ITEMS_PER_ANSWER
    rest = stream.after(upto)[1]
    assert [item.text for item in rest if isinstance(item, StreamLine)][-1] == str(
        ITEMS_PER_ANSWER + 49
    )


def test_a_stream_begun_anew_elsewhere_shows_nothing_twice() -> None:
    created, ended = StreamEvent(0.0, "created"), StreamEvent(3.0, "ended")
    old, new = JobStream(999), JobStream(999)
    old.put(created, 1000)
    old.put(snapshot(1), 2000)
    # The new leader reads the log and receives the rest.
    new.put(created, 1000)
    assert new.after(old.last) == (1000, [], 0)
    new.put(snapshot(2), 3000)
    new.put(ended, 4000)
    assert new.after(old.last)[1] == [snapshot(2), ended]
    assert new.after(0)[1] == [created, snapshot(2), ended]


def test_many_items_of_one_moment_keep_their_order() -> None:
    stream = JobStream(0)
    for number in range(5):
        stream.put(StreamLine("", str(number)), 100)
    assert stream.last == 104
    assert len(stream.after(101)[1]) == 3


def test_waiting_ends_with_an_item_or_with_the_stream() -> None:
    async def follow() -> None:
        stream = JobStream(0)
        waiting = asyncio.ensure_future(stream.grown(0))
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.put(StreamEvent(0.0, "x"))
        await waiting
        last = asyncio.ensure_future(stream.grown(stream.last))
        await asyncio.sleep(0)
        stream.close()
        await last

    asyncio.run(follow())


def test_an_answer_has_few_large_items_and_the_follower_gets_all_of_them() -> None:
    stream = JobStream(0)
    large = [StreamLine("vu 1", str(number) + "x" * (BYTES_PER_ANSWER // 3)) for number in range(7)]
    huge = StreamLine("vu 1", "x" * (BYTES_PER_ANSWER + 1))
    for item in (*large, huge):
        stream.put(item)
    got: list[object] = []
    upto = sizes = 0
    while upto < stream.last:
        upto, items, _ = stream.after(upto)
        got += items
        sizes += 1
        assert len(items) <= 2
    assert got == [*large, huge]
    assert sizes == 5
