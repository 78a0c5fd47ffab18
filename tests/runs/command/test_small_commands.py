"""`new`, `explain`, `ping`, `target` and `demo`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from squall.cli.dev import demo
from tests.lab.target import running_target
from tests.runs.lab.command import GET, CommandLab

PYRIGHT_SETTINGS = '{"typeCheckingMode": "strict", "pythonVersion": "3.11"}'


def test_new_writes_a_file_that_runs_and_never_overwrites_one(command: CommandLab) -> None:
    ended = command.squall("new", "shop.py")
    assert ended.code == 0
    assert "squall run shop.py" in ended.out
    # A machine that stands still for half a second fails its threshold.
    file = command.folder / "shop.py"
    written = file.read_text(encoding="utf-8")
    assert "item.p(95) < 500ms" in written
    file.write_text(written.replace("< 500ms", "< 60s"), encoding="utf-8")
    assert command.load("shop.py", "-d", "1s", "-e", f"TARGET={command.target.url}").code == 0
    assert command.target.counts()["total"] > 0
    again = command.squall("new", "shop.py")
    assert again.code == 2 and "--force" in again.err
    assert command.squall("new", "shop.py", "--force").code == 0


def test_a_new_file_passes_the_linter_and_strict_type_checks(command: CommandLab) -> None:
    assert command.squall("new", "shop.py").code == 0
    (command.folder / "pyrightconfig.json").write_text(PYRIGHT_SETTINGS, encoding="utf-8")
    select = "E,F,W,I,B,UP,SIM,RUF,PERF,ASYNC"
    checks = [["ruff", "check", "--isolated", "--line-length", "100", "--select", select, "."]]
    checks += [["ruff", "format", "--isolated", "--line-length", "100", "--check", "."]]
    checks += [["pyright", "--pythonpath", sys.executable, "shop.py"]]
    for words in checks:
        program = shutil.which(words[0], path=str(Path(sys.executable).parent))
        assert program, f"{words[0]} is part of the development environment"
        done = subprocess.run(
            [program, *words[1:]], cwd=command.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_explain_shows_the_plan_and_sends_nothing(command: CommandLab) -> None:
    text = f"""
    class Shop(Workflow):
        @step()
        async def login(self, url: URL = "/login") -> HTTPResponse:
            {GET}

        @step("login")
        async def cart(self, url: URL = "/cart") -> HTTPResponse:
            {GET}

        @step("login")
        async def offers(self, url: URL = "/offers") -> HTTPResponse:
            {GET}

    @depends("Shop", when="always")
    class Teardown(Workflow):
        @step()
        async def clean(self) -> None: ...
    """
    words = ["--host", command.target.url, "-r", "500/s", "-d", "5m"]
    ended = command.squall("explain", command.write(text), *words)
    assert ended.code == 0
    assert "open 500/s for 5m = 150000 iterations, 450000 requests" in ended.out
    assert "login -> (cart | offers)" in ended.out
    assert re.search(r"order +Shop -> Teardown \(always\)", ended.out)
    assert ended.out.splitlines()[-1] == "no request was sent"
    counts = command.target.counts()
    assert (counts["total"], counts["connections"]["silent"]) == (0, 0)


def test_explain_tells_mistakes_like_a_run(command: CommandLab) -> None:
    ended = command.squall("explain", command.write("class A(Workflow): ...\n"))
    assert ended.code == 104
    assert ended.err.startswith("flow.py:2  A: has no steps")


def test_explain_checks_the_thresholds(command: CommandLab) -> None:
    flow = command.write(
        """
        class A(Workflow):
            thresholds = [
                "eu: home.p(99) < 1s",
                "http_req_duration: p(95) < 500",
            ]

            @step()
            async def home(self, url: URL = "http://127.0.0.1/") -> HTTPResponse:
                return await self.client.http.get(url)
        """
    )
    assert command.squall("explain", flow).code == 0
    ended = command.squall("explain", flow, "--threshold", "hoem.p(99) < 1s")
    assert ended.code == 104
    assert ended.err.startswith('threshold "hoem.p(99) < 1s", column 1: no step')
    (command.folder / flow).write_text(
        (command.folder / flow).read_text().replace("(95) < 500", "(95) < 5 parsecs")
    )
    ended = command.squall("explain", flow)
    assert ended.code == 104
    assert ended.err.startswith('flow.py:5  A: threshold "http_req_duration: p(95) < 5 parsecs"')


def test_files_of_the_working_directory_hide_no_module_of_a_run(command: CommandLab) -> None:
    # `resource` is imported by every core process, and not before it.
    command.write("raise RuntimeError('hides a module of Python')\n", "resource.py")
    command.write("ITERATIONS = 3\n", "helper.py")
    (command.folder / "flows").mkdir()
    flow = command.write(
        """
        from helper import ITERATIONS

        class A(Workflow):
            iterations = ITERATIONS

            @step()
            async def home(self, url: URL = "http://127.0.0.1/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
        "flows/flow.py",
    )
    ended = command.process("explain", flow)
    assert ended.code == 0, ended.err
    assert "3 iterations" in ended.out


