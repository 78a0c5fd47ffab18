"""Virtual time as a heap of actions, and a network that loses, repeats, delays and cuts.

The scenario needs no tasks and no sockets: an action is a plain call, so one seed takes
milliseconds.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

Action = Callable[[], None]
Reply = Callable[[Any], None]


class Timeline:
    """The time of all models, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, action: Action) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._numbers), action))

    def run(self, until: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Runs up to `until`, or until `is_done` says so, which is asked once a second."""
        ask_at = self.now
        while self._heap and self._heap[0][0] <= until:
            at, _, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            if self.now >= ask_at:
                if is_done():
                    return True
                ask_at = self.now + 1.0
            action()
        self.now = max(self.now, until)
        return is_done()


class LossyNetwork:
    """One direction is one link: it may be cut alone."""

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self._timeline = timeline
        self._random = random
        self.loss = 0.0
        self.duplicate = 0.0
        self.late = 0.0
        self.cut_until: dict[tuple[str, str], float] = {}
        self.cut_since: dict[tuple[str, str], float] = {}

    def cut(self, source: str, target: str, for_s: float) -> None:
        link = (source, target)
        now = self._timeline.now
        if not self.is_cut(source, target):
            self.cut_since[link] = now
        self.cut_until[link] = max(self.cut_until.get(link, 0.0), now + for_s)

    def is_cut(self, source: str, target: str) -> bool:
        return self._timeline.now < self.cut_until.get((source, target), 0.0)

    def cut_s(self, source: str, target: str) -> float:
        """For how long the link has been cut; 0: it is up."""
        if not self.is_cut(source, target):
            return 0.0
        return self._timeline.now - self.cut_since[(source, target)]

    def heal(self) -> None:
        """What is under way stays late; everything new arrives."""
        self.loss = self.duplicate = self.late = 0.0
        self.cut_until.clear()

    def send(self, source: str, target: str, deliver: Action) -> None:
        copies = 2 if self._random.random() < self.duplicate else 1
        for _ in range(copies):
            if self.is_cut(source, target) or self._random.random() < self.loss:
                continue
            delay_s = self._random.uniform(0.005, 0.15)
            if self._random.random() < self.late:
                delay_s = self._random.uniform(0.5, 30.0)
            self._timeline.after(delay_s, deliver)

    def request(
        self,
        source: str,
        target: str,
        handle: Callable[[Reply], None],
        answered: Reply,
        failed: Action,
        timeout_s: float = 2.0,
    ) -> None:
        """Calls `handle` at the target, perhaps twice, and one of `answered` and `failed` once. An
        answer of None is an error, and one that comes too late is dropped."""
        open_ = [True]

        def back(answer: Any) -> None:
            self.send(target, source, lambda: arrive(answer))

        def arrive(answer: Any) -> None:
            if open_[0]:
                open_[0] = False
                if answer is None:
                    failed()
                else:
                    answered(answer)

        def expire() -> None:
            if open_[0]:
                open_[0] = False
                failed()

        self.send(source, target, lambda: handle(back))
        self._timeline.after(timeout_s, expire)
