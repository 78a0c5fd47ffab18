"""When the garbage collector runs and what is reported about it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from time import perf_counter

import pytest

from squall.engine.measure import garbage_collector as policy
from squall.engine.measure.garbage_collector import GarbageCollector


@pytest.fixture
def collector() -> Iterator[GarbageCollector]:
    collector = GarbageCollector()
    yield collector
    collector.stop()
    assert gc.isenabled()


class Node:
    def __init__(self) -> None:
        self.me = self


def test_automatic_collection_is_off_until_it_is_stopped(collector: GarbageCollector) -> None:
    collector.start()
    assert not gc.isenabled()
    collector.stop()
    assert gc.isenabled()
    assert not any(getattr(call, "__self__", None) is collector for call in gc.callbacks)


def test_stopping_twice_and_without_a_start_is_harmless(collector: GarbageCollector) -> None:
    collector.stop()
    collector.start()
    collector.start()
    collector.stop()
    collector.stop()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        collector = GarbageCollector()
        collector.start()
        collector.stop()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_frozen_is_thawed_at_the_end(collector: GarbageCollector) -> None:
    collector.start()
    collector.freeze_prepared()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    keep = [Node() for _ in range(100)]
    collector.freeze_ramped()
    assert gc.get_freeze_count() >= frozen + len(keep)
    collector.stop()
    assert gc.get_freeze_count() == 0


def test_a_little_garbage_is_not_worth_a_pause(collector: GarbageCollector) -> None:
    collector.start()
    passes = collector.passes
    for second in range(100):
        collector.tick(1e9 + second)
    assert collector.passes == passes


def test_many_new_objects_are_collected_at_once(collector: GarbageCollector) -> None:
    collector.start()
    # A moment ago by its clock, so that no full pass is due.
    now = perf_counter()
    keep = [[] for _ in range(policy.YOUNG_OBJECTS + 1000)]
    collector.tick(now)
    assert collector.passes == 1
    assert keep


def test_cycles_that_became_old_are_freed_and_memory_stays_bounded(
    collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FULL_OBJECTS", 2_000)
    monkeypatch.setattr(policy, "YOUNG_OBJECTS", 500)
    collector.start()
    collector.freeze_prepared()
    now = 1e9
    most = 0
    for _ in range(60):
        # Alive during one young pass, garbage after it: only a full pass frees them.
        keep = [Node() for _ in range(1_000)]
        now += 1.0
        collector.tick(now)
        del keep
        most = max(most, len(gc.get_objects(generation=2)))
    assert most < 60 * 1_000 / 2


def test_full_passes_keep_their_distance(
    collector: GarbageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FULL_OBJECTS", 0)
    monkeypatch.setattr(policy, "YOUNG_OBJECTS", 0)
    monkeypatch.setattr(policy, "FULL_GROWTH", 0.0)
    full: list[int] = []
    monkeypatch.setattr(gc, "callbacks", gc.callbacks)
    gc.callbacks.append(
        lambda phase, info: full.append(1) if phase == "stop" and info["generation"] == 2 else None
    )
    watcher = gc.callbacks[-1]
    try:
        collector.start()
        for second in range(int(policy.FULL_INTERVAL_S) * 3):
            collector.tick(1e9 + second)
    finally:
        gc.callbacks.remove(watcher)
    assert len(full) == 3


def test_the_longest_pass_is_told_once(collector: GarbageCollector) -> None:
    collector.start()
    gc.collect()
    assert collector.take_max_s() > 0.0
    assert collector.take_max_s() == 0.0
