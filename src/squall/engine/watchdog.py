"""Who held the loop: the author's line that kept a core process from doing anything else.

A thread looks at the stack of the loop's thread whenever the heartbeat is missing.
`BlockLog` decides, without threads or clocks, what that proves:

- Time counts as blocked only between two looks at the *same* task within one missing
  beat. A loop that is merely busy shows another task each time and is not accused.
- The process may be stopped, throttled or starved by the machine. Then this thread wakes
  up late as well, or the system says that the loop's thread was ready and had to wait. Of
  such a stretch only the processor time of the loop's thread counts.
- A call into C that keeps the interpreter's lock also keeps this thread from looking. If
  this thread was late without having waited for a processor, and the loop's thread ran
  meanwhile, it was that call.
- No frame of the author on the stack (garbage collection, Squall itself): not reported.

It must never slow the loop down, nor name a line that is not the author's.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import linecache
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

from squall.engine.loading import author_frames, function_name, shown_line
from squall.stats.reports import Blocked

LOOK_INTERVAL_S = 0.020
LOOK_AFTER_S = 0.025
"""Age of the last beat from which the stack is looked at: two and a half beats."""

BLOCKED_AFTER_S = 0.050
"""Less than this between two beats is not a block."""

HELD_AFTER_S = 1.0
"""A task that has the loop for so long is told while it has it: that may never end."""

LATE_S = 0.010
"""How late this thread may wake up and still speak of the loop and not of the machine:
twice the 5 ms that Python lets one thread run while another one waits."""

BUSY_SHARE = 0.5
"""Share of this thread's lateness in which the loop's thread must have run to be its cause."""

WAITED_SHARE = 0.25
"""Share of a stretch spent waiting for a processor from which the machine is to blame."""

READ_EVERY = 10
"""Wake-ups between two readings of the waiting times while the loop beats: reading gives
the interpreter's lock away, and the loop pays for that."""

MOST_PLACES = 200
"""Places kept per period; more would be a report nobody reads."""

MOST_SPENT = 1_000
"""Tasks that were looked at, kept until the loop's thread releases them."""

LONGEST_CALL = 60

_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")


