"""Keeps the main process of a node running: starts it, reaps what it leaves, starts it again.

`squall manager`, `squall worker` and `squall agent` start this first. It is the parent of the
main process and does nothing but wait: no event loop, no threads, no connections, so there is
little that could end it. When the main process is killed, the launcher kills and reaps every
process that it left, also those that the author's code started (they become children of the
launcher, which is a subreaper), and starts the main process again at once. The new one does what
every restart does: it finds its directory and registers (R6). So the death of any one process of
a machine that lives costs a moment, not a lease.

A main process that ends by itself, with whatever exit code, is not started again: it was asked to
stop, or it cannot run. If the launcher is killed, the main process gets SIGTERM and ends in order.

Only Linux has subreapers and signals for the death of a parent, and only there can a new boot prove
that the former one is gone (R6). On other systems nodes run without a launcher.

Both sides are here: `launch` for the launcher, `attach` for the main process below it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from squall.runtime.backoff import Backoff

if TYPE_CHECKING:
    from squall.runtime.log import Log

IS_AVAILABLE = sys.platform.startswith("linux")

PARENT = "SQUALL_LAUNCHER"
"""In the environment of the main process: the launcher's process id."""
FORMER = "SQUALL_FORMER_END"
"""Beside it after a restart: the fields of `FormerEnd`."""
SCRATCH = "SQUALL_SCRATCH"
"""Beside it for a node without `--data`: a directory that outlives the main process, so that the
next one knows the name of the node and what the former one left."""

# Three deaths within ten seconds are no accident any more: wait before the next start.
DEATHS = 3
DEATHS_WITHIN_S = 10.0
RESTARTS = Backoff(first_s=1.0, cap_s=30.0)
# A killed process that does not end is stuck in the kernel, and may be for good. The next main
# process looks for it too, and without it claims no proof.
REAP_S = 5.0
REAP_POLL_S = 0.02

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_UNKNOWN = "unknown"


class FormerEnd(NamedTuple):
    """How the former main process under the same launcher ended."""

    pid: int
    signal: str
    ran_s: float
    ended_at: float | None
    """By CLOCK_BOOTTIME: when it and all its processes were gone. None: one of them may live."""


class Attached(NamedTuple):
    """What the main process learns from its launcher."""

    former: FormerEnd | None = None
    scratch: Path | None = None
    launcher: int = 0


def launch(command: Sequence[str], *, scratch_prefix: str = "") -> int:
    """Runs `command` as the main process until it ends by itself; returns its exit code. With
    `scratch_prefix` the main processes get a temporary directory, which is removed at the end."""
    scratch = tempfile.mkdtemp(prefix=scratch_prefix) if scratch_prefix else ""
    try:
        return _Launcher(command, scratch).run()
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def attach() -> Attached | None:
    """Called by the main process before it starts anything; None: there is no launcher. Takes the
    launcher's variables out of the environment, which core processes inherit."""
    parent = os.environ.pop(PARENT, "")
    former = os.environ.pop(FORMER, "")
    scratch = os.environ.pop(SCRATCH, "")
    if not parent.isdigit():
        return None
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        # The launcher died before it could be watched: what its death would have sent.
        os.kill(os.getpid(), signal.SIGTERM)
    return Attached(
        _parse_former(former) if former else None,
        Path(scratch) if scratch else None,
        int(parent),
    )


@contextlib.contextmanager
def scratch_of(attached: Attached | None) -> Generator[None]:
    """Removes the scratch directory if the launcher, which would do it, is dead."""
    try:
        yield
    finally:
        if attached is not None and attached.scratch and os.getppid() != attached.launcher:
            shutil.rmtree(attached.scratch, ignore_errors=True)


def log_restart(log: Log, attached: Attached) -> None:
    former = attached.former
    if former is not None:
        ago_s = None if former.ended_at is None else round(_boot_time() - former.ended_at, 2)
        log.warning(
            "started_again",
            former_ended_by=former.signal,
            former_ran_s=round(former.ran_s, 1),
            ago_s=ago_s if ago_s is not None else _UNKNOWN,
        )


