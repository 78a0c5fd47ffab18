"""Finds the line of the author's code that blocks the event loop of a core process.

A thread samples the stack of the loop's thread whenever a heartbeat is missing. `BlockLog` decides,
without threads or clocks, what the samples prove:

- Time counts as blocked only between two samples of the *same* task within one missing beat. A
  loop that is merely busy shows another task each time.
- The machine may stop, throttle or starve the process. Then this thread wakes up late as well,
  or the system reports that the loop's thread was ready and had to wait. Of such a stretch only
  the processor time of the loop's thread counts.
- A call into C that holds the interpreter's lock also keeps this thread from sampling. If this
  thread was late without having waited for a processor, and the loop's thread ran meanwhile,
  such a call is the cause.
- A stack without a frame of the author (garbage collection, Squall itself) is not reported.

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

from squall.engine.plan.author_file import author_frames, function_name, shown_line
from squall.stats.reports import Blocked

SAMPLE_INTERVAL_S = 0.020
SAMPLE_AFTER_S = 0.025
"""The stack is sampled once the last beat is this old: two and a half beats."""

BLOCKED_AFTER_S = 0.050
"""Less than this between two beats is not a block."""

HELD_AFTER_S = 1.0
"""A task that has held the loop for this long is reported while it still runs: it may never end."""

LATE_S = 0.010
"""This thread may wake up this late without the machine being the cause: twice the 5 ms that Python
lets one thread run while another waits (`sys.getswitchinterval`)."""

BUSY_SHARE = 0.5
"""Share of this thread's lateness in which the loop's thread must have run to be its cause."""

WAITED_SHARE = 0.25
"""From this share of a stretch spent waiting for a processor, the machine is the cause."""

READ_EVERY = 10
"""Wake-ups between two readings of the waiting times while the loop beats: each reading
switches the interpreter's lock, which costs the loop time."""

MOST_PLACES = 200
"""Places kept per period."""

MOST_SPENT = 1_000
"""Tasks that were seen, kept until the loop's thread releases them."""

LONGEST_CALL = 60

_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")


class HasBeat(Protocol):
    @property
    def last_beat(self) -> float: ...


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A place in the author's code; the four fields are those of `Blocked`."""

    workflow: str
    step: str
    location: str
    call: str


Sighting = tuple[object, CodePlace | None]
"""The task that has the loop, and its place if it is in the author's code."""


@dataclass(frozen=True, slots=True)
class LateStretch:
    """The time between two wake-ups of this thread: how long the loop's thread ran in it, and how
    long each of the two waited for a processor (None where the system does not report it)."""

    wall_s: float = SAMPLE_INTERVAL_S
    cpu_s: float = 0.0
    loop_waited_s: float | None = None
    own_waited_s: float | None = None

    @property
    def late_s(self) -> float:
        return self.wall_s - SAMPLE_INTERVAL_S

    @property
    def held_the_lock(self) -> bool:
        """True if the loop's thread ran and let no other thread run: one long call into C."""
        return (
            self.late_s > LATE_S
            and self.own_waited_s is not None
            and self.own_waited_s <= WAITED_SHARE * self.wall_s
            and self.cpu_s - SAMPLE_INTERVAL_S >= BUSY_SHARE * self.late_s
        )

    @property
    def starved(self) -> bool:
        """True if the machine was busy, or the process was stopped."""
        if self.loop_waited_s is not None and self.loop_waited_s > WAITED_SHARE * self.wall_s:
            return True
        return self.late_s > LATE_S and not self.held_the_lock


class BlockLog:
    """Adds up the time that each place of the author's code held the loop."""

    def __init__(self) -> None:
        self._totals: dict[CodePlace, float] = {}
        self._current: dict[CodePlace, float] = {}
        self._beat = 0.0
        self._sampled_at = 0.0
        self._since = 0.0
        self._owner: object | None = None
        # When the present owner was first seen: since then no other task had the loop.
        self.owner_since = 0.0
        self._place: CodePlace | None = None
        self._held = False
        self._spent: deque[object] = deque(maxlen=MOST_SPENT)

    def sample(
        self, now: float, beat: float, stretch: LateStretch, read_stack: Callable[[], Sighting]
    ) -> None:
        """Handles one wake-up of the thread, at `now`. `read_stack` returns the task that runs and
        the line where it is."""
        self.settle(beat, stretch)
        if now - beat < SAMPLE_AFTER_S:
            return
        owner, place = read_stack()
        same = owner is self._owner
        if not same:
            self._change_owner(owner)
            self.owner_since = now
        if same or stretch.held_the_lock:
            self._held = True
            self._credit(place, stretch.cpu_s if stretch.starved else now - self._since)
        if stretch.starved or self._held:
            self._since = now
        self._place = place
        self._sampled_at = now

    def settle(self, beat: float, stretch: LateStretch) -> None:
        """Closes the running block if the loop has beaten since the last sample."""
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
        self._beat = self._sampled_at = self._since = beat

    @property
    def place(self) -> CodePlace | None:
        """Where the loop was at the last sample, if it has not beaten since."""
        return self._place if self._owner is not None else None

    @property
    def suspicious(self) -> bool:
        """Whether a task was seen to hold the loop since its last known beat."""
        return self._owner is not None

    def take(self) -> list[Blocked]:
        """Returns the blocks that ended since the last call, longest first.

        Only the loop's thread may call it: the tasks that were seen are released here, and
        another thread must not run their finalisers.
        """
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
        # When a new owner is seen a second time, it is credited from the last sample of its
        # predecessor on: it has had the loop since some moment in between.
        self._since = self._sampled_at

    def _credit(self, place: CodePlace | None, seconds: float) -> None:
        if place is not None and seconds > 0.0:
            self._current[place] = self._current.get(place, 0.0) + seconds


