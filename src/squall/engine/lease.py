"""The execution lease of a core process: until when it may send, in memory of two processes.

The worker's main process writes the deadline, the core process reads it. Load comes from
the core, so the core enforces the lease itself, whatever has become of its parent.

The deadline is kept in two clocks. `perf_counter` (the monotonic clock of Linux) goes on
while a process is stopped, and stands still while the machine sleeps; CLOCK_BOOTTIME goes
on in both cases. A request looks at its own start stamp only: it is compared with a limit
that never lies beyond the deadline, nor more than half a second beyond the last look at
both clocks. So the first request after any gap looks at both.

A lease that has ended never begins again in this process.

The other way the core writes its last beat, and its watchdog which line of the author
holds the loop: a process whose loop is held can tell nobody, and sends nothing either.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from math import inf
from time import perf_counter

GAP_S = 0.5
"""A request so long after the last look at both clocks takes another look first."""
CHECK_S = 0.1
_BYTES = 512
_MONOTONIC, _BOOT, _BEAT, _HELD, _SINCE, _LENGTH = 0, 1, 2, 3, 4, 5
_TEXT_AT = 48
_STACK_BYTES = 16 * 1024


class LeaseMemory:
    """What parent and child share. The parent alone writes the deadlines, the child the
    rest. 0.0 means: never granted, never beaten."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Without a descriptor new memory is made; pass `descriptor` on to the child."""
        self.descriptor = _memory() if descriptor is None else descriptor
        self._map = mmap.mmap(self.descriptor, _BYTES)
        self._view = memoryview(self._map)[:_TEXT_AT].cast("d")

    @property
    def deadlines(self) -> tuple[float, float]:
        """By `perf_counter` and by CLOCK_BOOTTIME. Each is one aligned store of 8 bytes."""
        return self._view[_MONOTONIC], self._view[_BOOT]

    def write(self, monotonic: float, boot: float) -> None:
        self._view[_MONOTONIC] = monotonic
        self._view[_BOOT] = boot

    @property
    def beat(self) -> float:
        """When the core's loop was last seen to run, by `perf_counter`."""
        return self._view[_BEAT]

    def beats(self, now: float) -> None:
        self._view[_BEAT] = now

    @property
    def held_by(self) -> str:
        """Whose code holds the loop since that beat; "" where nobody could tell."""
        if not self._view[_BEAT] or self._view[_HELD] != self._view[_BEAT]:
            return ""
        text = self._map[_TEXT_AT : _TEXT_AT + int(self._view[_LENGTH])]
        return text.decode(errors="replace")

    @property
    def held_since(self) -> float:
        """From when on one task had the loop without a break, so that nothing was sent;
        infinity where nobody could tell."""
        return self._view[_SINCE] if self.held_by else inf

    def holds(self, beat: float, since: float, text: str) -> None:
        """Of the core's watchdog: no beat since `beat`, and the same task since `since`."""
        data = text.encode()[: _BYTES - _TEXT_AT]
        self._view[_HELD] = 0.0
        self._map[_TEXT_AT : _TEXT_AT + len(data)] = data
        self._view[_LENGTH] = float(len(data))
        self._view[_SINCE] = since
        self._view[_HELD] = beat

    def await_stack(self) -> None:
        """Of the parent, before it asks the core for its stack: that is written behind the
        rest, by both through one open file."""
        os.ftruncate(self.descriptor, _BYTES)
        os.lseek(self.descriptor, _BYTES, os.SEEK_SET)

    @property
    def stack(self) -> str:
        """What the core has written since; its innermost frames come first."""
        return os.pread(self.descriptor, _STACK_BYTES, _BYTES).decode(errors="replace")

    def close(self) -> None:
        if self.descriptor >= 0:
            self._view.release()
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1


class LeaseGuard:
    """The core's side. `on_end` is called once, when the lease has ended."""

    def __init__(self, memory: LeaseMemory, on_end: Callable[[], None]) -> None:
        self._memory = memory
        self._on_end = on_end
        self.ended = False
        self.limit = [-inf]
        """One number that clients compare their start stamps with, before they send."""

    def allows(self, now: float) -> bool:
        """Looks at both clocks; false ends the lease for good."""
        if self.ended:
            return False
        monotonic, boot = self._memory.deadlines
        if now < monotonic and boot_time() < boot:
            self.limit[0] = min(monotonic, now + GAP_S)
            return True
        self.ended = True
        self.limit[0] = -inf
        self._on_end()
        return False

    def check(self) -> None:
        """Every `CHECK_S`, also while nothing is sent."""
        if not self.ended and self._memory.deadlines[_MONOTONIC] > 0.0:
            self.allows(perf_counter())


def boot_time() -> float:
    """Seconds that also count while the machine sleeps, where the system can tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _memory() -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("squall-lease", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BYTES)
    return descriptor
