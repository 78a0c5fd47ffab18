"""The execution leases of a core process: how long each of its shares may send, in memory that it
has in common with its parent.

The worker's main process writes the deadlines, the core process reads them. The core makes the
load, so it enforces the leases itself, whatever has happened to its parent.

The deadline is kept in two clocks. `perf_counter` (the monotonic clock of Linux) continues
while a process is stopped but not while the machine sleeps; CLOCK_BOOTTIME continues in both
cases. Reading both for every request would cost too much, so a request compares its own start
stamp with a limit that lies neither beyond the deadline nor more than `GAP_S` beyond the last
reading of both clocks. The first request after a longer gap therefore reads both, and has the
counters written before it is sent: no request leaves a core process later than `GAP_S` after its
counters were written.

A lease that has ended never begins again. It ended at its deadline, however late the process
notices: one that stood still wakes up long after.

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

SLOTS = 1024
"""Leases of one core process, one for each share that it ever runs. A slot is used once, because
a lease that has ended never begins again."""

# The memory: four doubles, the text of `holds`, two doubles for each slot, then (from `_BYTES` on)
# a stack.
_BEAT, _HELD, _SINCE, _LENGTH = 0, 1, 2, 3
_TEXT_AT = 32
_SLOTS_AT = 512
_BYTES = _SLOTS_AT + SLOTS * 16
_STACK_BYTES = 16 * 1024


class LeaseMemory:
    """The memory that a worker and one core process have in common.

    Only the parent writes the deadlines, only the child writes the rest, so no lock is
    needed. 0.0 means never granted, or no beat yet.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Makes new memory without a descriptor; the child maps the descriptor it inherits."""
        self.descriptor = _memory() if descriptor is None else descriptor
        self._map = mmap.mmap(self.descriptor, _BYTES)
        self._view = memoryview(self._map)[:_TEXT_AT].cast("d")
        self._slots = memoryview(self._map)[_SLOTS_AT:_BYTES].cast("d")

    def deadlines(self, slot: int) -> tuple[float, float]:
        """By `perf_counter` and by CLOCK_BOOTTIME.

        Each is one aligned 8-byte store, so neither is read half-written. A reader between
        the two stores of `write` mixes old and new; both must hold, so the earlier counts.
        """
        return self._slots[2 * slot], self._slots[2 * slot + 1]

    def write(self, slot: int, monotonic: float, boot: float) -> None:
        self._slots[2 * slot] = monotonic
        self._slots[2 * slot + 1] = boot

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
        data = text.encode()[: _SLOTS_AT - _TEXT_AT]
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
            self._slots.release()
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1


class LeaseGuard:
    """Enforces the lease of one share in the core process."""

    def __init__(self, memory: LeaseMemory, slot: int) -> None:
        self._memory = memory
        self._slot = slot
        # Called once when the lease has ended, with the reading of `perf_counter` at its end.
        self.on_end: Callable[[float], None] = _ignore
        # Called before the first request after a gap: `CoreShare.write_counters`.
        self.on_gap: Callable[[], None] = _ignore
        self.ended = False
        # When it was last known to hold.
        self._held_at = 0.0
        # Clients compare the start stamp of each request with this number before they send. A
        # list, so that they hold the one object and need no call. -inf asks `allows`.
        self.limit = [-inf]

    def allows(self, now: float) -> bool:
        """Asked before a request that is later than the limit; once it has answered false, the
        lease has ended for good."""
        if not self._holds(now):
            return False
        self.on_gap()
        return True

    def check(self) -> None:
        """Called every `CHECK_S`, so that a lease also ends while nothing is sent."""
        if self._memory.deadlines(self._slot)[0] > 0.0:
            self._holds(perf_counter())

    def close(self) -> None:
        """The share is over: nothing that it left behind may send."""
        self.ended = True
        self.limit[0] = -inf

    def _holds(self, now: float) -> bool:
        if self.ended:
            return False
        monotonic, boot = self._memory.deadlines(self._slot)
        late_s = boot_time() - boot
        if now < monotonic and late_s < 0.0:
            self._held_at = now
            self.limit[0] = min(monotonic, now + GAP_S)
            return True
        self.close()
        # If the machine slept, `now` has moved less than the other clock since the end.
        self.on_end(min(monotonic, max(now - max(late_s, 0.0), self._held_at)))
        return False


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


def _ignore(*_: object) -> None:
    return None