class Watchdog:
    """Runs the watchdog thread. Start and stop it on the loop's thread.

    `base` is the class of which an author's workflows are subclasses; `root` the folder
    of the author's file, by default that of the file this process loaded.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        heartbeat: HasBeat,
        base: type,
        *,
        root: Path | None = None,
        on_held: Callable[[float, float, str], None] | None = None,
    ) -> None:
        """The thread calls `on_held(beat, since, text)`: no beat since `beat`, the same task
        since `since`."""
        self._on_held = on_held
        self._reported: tuple[float, str] = (0.0, "")
        self._loop = loop
        self._heartbeat = heartbeat
        self._base = base
        self._root = root
        self._log = BlockLog()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watched = 0
        self._clocks = _Clocks()
        self._sleep_began = 0.0
        self._wakes = 0
        self._thread = threading.Thread(target=self._run, name="squall-watchdog", daemon=True)

    def start(self) -> None:
        self._watched = threading.get_ident()
        self._clocks.open(self._watched, threading.get_native_id())
        self._sleep_began = time.perf_counter()
        self._log.settle(self._heartbeat.last_beat, LateStretch())
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._clocks.close()

    def take(self) -> list[Blocked]:
        """Returns the author's lines that blocked the loop since the last call."""
        with self._lock:
            # The loop itself calls this, so it runs again: a block that has just ended is
            # complete although the thread has not noticed the new beat yet.
            if self._log.suspicious:
                stretch = self._stretch(time.perf_counter(), closely=True)
                self._log.settle(self._heartbeat.last_beat, stretch)
            return self._log.take()

    def _run(self) -> None:
        self._clocks.follow("own", threading.get_native_id())
        while not self._ended.wait(SAMPLE_INTERVAL_S):
            with self._lock:
                now, beat = time.perf_counter(), self._heartbeat.last_beat
                self._wakes += 1
                closely = self._log.suspicious or now - beat >= SAMPLE_AFTER_S
                stretch = self._stretch(now, closely=closely or self._wakes % READ_EVERY == 0)
                self._log.sample(now, beat, stretch, self._read_stack)
                self._report_held(now, beat)
                # The stretch begins here and not at the wake-up: reading the clocks and the stack
                # also waits for the lock, and that time is not the loop's.
                self._clocks.restart()
                self._sleep_began = time.perf_counter()

    def _report_held(self, now: float, beat: float) -> None:
        place, since = self._log.place, self._log.owner_since
        if self._on_held is None or place is None or now - max(beat, since) < HELD_AFTER_S:
            return
        owner = ".".join(word for word in (place.workflow, place.step) if word)
        report = (beat, f"{owner} holds its core process: {place.call} at {place.location}")
        if report != self._reported:
            self._reported = report
            self._on_held(beat, since, report[1])

    def _stretch(self, now: float, *, closely: bool) -> LateStretch:
        cpu_s = self._clocks.ran_s()
        waited = self._clocks.waited_s() if closely else (None, None)
        return LateStretch(now - self._sleep_began, cpu_s, *waited)

    def _read_stack(self) -> Sighting:
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
        return owner, CodePlace(workflow, step, shown_line(code.co_filename, line), call)

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
    """Measures how long the loop's thread ran, and how long both threads waited to run."""

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
        """Starts to read one thread's waiting time, where the system reports it."""
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
        """Waiting time of the loop's and the own thread since the last call. That may be longer
        ago than the restart, which errs towards blaming the machine."""
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
    """The function that the author calls there, as `time.sleep`; the whole line if none."""
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
