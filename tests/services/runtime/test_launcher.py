"""The launcher with small programs as main processes, real signals and real deaths."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from squall.api.errors import ExitCode
from squall.runtime.real.launcher import (
    FORMER,
    PARENT,
    RESTARTS,
    SCRATCH,
    RestartBackoff,
)

WITHIN_S = 30.0
LAUNCHER = """
import sys
from squall.runtime.backoff import Backoff
from squall.runtime.real import launcher
launcher.RESTARTS = Backoff(float(sys.argv[3]))
sys.exit(launcher.launch([sys.executable, "-c", sys.argv[1]], scratch_prefix=sys.argv[2]))
"""
HEAD = """
import os, signal, sys, time
from squall.runtime.real.launcher import attach, scratch_of

def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")

def wait_for_a_signal():
    # Python runs a handler between two instructions: one long sleep that begins just after the
    # signal came would sleep on.
    while True:
        time.sleep(0.05)

launched = attach()
former = launched.former
"""
WAITS = """
say("main", os.getpid(), *(former or ()))
wait_for_a_signal()
"""
COUNTS = """
asked = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: asked.append(signal.Signals(number).name))
say("main", os.getpid())
while not asked:
    time.sleep(0.01)
time.sleep(0.3)
say("asked", *asked)
"""


class Launched:
    """A launcher that runs, and the lines that its main processes print."""

    def __init__(self, main: str, *, scratch: str, nohup: bool, first_wait_s: float) -> None:
        words = [sys.executable, "-c", LAUNCHER, HEAD + main, scratch, str(first_wait_s)]
        self.process = subprocess.Popen(
            ["nohup", *words] if nohup else words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if nohup else None,
            text=True,
            start_new_session=True,
            # The tests themselves may run under nohup.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def line(self) -> list[str]:
        """The words of the next line; none once every process has ended."""
        return self._lines.get(timeout=WITHIN_S).split()

    def ended(self) -> int:
        """Waits for the launcher and for all that writes to its standard output."""
        code = self.process.wait(WITHIN_S)
        assert self.line() == [], "it said more than the test read"
        return code

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def launched(
    main: str, *, scratch: str = "", nohup: bool = False, first_wait_s: float = RESTARTS.first_s
) -> Generator[Launched]:
    made = Launched(main, scratch=scratch, nohup=nohup, first_wait_s=first_wait_s)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        # A main process that outlived its launcher ends by the signal of its death.
        made.reader.join(WITHIN_S)
        assert made.process.stdout is not None
        made.process.stdout.close()


def exists(pid: int) -> bool:
    """Also true for a process that ended and was not reaped."""
    return Path(f"/proc/{pid}").exists()


def test_a_killed_main_process_is_replaced_at_once_by_one_that_knows_the_end() -> None:
    with launched(WAITS) as made:
        first = int(made.line()[1])
        killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.kill(first, signal.SIGKILL)
        _, second, pid, name, ran_s, ended_at = made.line()
        assert (int(pid), name) == (first, "SIGKILL") and int(second) != first
        assert float(ran_s) > 0.0
        assert killed_at - 0.001 <= float(ended_at) <= time.clock_gettime(time.CLOCK_BOOTTIME)
        os.kill(int(second), signal.SIGSEGV)
        assert made.line()[2:4] == [second, "SIGSEGV"], "it tells of the last one only"


def test_the_environment_that_core_processes_inherit_is_that_of_the_launcher() -> None:
    code = (
        f"KNOWN = {(PARENT, FORMER, SCRATCH)!r}"
        + """
say("main", os.getpid(), *sorted(name for name in os.environ if name.startswith(KNOWN)))
if former is None:
    time.sleep(600)
"""
    )
    with launched(code, scratch="squall-test-") as made:
        _, pid, *names = made.line()
        assert names == []
        os.kill(int(pid), signal.SIGKILL)
        assert made.line()[2:] == []
        assert made.ended() == 0


def test_what_a_killed_main_process_left_is_gone_before_the_next_one_starts() -> None:
    code = """
if former is None:
    for _ in range(3):
        # In sessions of their own, deaf for SIGTERM, and without a parent.
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                if os.fork() == 0:
                    say("left", os.getpid())
                    time.sleep(600)
                say("left", os.getpid())
                time.sleep(600)
            os._exit(0)
    for _ in range(3):
        os.wait()
say("main", os.getpid())
time.sleep(600)
"""
    with launched(code) as made:
        said = [made.line() for _ in range(7)]
        left = [int(pid) for word, pid, *_ in said if word == "left"]
        (main,) = (int(pid) for word, pid, *_ in said if word == "main")
        assert len(left) == 6 and all(map(exists, left))
        os.kill(main, signal.SIGKILL)
        assert made.line()[0] == "main"
        assert [pid for pid in left if exists(pid)] == []


def test_orphans_are_reaped_while_the_main_process_runs_and_killed_when_it_ends() -> None:
    code = """
