"""The `squall` command as a person uses it: its words, exit code, streams and files.

`squall` and `load` call the command inside the test, with core threads. `start` and
`process` start the installed program for what only a process shows: signals, deaths, its
exit code and the screen. A process is interrupted the way a terminal does it, which sends
Ctrl-C to the whole process group.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from squall.cli.main import main
from tests.lab.programs import ROOT
from tests.lab.target import TargetHandle
from tests.runs.lab.in_process import in_process

SQUALL = Path(sys.executable).with_name("squall")
EXAMPLES = ROOT / "examples"
ENDS_WITHIN_S = 100.0
"""Far beyond any run of these tests: it only keeps a hanging one from staying."""
IMPORTS = (
    "import os, sys, time; from squall import (URL, Auth, Counter, Data, Feed, Form, "
    "HTTPResponse, Provide, Resource, Use, Workflow, action, bearer, check, depends, env, "
    "metric, state, step, then)\n"
)
"""One line, so that line 2 of a file is the first line a test writes."""
GET = "return await self.client.http.get(url)"


@dataclass(frozen=True)
class Ended:
    """What is left of a command: its exit code and what it said."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def document(self) -> dict[str, Any]:
        """What `--json results.json` wrote."""
        return json.loads((self.folder / "results.json").read_text(encoding="utf-8"))

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()

    @property
    def first_line(self) -> str:
        """The first line of the summary."""
        return self.out.splitlines()[0]

    def without_traceback(self) -> bool:
        return "Traceback" not in self.err and "Traceback" not in self.out


class Started:
    """A command that runs; it leads a process group, as one typed into a shell does."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, errors: int) -> None:
        self.process = process
        self.folder = folder
        self._errors = errors

    @property
    def said(self) -> str:
        """What stands on its standard error by now."""
        return os.pread(self._errors, os.fstat(self._errors).st_size, 0).decode(errors="replace")

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def cores(self) -> list[int]:
        """Process ids of its core processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in children.read_text(encoding="ascii").split()]

    def end(self) -> Ended:
        try:
            out, _ = self.process.communicate(timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            out, _ = self.process.communicate()
            raise AssertionError(f"did not end; it said:\n{self.said}\n{out}") from None
        err = self.said
        os.close(self._errors)
        return Ended(self.process.returncode, out, err, self.folder)


class CommandLab:
    """One folder with files, one target, and the command."""

    def __init__(self, folder: Path, target: TargetHandle) -> None:
        self.folder = folder
        self.target = target

    def write(self, text: str, name: str = "flow.py") -> str:
        body = textwrap.dedent(text).lstrip("\n")
        (self.folder / name).write_text(IMPORTS + body, encoding="utf-8")
        return name

    def start(self, *words: str, **environment: str) -> Started:
        errors = os.memfd_create("standard error")
        process = subprocess.Popen(
            [str(SQUALL), *words],
            cwd=self.folder,
            env=clean_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        return Started(process, self.folder, errors)

    def process(self, *words: str, **environment: str) -> Ended:
        """`squall WORDS` in a process of its own."""
        return self.start(*words, **environment).end()

    def squall(self, *words: str, **environment: str) -> Ended:
        """`squall WORDS`, called inside the test."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            patch.dict(os.environ, clean_environment(environment), clear=True),
            in_process(self.folder),
        ):
            try:
                code = main(list(words))
            except SystemExit as exit:
                # `--help` and `--version` end the program where they stand.
                code = int(exit.code or 0)
        return Ended(code, out.getvalue(), err.getvalue(), self.folder)

    def load(self, *words: str, **environment: str) -> Ended:
        """`squall run WORDS`, with a document and, unless they say so, one core."""
        options = ["--json", "results.json"]
        options += [] if "--workers" in words else ["--workers", "1"]
        return self.squall("run", *words, *options, **environment)

    def passes(self, name: str, *words: str) -> Ended:
        """The run passed, nothing failed, and the target counted what it sent."""
        ended = self.load(name, *words)
        self.check_passed(ended)
        return ended

    def check_passed(self, ended: Ended, counted: int | None = None) -> None:
        """`counted` is the count of a server of the test's own; without it the target has to have
        seen all requests."""
        assert ended.code == 0, ended.err + ended.out
        document = ended.document
        assert document["passed"] is True
        assert sent(document) == (self.target.counts()["total"] if counted is None else counted)
        for workflow in document["workflows"]:
            assert workflow["status"] == "completed"
            for row in [*workflow["steps"], workflow["iteration"]]:
                assert row["count"] == row["ok"] > 0
                assert row["interrupted"] == 0


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "what the test waits for did not come"
        time.sleep(0.02)


def sent(document: dict[str, Any]) -> int:
    return sum(workflow["requests"]["sent"] for workflow in document["workflows"])


def milliseconds(cell: str) -> float:
    """`0.892 ms`, `74.5 us` or `1.20 s`, as a cell of a table shows a time."""
    found = re.fullmatch(r"([\d.]+) (us|ms|s)", cell)
    assert found, cell
    return float(found[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]


def clean_environment(added: dict[str, str]) -> dict[str, str]:
    # The environment of the developer must not change what the tests see.
    hidden = ("NO_COLOR", "FORCE_COLOR", "TARGET", "API_TOKEN", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | added
