"""What viewers of a run get, and that a slow one holds up nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from squall.engine.load_change import LoadChange
from squall.stats.histogram import Histogram
from squall.web import feed as feed_module
from squall.web.feed import FinishedRun, PageControls, RunFeed, TooManyViewers
from tests.unit.ui.lab.screens import busy_snapshot, manifest

NASTY = "<script>alert(1)</script>\x1b]0;title\x07 \u202e"


async def change(_: LoadChange) -> None: ...


async def multiply(_: float, __: str) -> None: ...


def started() -> RunFeed:
    feed = RunFeed("shop.py")
    feed.start(manifest(), 2)
    feed.offer(PageControls(change, multiply, lambda now: None))
    return feed


async def some(events: AsyncGenerator[bytes], count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found.append(parsed(await anext(events)))
    return found


def parsed(event: bytes) -> tuple[str, Any]:
    head, data, *rest = event.decode().split("\n")
    assert rest == ["", ""], "an event has one line of data"
    return head.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def read(feed: RunFeed, count: int) -> list[tuple[str, Any]]:
    events = feed.events(may_control=True, key="")
    try:
        return await some(events, count)
    finally:
        await events.aclose()


@pytest.mark.asyncio
async def test_a_viewer_that_comes_late_gets_the_history_first() -> None:
    feed = started()
    for second in range(1, 4):
        feed.snapshot(busy_snapshot(float(second)))
    feed.log("one\ntwo")
    got = await read(feed, 4)
    assert [name for name, _ in got] == ["hello", "history", "log", "now"]
    hello, history, log, now = (data for _, data in got)
    assert hello["mayControl"] is True
    assert hello["controls"] == {"load": True, "stop": True}
    assert [each["name"] for each in hello["manifest"]["workflows"]] == ["Shop"]
    assert [point["t"] for point in history] == [1.0, 2.0, 3.0]
    assert log == ["one", "two"]
    assert now["elapsed_s"] == 3.0
    assert feed.viewers == 0


@pytest.mark.asyncio
async def test_a_viewer_gets_each_second_and_the_end() -> None:
    feed = started()
    events = feed.events(may_control=False, key="k")
    hello = await some(events, 2)
    assert hello[0][1]["mayControl"] is False and hello[0][1]["key"] == "k"
    feed.snapshot(busy_snapshot(5.0))
    feed.end(FinishedRun(b"{}", b"<html>"))
    second, end = await some(events, 2)
    assert second[0] == "second" and second[1]["now"]["elapsed_s"] == 5.0
    assert end == ("end", {"report": True, "reason": ""})
    assert feed.controls is None
    await events.aclose()
    # One that comes later learns it too.
    assert (await read(feed, 5))[-1] == end


@pytest.mark.asyncio
async def test_a_viewer_that_does_not_read_is_cut_off_and_costs_a_bounded_queue() -> None:
    feed = started()
    slow = feed.events(may_control=False, key="")
    await some(slow, 2)
    for second in range(feed_module.QUEUE_EVENTS + 5):
        feed.snapshot(busy_snapshot(float(second)))
    assert feed.viewers == 0
    async with asyncio.timeout(30):
        assert [event async for event in slow] == []


@pytest.mark.asyncio
async def test_lines_of_others_are_cleaned_and_too_many_are_counted() -> None:
    feed = started()
    feed.log(NASTY)
    events = feed.events(may_control=False, key="")
    greeting = dict(await some(events, 2))
    assert greeting["log"] == ["<script>alert(1)</script> "]
    for number in range(feed_module.LINES_PER_FLUSH + 50):
        feed.log(f"line {number}")
    name, lines = (await some(events, 1))[0]
    assert name == "log"
    assert lines[-1] == "(51 more lines are left out)"
    assert len(lines) == feed_module.LINES_PER_FLUSH + 1
    await events.aclose()


@pytest.mark.asyncio
async def test_the_history_is_bounded_and_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "HISTORY_BYTES", 40_000)
    feed = started()
    for second in range(500):
        feed.snapshot(busy_snapshot(float(second)))
    events = feed.events(may_control=False, key="")
    points: list[float] = []
    name = ""
    while name != "now":
        ((name, data),) = await some(events, 1)
        points += [each["t"] for each in data] if name == "history" else []
    await events.aclose()
    assert len(points) < 250
    assert points == sorted(points) and points[-1] == 499.0


@pytest.mark.asyncio
async def test_viewers_are_counted_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "VIEWERS_MAX", 1)
    feed = started()
    first = feed.events(may_control=False, key="")
    await some(first, 1)
    with pytest.raises(TooManyViewers):
        await anext(feed.events(may_control=False, key=""))
    waiting = asyncio.create_task(feed.wait_for_viewers(60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await first.aclose()
    async with asyncio.timeout(30):
        await waiting


def test_bands_hold_every_sample_once() -> None:
    histogram = Histogram.from_seconds([0.000_001, 0.001, 0.001_4, 0.001_6, 3.0])
    flat = histogram.bands()
    pairs = dict(zip(flat[::2], flat[1::2], strict=True))
    # 1.024 ms begins band 20, 1.536 ms band 21; 768 us band 19.
    assert pairs[0] == 1 and pairs[19] == 1 and pairs[20] == 1 and pairs[21] == 1
    assert sum(pairs.values()) == 5
    assert Histogram().bands() == ()