class HasBeat(Protocol):
    @property
    def last_beat(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where the author's code was; all four as in `Blocked`."""

    workflow: str
    step: str
    location: str
    call: str


Sighting = tuple[object, Place | None]
"""Who has the loop (the task), and the author's place if it is in the author's code."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time this thread was not awake: how long the loop's thread ran in it, and how long
    each of the two had to wait for a processor (None where the system does not tell)."""

    wall_s: float = LOOK_INTERVAL_S
    cpu_s: float = 0.0
    loop_waited_s: float | None = None
    own_waited_s: float | None = None

    @property
    def late_s(self) -> float:
        return self.wall_s - LOOK_INTERVAL_S

    @property
    def kept_the_lock(self) -> bool:
        """The loop's thread ran on and let nobody else: one long call into C."""
        return (
            self.late_s > LATE_S
            and self.own_waited_s is not None
            and self.own_waited_s <= WAITED_SHARE * self.wall_s
            and self.cpu_s - LOOK_INTERVAL_S >= BUSY_SHARE * self.late_s
        )

    @property
    def starved(self) -> bool:
        """The machine was busy, or the process was stopped."""
        if self.loop_waited_s is not None and self.loop_waited_s > WAITED_SHARE * self.wall_s:
            return True
        return self.late_s > LATE_S and not self.kept_the_lock


class BlockLog:
    """Adds up the time that each place of the author's code held the loop."""

    def __init__(self) -> None:
        self._totals: dict[Place, float] = {}
        self._current: dict[Place, float] = {}
        self._beat = 0.0
        self._looked = 0.0
        self._since = 0.0
        self._owner: object | None = None
        self.owner_since = 0.0
        """When the present owner was first seen: from there on nobody else had the loop."""
        self._place: Place | None = None
        self._held = False
        self._spent: deque[object] = deque(maxlen=MOST_SPENT)

    def look(
        self, now: float, beat: float, stretch: Stretch, sight: Callable[[], Sighting]
    ) -> None:
        """One wake-up of the thread, at `now`; `sight` tells who runs, and where."""
        self.settle(beat, stretch)
        if now - beat < LOOK_AFTER_S:
            return
        owner, place = sight()
        same = owner is self._owner
        if not same:
            self._change_owner(owner)
            self.owner_since = now
        if same or stretch.kept_the_lock:
            self._held = True
            self._credit(place, stretch.cpu_s if stretch.starved else now - self._since)
        if stretch.starved or self._held:
            self._since = now
        self._place = place
        self._looked = now

    def settle(self, beat: float, stretch: Stretch) -> None:
        """If the loop has beaten since the last look, close the block that went before."""
        if beat == self._beat:
            return
        if self._owner is not None:
            if self._held:
                rest_s = beat - self._since
                self._credit(self._place, min(rest_s, stretch.cpu_s) if stretch.starved else rest_s)
            if sum(self._current.values()) >= BLOCKED_AFTER_S:
                for place, seconds in self._current.items():
                    if place in self._totals or len(self._totals) < MOST_PLACES:
                        self._totals[place] = self._totals.get(place, 0.0) + seconds
            self._current.clear()
            self._change_owner(None)
        self._beat = self._looked = self._since = beat

    @property
    def place(self) -> Place | None:
        """Where the loop was when it was last looked at and did not beat."""
        return self._place if self._owner is not None else None

    @property
    def suspicious(self) -> bool:
        """Whether somebody was seen holding the loop since its last known beat."""
        return self._owner is not None

    def take(self) -> list[Blocked]:
        """The blocks that ended since the last call, longest first. Only the loop's thread
        may call it: what was looked at is released here, and must not be finalised by
        another thread."""
        self._spent.clear()
        totals, self._totals = self._totals, {}
        blocked = [
            Blocked(place.workflow, place.step, place.location, place.call, seconds)
            for place, seconds in totals.items()
        ]
        return sorted(blocked, key=lambda block: -block.seconds)

    def _change_owner(self, owner: object | None) -> None:
        if self._owner is not None:
            self._spent.append(self._owner)
        self._owner = owner
        self._held = False
        # What a new owner did before it was first seen is credited to it as soon as it is
        # seen again: from the last look, when another one had the loop.
        self._since = self._looked

    def _credit(self, place: Place | None, seconds: float) -> None:
        if place is not None and seconds > 0.0:
            self._current[place] = self._current.get(place, 0.0) + seconds


class Watchdog:
    """The thread. Start and stop it on the loop's thread.

    `base` is the class of which an author's workflows are subclasses; `root` the folder
    of the author's file, by default that of the file this process loaded.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        heart: HasBeat,
        base: type,
        *,
        root: Path | None = None,
        on_held: Callable[[float, float, str], None] | None = None,
    ) -> None:
        """`on_held(beat, since, text)` is called by the thread: no beat since the one, the
        same task since the other."""
        self._on_held = on_held
        self._told: tuple[float, str] = (0.0, "")
        self._loop = loop
        self._heart = heart
        self._base = base
        self._root = root
        self._log = BlockLog()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watched = 0
        self._clocks = _Clocks()
        self._dozed = 0.0
        self._wakes = 0
        self._thread = threading.Thread(target=self._run, name="squall-watchdog", daemon=True)

    def start(self) -> None:
        self._watched = threading.get_ident()
        self._clocks.open(self._watched, threading.get_native_id())
        self._dozed = time.perf_counter()
        self._log.settle(self._heart.last_beat, Stretch())
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._clocks.close()

    def take(self) -> list[Blocked]:
        """The author's lines that blocked the loop since the last call."""
        with self._lock:
            # Called by the loop, so it is alive: a block that has just ended is complete
            # although the thread has not noticed the new beat yet.
            if self._log.suspicious:
                stretch = self._stretch(time.perf_counter(), closely=True)
                self._log.settle(self._heart.last_beat, stretch)
            return self._log.take()

    def _run(self) -> None:
        self._clocks.follow("own", threading.get_native_id())
        while not self._ended.wait(LOOK_INTERVAL_S):
            with self._lock:
                now, beat = time.perf_counter(), self._heart.last_beat
                self._wakes += 1
                closely = self._log.suspicious or now - beat >= LOOK_AFTER_S
                stretch = self._stretch(now, closely=closely or self._wakes % READ_EVERY == 0)
                self._log.look(now, beat, stretch, self._sight)
                self._tell_held(now, beat)
                # From here and not from the wake-up: reading and looking give the lock
                # away as well, and that time is not the loop's.
                self._clocks.restart()
                self._dozed = time.perf_counter()

    def _tell_held(self, now: float, beat: float) -> None:
        place, since = self._log.place, self._log.owner_since
        if self._on_held is None or place is None or now - max(beat, since) < HELD_AFTER_S:
            return
        owner = ".".join(word for word in (place.workflow, place.step) if word)
        told = (beat, f"{owner} holds its core process: {place.call} at {place.location}")
        if told != self._told:
            self._told = told
            self._on_held(beat, since, told[1])

    def _stretch(self, now: float, *, closely: bool) -> Stretch:
        cpu_s = self._clocks.ran_s()
        waited = self._clocks.waited_s() if closely else (None, None)
        return Stretch(now - self._dozed, cpu_s, *waited)

    def _sight(self) -> Sighting:
        frame = sys._current_frames().get(self._watched)  # pyright: ignore[reportPrivateUsage]
        frames = [] if frame is None else author_frames(frame, self._root)
        # Code outside of a task (a protocol's callback) is its own owner as long as its
        # outermost frame runs.
        owner = asyncio.current_task(self._loop) or (frames[0][0] if frames else self)
        if not frames:
            return owner, None
        innermost, line = frames[-1]
        workflow, step = self._step(frames)
        code = innermost.f_code
        call = _call_text(code, innermost.f_lasti, line)
        return owner, Place(workflow, step, shown_line(code.co_filename, line), call)

    def _step(self, frames: list[tuple[FrameType, int]]) -> tuple[str, str]:
        """Workflow and step: the outermost method of a workflow among the author's frames."""
        for frame, _ in frames:
            code = frame.f_code
            names = (*code.co_varnames[: min(1, code.co_argcount)], "self")
            for name in names:
                owner = frame.f_locals.get(name)
                if isinstance(owner, self._base):
                    return type(owner).__name__, function_name(code)
        return "", function_name(frames[-1][0].f_code)


class _Clocks:
    """How long the loop's thread ran, and how long both threads waited for a processor."""

    def __init__(self) -> None:
        self._cpu: Callable[[], float] = time.process_time
        self._ran_s = 0.0
        self._files: dict[str, int] = {}
        self._waited_s: dict[str, float] = {}

    def open(self, thread: int, native: int) -> None:
        if sys.platform == "linux":
            clock = time.pthread_getcpuclockid(thread)
            self._cpu = lambda: time.clock_gettime(clock)
        self.restart()
        self.follow("loop", native)

    def follow(self, who: str, native: int) -> None:
        """Follow one thread's waiting time, where the system tells it."""
        path = f"/proc/self/task/{native}/schedstat"
        with contextlib.suppress(OSError):
            self._files[who] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._waited(who)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def restart(self) -> None:
        self._ran_s = self._cpu()

    def ran_s(self) -> float:
        """Since the last restart."""
        return self._cpu() - self._ran_s

    def waited_s(self) -> tuple[float | None, float | None]:
        """Loop and own thread, since the last call: perhaps longer ago than the restart,
        which errs on the side of blaming nobody."""
        return self._waited("loop"), self._waited("own")

    def _waited(self, who: str) -> float | None:
        if who not in self._files:
            return None
        try:
            total_s = int(os.pread(self._files[who], 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return None
        before = self._waited_s.get(who, total_s)
        self._waited_s[who] = total_s
        return total_s - before


@lru_cache(maxsize=1024)
def _call_text(code: CodeType, instruction: int, line: int) -> str:
    """What the author calls there: `time.sleep`; the whole line if it is not a call."""
    source = linecache.getline(code.co_filename, line).strip()
    expression = _expression(code, instruction)
    if expression is None:
        found = _CALL.search(source)
        return _shortened(found.group(1) if found else source)
    try:
        tree: ast.AST = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError):
        return _shortened(source)
    while isinstance(tree, ast.Await):
        tree = tree.value
    return _shortened(ast.unparse(tree.func) if isinstance(tree, ast.Call) else source)


def _expression(code: CodeType, instruction: int) -> str | None:
    """The source of exactly the expression that is being evaluated, where Python kept
    its columns (it does not with `-X no_debug_ranges`)."""
    positions = list(code.co_positions())
    if not 0 <= instruction // 2 < len(positions):
        return None
    first, last, start, end = positions[instruction // 2]
    if first is None or last is None or start is None or end is None:
        return None
    lines = [
        linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)
    ]
    # Columns count bytes of UTF-8. Cut the end first: it may lie in the same line.
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace") or None


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_CALL else text[: LONGEST_CALL - 3] + "..."