class _Launcher:
    """Starts main processes, one after the other, and waits for signals and deaths."""

    def __init__(self, command: Sequence[str], scratch: str) -> None:
        self._command = list(command)
        self._scratch = scratch
        self._backoff = RestartBackoff()
        self._main = 0
        self._is_stopping = False
        self._forwarded = {signal.SIGTERM, signal.SIGINT}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            # `nohup` ignores it, and a blocked signal is delivered even if it is ignored.
            self._forwarded.add(signal.SIGHUP)
        self._waited = {signal.SIGCHLD, *self._forwarded}

    def run(self) -> int:
        # Signals are blocked and taken one by one, so none is lost between two waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._waited)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        former: FormerEnd | None = None
        while True:
            began = time.monotonic()
            self._main = pid = self._start(former)
            status = self._wait_for_main()
            # From here on the process id may be another's.
            self._main = 0
            ran_s = time.monotonic() - began
            # An order that found the main process alive was passed on, and its end is the answer.
            # One that comes later finds nothing to stop, whatever killed the main process.
            was_asked = self._is_stopping
            is_reaped = self._reap_all()
            self._take_pending()
            if was_asked or not os.WIFSIGNALED(status):
                return _exit_code(status)
            # Not before its core processes are gone too: they make the load.
            ended_at = _boot_time() if is_reaped else None
            former = FormerEnd(pid, _signal_name(os.WTERMSIG(status)), ran_s, ended_at)
            self._wait(self._backoff.wait_s(ran_s))
            if self._is_stopping:
                return 0

    def _start(self, former: FormerEnd | None) -> int:
        environment: dict[str, str] = {**os.environ, PARENT: str(os.getpid())}
        if former is not None:
            environment[FORMER] = _format_former(former)
        if self._scratch:
            environment[SCRATCH] = self._scratch
        # A process group of its own: Ctrl-C reaches the main process only by `_take_signal`.
        return os.posix_spawn(
            self._command[0],
            self._command,
            environment,
            setpgroup=0,
            setsigmask=(),
            setsigdef=self._waited,
        )

    def _wait_for_main(self) -> int:
        """Reaps children until the main process has ended; returns its status."""
        while True:
            for pid, status in _ended_children():
                if pid == self._main:
                    return status
            self._take_signal(None)

    def _reap_all(self) -> bool:
        """Kills and reaps what the main process left; False: something did not end in time.
        Children of a killed process become children of this one, so it looks again until there
        is none."""
        until = time.monotonic() + REAP_S
        while time.monotonic() < until:
            for pid in _children():
                # Children of this process, ended or not, until it reaps them: no other's id.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _ended_children()
            if not _has_children():
                return True
            self._take_signal(REAP_POLL_S)
        return False

    def _take_pending(self) -> None:
        """An order to stop may have come before the death that this process learned of first."""
        while signal.sigtimedwait(self._forwarded, 0) is not None:
            self._is_stopping = True

    def _wait(self, seconds: float) -> None:
        """Waits unless the node is asked to stop."""
        until = time.monotonic() + seconds
        while not self._is_stopping and (left_s := until - time.monotonic()) > 0.0:
            self._take_signal(left_s)

    def _take_signal(self, timeout_s: float | None) -> None:
        """Waits for one signal and passes it on. SIGHUP becomes SIGTERM: the terminal is gone,
        and the node ends in order."""
        if timeout_s is None:
            number = signal.sigwait(self._waited)
        else:
            info = signal.sigtimedwait(self._waited, timeout_s)
            number = signal.SIGCHLD if info is None else info.si_signo
        if number != signal.SIGCHLD:
            self._is_stopping = True
            if self._main:
                os.kill(self._main, signal.SIGTERM if number == signal.SIGHUP else number)


class RestartBackoff:
    """How long to wait before the next start."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._ran_s = 0.0
        self._waits = 0

    def wait_s(self, ran_s: float) -> float:
        """`ran_s`: how long the main process that has just died ran. Only such times count: with
        the waits between them, deaths would soon seem rare."""
        self._ran_s += ran_s
        self._deaths.append(self._ran_s)
        if len(self._deaths) < DEATHS or self._ran_s - self._deaths[0] > DEATHS_WITHIN_S:
            self._waits = 0
            return 0.0
        self._waits += 1
        return RESTARTS.delay_s(self._waits)


def _format_former(former: FormerEnd) -> str:
    ended = _UNKNOWN if former.ended_at is None else f"{former.ended_at:.6f}"
    return f"{former.pid} {former.signal} {former.ran_s:.3f} {ended}"


def _parse_former(text: str) -> FormerEnd:
    pid, name, ran_s, ended_at = text.split(" ")
    return FormerEnd(
        int(pid), name, float(ran_s), None if ended_at == _UNKNOWN else float(ended_at)
    )


def _ended_children() -> list[tuple[int, int]]:
    """Reaps all children that have ended."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(child)
    return ended


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(pid) for pid in text.split()]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Real-time signals but the first and last have no name.
        return f"SIG{number}"


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _boot_time() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _prctl(option: int, value: int) -> None:
    if IS_AVAILABLE:
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)
