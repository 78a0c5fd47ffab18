"""The execution lease of a core process: how long it may send, in memory shared with its parent.

The worker's main process writes the deadline, the core process reads it. The core makes the
load, so it enforces the lease itself, whatever has happened to its parent.

The deadline is kept in two clocks. `perf_counter` (the monotonic clock of Linux) continues
while a process is stopped but not while the machine sleeps; CLOCK_BOOTTIME continues in both
cases. Reading both for every request would cost too much, so a request compares its own start
stamp with a limit that lies neither beyond the deadline nor more than `GAP_S` beyond the last
reading of both clocks. The first request after a longer gap therefore reads both.

A lease that has ended never begins again in this process.

In the other direction the core writes its last beat, and its watchdog writes which line of
the author's code blocks the event loop: a process with a blocked loop can send no message
about it. It sends no requests either, which bounds the load that is not known.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from math import inf
from time import perf_counter

# `perf_counter` does not see that the machine slept, so for at most this long after it wakes a
# request may still pass; `LeaseGuard.check` shortens that to `CHECK_S` while the loop runs.
GAP_S = 0.5
CHECK_S = 0.1

# The memory: six doubles, then the text of `holds`, then (from `_BYTES` on) a stack.
_BYTES = 512
_MONOTONIC, _BOOT, _BEAT, _HELD, _SINCE, _LENGTH = 0, 1, 2, 3, 4, 5
_TEXT_AT = 48
_STACK_BYTES = 16 * 1024


class LeaseMemory:
    """The memory that a worker shares with one core process.

    Only the parent writes the deadlines, only the child writes the rest, so no lock is
    needed. 0.0 means never granted, or no beat yet.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Makes new memory without a descriptor; the child maps the descriptor it inherits."""
        self.descriptor = _memory() if descriptor is None else descriptor
        self._map = mmap.mmap(self.descriptor, _BYTES)
        self._view = memoryview(self._map)[:_TEXT_AT].cast("d")

    @property
    def deadlines(self) -> tuple[float, float]:
        """By `perf_counter` and by CLOCK_BOOTTIME.

        Each is one aligned 8-byte store, so neither is read half-written. A reader between
        the two stores of `write` mixes old and new; both must hold, so the earlier counts.
        """
        return self._view[_MONOTONIC], self._view[_BOOT]

    def write(self, monotonic: float, boot: float) -> None:
        self._view[_MONOTONIC] = monotonic
        self._view[_BOOT] = boot

    @property
    def beat(self) -> float:
        """When the core's event loop last ran, by `perf_counter`."""
        return self._view[_BEAT]

    def beats(self, now: float) -> None:
        self._view[_BEAT] = now

    @property
    def held_by(self) -> str:
        """The line that has blocked the loop since that beat; "" if the watchdog did not see it."""
        # A note about an earlier beat is out of date: the loop ran again since.
        if not self._view[_BEAT] or self._view[_HELD] != self._view[_BEAT]:
            return ""
        text = self._map[_TEXT_AT : _TEXT_AT + int(self._view[_LENGTH])]
        return text.decode(errors="replace")

    @property
    def held_since(self) -> float:
        """When one task took the loop and kept it, so that nothing was sent since; infinity if the
        watchdog did not see it."""
        return self._view[_SINCE] if self.held_by else inf

    def holds(self, beat: float, since: float, text: str) -> None:
        """Called by the core's watchdog: no beat since `beat`, the same task since `since`."""
        data = text.encode()[: _BYTES - _TEXT_AT]
        # Cleared first and set last: a reader in between sees no note instead of half a one.
        self._view[_HELD] = 0.0
        self._map[_TEXT_AT : _TEXT_AT + len(data)] = data
        self._view[_LENGTH] = float(len(data))
        self._view[_SINCE] = since
        self._view[_HELD] = beat

    def await_stack(self) -> None:
        """Called by the parent before it asks the core for its stack. The core writes it after
        the rest of the memory; both processes share the file offset that is set here."""
        os.ftruncate(self.descriptor, _BYTES)
        os.lseek(self.descriptor, _BYTES, os.SEEK_SET)

    @property
    def stack(self) -> str:
        """The stack that the core has written since, innermost frame first."""
        return os.pread(self.descriptor, _STACK_BYTES, _BYTES).decode(errors="replace")

    def close(self) -> None:
        if self.descriptor >= 0:
            self._view.release()
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1


class LeaseGuard:
    """Enforces the lease in the core process; calls `on_end` once, when it has ended:
    `CoreProcess._on_lease_end`."""

    def __init__(self, memory: LeaseMemory, on_end: Callable[[], None]) -> None:
        self._memory = memory
        self._on_end = on_end
        self.ended = False
        # Clients compare the start stamp of each request with this number before they send. A
        # list, so that they hold the one object and need no call. -inf asks `allows`.
        self.limit = [-inf]

    def allows(self, now: float) -> bool:
        """Reads both clocks; once it has answered false, the lease has ended for good."""
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
        """Called every `CHECK_S`, so that a lease also ends while nothing is sent."""
        if not self.ended and self._memory.deadlines[_MONOTONIC] > 0.0:
            self.allows(perf_counter())


def boot_time() -> float:
    """Seconds that include the time the machine slept, where the system has such a clock."""
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
