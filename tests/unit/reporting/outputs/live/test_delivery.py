"""A backend that is dead, slow or hanging costs the run nothing, and what it lost is said."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from squall.api.reporting import LiveReporter, LiveRun
from squall.reporting.outputs.live import delivery
from squall.reporting.outputs.live.delivery import LiveDelivery, LiveOutput
from squall.stats.snapshot import Snapshot
from tests.lab.outputs import RUN, wait_for


def second(at: int) -> Snapshot:
    return Snapshot(
        elapsed_s=float(at), workflows=(), cpu=0.0, processes=1, lag_p99_s=0.0, gc_max_s=0.0
    )


class Recording(LiveReporter):
    """Records calls; fails the calls that are named, `fails` times each."""

    def __init__(self, *failing: str, fails: int = 1) -> None:
        self.calls: list[Any] = []
        self._left = dict.fromkeys(failing, fails)

    def _note(self, name: str, value: Any) -> None:
        if self._left.get(name, 0) > 0:
            self._left[name] -= 1
            raise ConnectionRefusedError(111, "Connection refused")
        self.calls.append(value)

    async def start(self, run: LiveRun) -> None:
        self._note("start", run.id)

    async def tick(self, snapshot: Snapshot) -> None:
        self._note("tick", snapshot.elapsed_s)

    async def end(self, document: dict[str, Any] | None) -> None:
        self._note("end", document)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this machine stands still."""
    monkeypatch.setattr(delivery, "FINISH_S", 90.0)
    monkeypatch.setattr(delivery, "DRAIN_S", 90.0)
    monkeypatch.setattr(delivery, "CALL_LONGEST_S", 90.0)
    monkeypatch.setattr(delivery, "START_AGAIN_S", 3600.0)
    monkeypatch.setattr(delivery, "_END_AGAIN_S", 0.01)


def fed(reporter: LiveReporter) -> LiveDelivery:
    feed = LiveDelivery([LiveOutput("-o x", reporter)])
    feed.start(RUN)
    for at in (1, 2, 3):
        feed.put(second(at))
    feed.end("document")  # type: ignore[arg-type]
    return feed


def delivered(reporter: LiveReporter) -> list[str]:
    return fed(reporter).wait()


def test_every_second_comes_in_order_and_the_document_last() -> None:
    reporter = Recording()
    assert delivered(reporter) == []
    assert reporter.calls == ["01J9Z4", 1.0, 2.0, 3.0, "document"]


def test_a_second_that_fails_is_counted_and_the_totals_come_all_the_same() -> None:
    reporter = Recording("tick")
    assert delivered(reporter) == [
        "-o x: 1 of 3 seconds were not delivered, the final totals were delivered: "
        "Connection refused"
    ]
    assert reporter.calls == ["01J9Z4", 2.0, 3.0, "document"]


def test_the_end_is_tried_again_and_then_nothing_is_missing() -> None:
    reporter = Recording("end", fails=2)
    assert delivered(reporter) == []
    assert reporter.calls[-1] == "document"


def test_an_output_that_cannot_start_is_started_again_before_the_end() -> None:
    reporter = Recording("start")
    [line] = delivered(reporter)
    assert line.startswith("-o x: 3 of 3 seconds were not delivered, the final totals were deliv")
    assert reporter.calls == ["01J9Z4", "document"]


def test_a_dead_backend_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FINISH_S", 0.2)
    feed = fed(Recording("start", "tick", "end", fails=10**6))
    line = (
        "-o x: 3 of 3 seconds were not delivered, the final totals were not delivered: "
        "Connection refused"
    )
    wait_for(lambda: feed.wait() == [line])


@pytest.mark.parametrize("blocks", [True, False])
def test_a_hanging_backend_holds_up_neither_the_run_nor_the_others(
    blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "FINISH_S", 0.2)
    monkeypatch.setattr(delivery, "SECONDS_WAITING_MAX", 5)
    free = threading.Event()
    hung = threading.Event()

    class Hanging(Recording):
        async def tick(self, snapshot: Snapshot) -> None:
            hung.set()
            if blocks:
                # Code of an author that blocks its event loop.
                free.wait()
            else:
                await asyncio.Event().wait()

    good = Recording()
    feed = LiveDelivery([LiveOutput("-o bad", Hanging()), LiveOutput("-o good", good)])
    feed.start(RUN)
    feed.put(second(1))
    assert hung.wait(60.0)
    for at in range(2, 21):
        feed.put(second(at))
        wait_for(lambda at=at: float(at) in good.calls)
    feed.end({})
    lines = feed.wait()
    # Late if this machine stood still, but never held up by the other.
    wait_for(lambda: {} in good.calls)
    free.set()
    assert any(each.startswith("-o bad: 19 of 19 seconds were not delivered") for each in lines)
    assert good.calls == ["01J9Z4", *map(float, range(1, 21)), {}]


def test_what_a_reporter_raises_ends_only_its_own_call() -> None:
    class Leaving(Recording):
        async def tick(self, snapshot: Snapshot) -> None:
            raise SystemExit(3)

    [line] = delivered(Leaving())
    assert line == (
        "-o x: 3 of 3 seconds were not delivered, the final totals were delivered: SystemExit: 3"
    )


def test_a_run_that_never_began_leaves_no_thread_to_wait_for() -> None:
    assert LiveDelivery([LiveOutput("-o x", Recording())]).wait() == []
