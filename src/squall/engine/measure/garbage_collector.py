"""Decides when the garbage collector of a core process runs, and times every pass.

Automatic collection would stop the loop at any moment, for 70 ms with 10,000 users, so it is
off. Objects that exist after preparation and after the ramp-up are frozen. The young
generations are collected when enough more objects were made than freed: with thousands of
users a pass visits everything in flight, so a timer would pause the loop for nothing. The old
generation is collected only when it has grown so much that a long run would otherwise exceed
its memory. Every pass, including one that the author asks for, is timed and reported. After
`stop()` the collector is enabled again and nothing is frozen.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import Any

YOUNG_OBJECTS = 20_000
"""Objects made minus objects freed that cause a young pass: a few MB of garbage at most."""

OBJECTS_PER_USER = 15
"""About twice what a user in an exchange holds, so that normal turnover causes no pass."""

FULL_INTERVAL_S = 10.0
"""A full pass costs about 0.1 us per object of the old generation: not more often."""

FULL_GROWTH = 1.5
"""The old generation may grow by half before a full pass collects it."""

FULL_OBJECTS = 50_000
"""Below this many objects a full pass would free too little memory to be worth it."""


class GarbageCollector:
    """Runs the collector on the loop's thread; the heartbeat calls `tick` every 100 ms."""

    __slots__ = (
        "_began",
        "_collected",
        "_kept",
        "_last_full",
        "_max_s",
        "_old",
        "_running",
        "_was_enabled",
        "passes",
        "users",
    )

    def __init__(self) -> None:
        # How many users the process has now; its owner keeps this up to date.
        self.users = 0
        # Passes of the collector since `start`, automatic and requested ones.
        self.passes = 0
        self._running = False
        self._was_enabled = True
        self._began = 0.0
        self._max_s = 0.0
        self._collected = 0
        # Objects in the old generation after the last full pass or freeze.
        self._kept = 0
        # Estimate of the objects in the old generation now.
        self._old = 0
        self._last_full = 0.0

    def start(self) -> None:
        """Switch automatic collection off and begin to time every pass."""
        if self._running:
            return
        self._running = True
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.callbacks.append(self._on_pass)
        self._last_full = perf_counter()
        self._kept = self._old = _old_objects()

    def stop(self) -> None:
        """Restores the collector as it was found."""
        if not self._running:
            return
        self._running = False
        gc.callbacks.remove(self._on_pass)
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def freeze_prepared(self) -> None:
        """Before the clock starts: makes a full pass, then freezes what is left."""
        gc.collect()
        self._freeze()

    def freeze_ramped(self) -> None:
        """During the run, when all users are up: makes only a young pass, which is short."""
        gc.collect(1)
        self._freeze()

    def tick(self, now: float | None = None) -> None:
        """Collect what is due at `now`, a reading of `time.perf_counter`."""
        if now is None:
            now = perf_counter()
        young = gc.get_count()[0]
        if young < max(YOUNG_OBJECTS, self.users * OBJECTS_PER_USER):
            return
        self._collected = 0
        gc.collect(1)
        # The count is of allocations less deallocations, also of old objects, so what a
        # pass did not free is about what the old generation has grown by.
        self._old += max(0, young - self._collected)
        if now - self._last_full >= FULL_INTERVAL_S and self._has_grown():
            self._last_full = now
            self._old = _old_objects()
            # Deallocations beyond the allocations of a period are not counted, so the estimate is
            # only ever too high: count the objects before paying for a full pass.
            if self._has_grown():
                gc.collect(2)
                self._kept = self._old = _old_objects()

    def take_max_s(self) -> float:
        """The longest pass since the last call."""
        longest, self._max_s = self._max_s, 0.0
        return longest

    def _has_grown(self) -> bool:
        least = max(FULL_OBJECTS, self.users * OBJECTS_PER_USER)
        return self._old >= least and self._old >= self._kept * FULL_GROWTH

    def _freeze(self) -> None:
        gc.freeze()
        self._kept = self._old = 0

    def _on_pass(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = perf_counter()
            return
        self.passes += 1
        self._collected += info["collected"]
        self._max_s = max(self._max_s, perf_counter() - self._began)


def _old_objects() -> int:
    return len(gc.get_objects(generation=2))