def orphan(name, seconds):
    if os.fork() == 0:
        if os.fork() == 0:
            say(name, os.getpid())
            time.sleep(seconds)
            os._exit(0)
        os._exit(0)
    os.wait()

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
orphan("brief", 0.0)
orphan("lasting", 600.0)
wait_for_a_signal()
"""
    with launched(code) as made:
        # Either may speak first.
        pids = dict((made.line(), made.line()))
        lasting = int(pids["lasting"])
        while exists(int(pids["brief"])):
            time.sleep(0.01)
        assert exists(lasting)
        made.process.send_signal(signal.SIGTERM)
        assert made.ended() == 0
        assert not exists(lasting)


@pytest.mark.parametrize("code", [0, 7])
def test_a_main_process_that_ends_by_itself_is_not_replaced_and_its_exit_code_is_passed_on(
    code: int,
) -> None:
    with launched(f"say('main'); sys.exit({code})") as made:
        assert made.line() == ["main"]
        assert made.ended() == code


def test_wrong_settings_of_a_node_are_one_line_and_its_exit_code(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "squall", "worker", "--dc", "x", "--managers", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        timeout=WITHIN_S,
        check=False,
    )
    assert ended.returncode == ExitCode.CONFIG
    assert len(ended.stderr.splitlines()) == 1 and "no secret" in ended.stderr
    assert list(tmp_path.iterdir()) == [], "no scratch directory is left"


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGINT, "SIGINT"),
        # The terminal is gone: the node ends in order.
        (signal.SIGHUP, "SIGTERM"),
    ],
)
def test_a_signal_reaches_the_main_process_once(sent: int, arrives: str) -> None:
    with launched(COUNTS) as made:
        made.line()
        # As a terminal does: to the whole process group.
        os.killpg(made.process.pid, sent)
        assert made.line() == ["asked", arrives]
        assert made.ended() == 0


def test_a_launcher_under_nohup_outlives_its_terminal() -> None:
    with launched(COUNTS, nohup=True) as made:
        made.line()
        made.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        made.process.send_signal(signal.SIGTERM)
        assert made.line() == ["asked", "SIGTERM"]


def test_a_main_process_that_dies_while_it_stops_is_not_replaced() -> None:
    code = "signal.signal(signal.SIGTERM, lambda number, frame: say('asked'))"
    with launched(code + WAITS) as made:
        main = int(made.line()[1])
        made.process.send_signal(signal.SIGTERM)
        assert made.line() == ["asked"]
        os.kill(main, signal.SIGKILL)
        assert made.ended() == 128 + signal.SIGKILL


def test_the_main_process_ends_in_order_when_its_launcher_is_killed() -> None:
    code = f"""
with scratch_of(launched):
    say("in", launched.scratch)
    {COUNTS.replace(chr(10), chr(10) + "    ")}
    say("still", launched.scratch.exists())
"""
    with launched(code, scratch="squall-test-") as made:
        scratch = Path(made.line()[1])
        made.line()
        made.process.kill()
        assert made.line() == ["asked", "SIGTERM"]
        assert made.line() == ["still", "True"]
        assert made.line() == [] and not scratch.exists()


def test_a_main_process_without_its_launcher_from_the_start_ends_at_once() -> None:
    """The launcher may die while Python starts, before its death would be signalled."""
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + WAITS],
        env=os.environ | {"SQUALL_LAUNCHER": "1"},
        capture_output=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, b"")


def test_after_three_deaths_in_ten_seconds_the_launcher_waits_and_can_be_stopped_meanwhile() -> (
    None
):
    code = "say('main'); os.kill(os.getpid(), signal.SIGKILL)"
    with launched(code, first_wait_s=10.0 * WITHIN_S) as made:
        for _ in range(3):
            assert made.line() == ["main"]
        while made.children():
            time.sleep(0.01)
        made.process.send_signal(signal.SIGTERM)
        # Nothing ran when it was asked: it neither waits any longer nor starts another one.
        assert made.ended() == 0


def test_waits_double_up_to_a_limit_until_the_main_process_runs_for_a_while() -> None:
    backoff = RestartBackoff()
    waits = [backoff.wait_s(0.5) for _ in range(10)]
    assert waits == [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, *[RESTARTS.cap_s] * 3]
    assert [backoff.wait_s(11.0), backoff.wait_s(0.5), backoff.wait_s(0.5)] == [0.0, 0.0, 1.0]
    rare = RestartBackoff()
    assert [rare.wait_s(6.0) for _ in range(4)] == [0.0] * 4


def test_a_scratch_directory_outlives_a_main_process_and_ends_with_the_launcher() -> None:
    code = """
say("main", os.getpid(), launched.scratch)
if former is None:
    (launched.scratch / "kept").write_text("x")
    time.sleep(600)
sys.exit(0 if (launched.scratch / "kept").exists() else 5)
"""
    with launched(code, scratch="squall-test-") as made:
        _, pid, scratch = made.line()
        assert Path(scratch).name.startswith("squall-test-")
        while not (Path(scratch) / "kept").exists():
            time.sleep(0.01)
        os.kill(int(pid), signal.SIGKILL)
        assert made.line()[2] == scratch
        assert made.ended() == 0 and not Path(scratch).exists()