def test_ping_shows_status_address_timings_and_body(command: CommandLab) -> None:
    ended = command.squall("ping", f"{command.target.url}/")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0] == f"200 OK  HTTP/1.1  12 B  from 127.0.0.1:{command.target.port}"
    for part in ("dns", "connect", "tls", "first byte", "whole"):
        assert part in lines[1]
    assert "hello world" in lines
    assert command.target.counts()["total"] == 1


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("http://127.0.0.1:1/", 1, "http://127.0.0.1:1/: connection refused"),
        ("http://no-such-host.invalid/", 1, "name does not resolve: no-such-host.invalid"),
        ("gopher://127.0.0.1/", 104, "must start with http:// or https://"),
    ],
)
def test_ping_says_in_one_line_why_there_is_no_answer(
    command: CommandLab, url: str, code: int, said: str
) -> None:
    ended = command.squall("ping", url)
    assert ended.code == code
    assert len(ended.lines) == 1 and said in ended.err
    assert ended.out == ""


def test_ping_of_a_server_that_does_not_answer_ends_with_a_line(command: CommandLab) -> None:
    url = f"{command.target.url}/?delay=60s"
    ended = command.squall("ping", url, "--timeout", "200ms")
    assert ended.code == 1
    assert ended.lines == [f"{url}: timeout after 0.2 s"]


def test_target_answers_as_its_query_says_and_counts(command: CommandLab) -> None:
    with running_target(["--count-field", "user"]) as target:
        assert command.squall("ping", f"{target.url}/a?status=503").out.startswith("503 ")
        assert command.squall("ping", f"{target.url}/b?size=3000").out.startswith("200 OK")
        assert "connection reset" in command.squall("ping", f"{target.url}/c?resets=1").err
        counts = target.counts()
        assert counts["paths"] == {"/a": 1, "/b": 1, "/c": 1}


def test_a_port_that_is_taken_is_one_line(command: CommandLab) -> None:
    ended = command.squall("target", "--port", str(command.target.port))
    assert ended.code == 2
    assert len(ended.lines) == 1 and "cannot listen on" in ended.err and "--port" in ended.err


def test_demo_loads_a_target_of_its_own(
    command: CommandLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that stands still for half a second fails its threshold.
    text = demo.WORKFLOW.read_text(encoding="utf-8")
    assert "pay.p(95) < 500ms" in text
    patient = command.folder / demo.WORKFLOW.name
    patient.write_text(text.replace("< 500ms", "< 60s"), encoding="utf-8")
    monkeypatch.setattr(demo, "WORKFLOW", patient)
    ended = command.squall("demo", "-d", "1s")
    assert ended.code == 0
    assert "STEPS" in ended.out and "login -> (cart | offers) -> pay" in ended.err
    assert command.target.counts()["total"] == 0


def test_help_names_every_exit_code(command: CommandLab) -> None:
    for words in (["--help"], ["run", "--help"]):
        ended = command.squall(*words)
        assert ended.code == 0
        for code in (0, 1, 2, 98, 99, 104, 105, 107):
            assert re.search(rf"^ +{code}  ", ended.out, re.MULTILINE)
