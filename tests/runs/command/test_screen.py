"""The live screen of the real command, in a real (pseudo) terminal of 80x24."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from tests.runs.lab.command import (
    ENDS_WITHIN_S,
    GET,
    SQUALL,
    CommandLab,
    clean_environment,
    wait_until,
)

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
FLOW = f"""
    class Shop(Workflow):
        vus = 3
        duration = "10m"
        grace = "GRACE"

        @step()
        async def home(self, url: URL = "/?delay=5ms") -> HTTPResponse:
            {GET}
"""
HANGING = FLOW.replace("delay=5ms", "hang=1")


class Terminal:
    """A terminal with a command in it; what it shows is only ever appended."""

    def __init__(self, command: CommandLab, *words: str, **environment: str) -> None:
        self._ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        hidden = {"TERM": "xterm-256color", "CI": "", "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(
            [str(SQUALL), "run", *words],
            cwd=command.folder,
            env=clean_environment(hidden | environment),
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
        )
        self._bytes = b""

    @property
    def text(self) -> str:
        while select.select([self._ours], [], [], 0.0)[0]:
            self._bytes += os.read(self._ours, 65536)
        return self._bytes.decode(errors="replace")

    def until(self, wanted: str) -> None:
        wait_until(lambda: wanted in self.text or self.process.poll() is not None)
        assert wanted in self.text, self.text[-3000:]

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> tuple[int, str]:
        """Exit code, and what was written after the screen had gone."""
        deadline = time.monotonic() + ENDS_WITHIN_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-3000:]
            time.sleep(0.02)
            _ = self.text
        shown = self.text
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is as it was"
        assert shown.count(ENTER) == shown.count(LEAVE)
        after = shown.rpartition(LEAVE)[2]
        assert shown.rfind("\x1b[?25h") >= shown.rfind("\x1b[?25l"), "the cursor is back"
        os.close(self._ours)
        os.close(self.theirs)
        return self.process.returncode, after


def words(command: CommandLab, text: str, *more: str, grace: str = "10s") -> tuple[str, ...]:
    file = command.write(text.replace("GRACE", grace))
    return (file, "--host", command.target.url, "--json", "results.json", "--workers", "1", *more)


def test_a_run_draws_its_screen_and_leaves_a_summary(command: CommandLab) -> None:
    text = FLOW.replace("async def home", "async def home_page").replace(GET, f"print('hi'); {GET}")
    terminal = Terminal(command, *words(command, text, "-d", "3s", "--exit-zero"))
    terminal.until("home_page")
    terminal.until("generator")
    code, after = terminal.end()
    assert code == 0
    assert "STEPS" in after and "Requests/sec:" in after and "home_page" in after
    assert re.search(r"\[Shop \d+\] hi", after), "what steps print is not lost with the screen"
    assert (command.folder / "results.json").exists()
    drawn = terminal_rows(terminal)
    assert max(drawn) <= 24, "nothing is drawn below the last line"


def terminal_rows(terminal: Terminal) -> list[int]:
    # Textual moves the cursor with `row;column H`.
    shown = terminal._bytes.decode(errors="replace")
    return [int(row) for row in re.findall(r"\x1b\[(\d+);\d+H", shown)] or [1]


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_a_key_stops_gracefully_with_summary_and_document(command: CommandLab, key: str) -> None:
    terminal = Terminal(command, *words(command, FLOW))
    terminal.until("generator")
    wait_until(lambda: command.target.counts()["total"] > 10)
    terminal.press(key)
    code, after = terminal.end()
    assert code == 105
    assert "interrupted" in after and "STEPS" in after


def test_the_second_key_ends_at_once(command: CommandLab) -> None:
    """The grace is longer than the test may take."""
    terminal = Terminal(command, *words(command, HANGING, grace="1h"))
    wait_until(lambda: command.target.counts()["total"] >= 3)
    terminal.until("generator")
    terminal.press("q")
    terminal.until("q again ends at once")
    terminal.press("q")
    code, after = terminal.end()
    assert code == 105 and "STEPS" in after


def test_sigterm_gives_the_terminal_back(command: CommandLab) -> None:
    terminal = Terminal(command, *words(command, FLOW))
    terminal.until("generator")
    wait_until(lambda: command.target.counts()["total"] > 10)
    terminal.process.send_signal(signal.SIGTERM)
    code, after = terminal.end()
    assert code == 105 and "STEPS" in after


@pytest.mark.parametrize(
    ("more", "environment"),
    [((), {"CI": "true"}), (("--ui", "ci"), {}), ((), {"TERM": "dumb"}), (("-q",), {})],
)
def test_lines_where_no_screen_is_wanted(
    command: CommandLab, more: tuple[str, ...], environment: dict[str, str]
) -> None:
    run = words(command, FLOW, "-i", "3", "--exit-zero", *more)
    code, after = Terminal(command, *run, **environment).end()
    assert code == 0
    assert ENTER not in after and "STEPS" in after


def test_a_pipe_gets_lines_and_never_loads_the_library(command: CommandLab) -> None:
    for mode in ("full", "ci"):
        ended = command.process(
            "run",
            *words(command, FLOW, "-i", "3", "--ui", mode),
            PYTHONPROFILEIMPORTTIME="1",
        )
        assert "\x1b[" not in ended.err
        assert "squall.cli.shared.presenters" in ended.err, "imports are listed"
        assert not re.search(r"\| +(textual|rich|squall\.ui)", ended.err)
        assert "STEPS" in ended.out


def test_none_writes_nothing_but_its_files(command: CommandLab) -> None:
    ended = command.load(*words(command, FLOW, "-i", "3", "--ui", "none"))
    assert (ended.out, ended.err) == ("", "")
    assert ended.document["status"] == "completed"
    assert command.squall("run", "flow.py", "--ui", "loud").code == 2


BROKEN = {
    "cannot be imported": ("textual/__init__.py", "raise ImportError('it is broken')"),
    "lacks what it stands on": ("rich/__init__.py", "raise ImportError('it is broken')"),
    "fails while it draws": (
        "sitecustomize.py",
        """
import sys, importlib.abc, importlib.util
class Break(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "squall.ui.app":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            draw, calls = module.draw, []
            def broken(*words):
                calls.append(1)
                if len(calls) > 1:
                    raise ValueError("it is broken")
                return draw(*words)
            module.draw = broken
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Break())
""",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_screen_that_fails_never_costs_the_run(command: CommandLab, how: str) -> None:
    name, text = BROKEN[how]
    broken = command.folder / "broken" / name
    broken.parent.mkdir(parents=True)
    broken.write_text(text, encoding="utf-8")
    path = str(command.folder / "broken")
    terminal = Terminal(command, *words(command, FLOW, "-d", "3s", "--exit-zero"), PYTHONPATH=path)
    code, after = terminal.end()
    assert code == 0
    assert "the screen failed (" in after and "it is broken" in after
    assert re.search(r"00:0[123]/00:03  ", after), "lines take over"
    assert "STEPS" in after and "Traceback" not in after
    assert (command.folder / "results.json").exists()
