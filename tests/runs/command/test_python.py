"""`squall.run(...)` in a Python program, inside a loop, and under pytest."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import squall
from squall import Workflow, step
from squall.reporting.run_result import Result
from tests.runs.lab.command import GET, CommandLab
from tests.runs.lab.in_process import in_process

SHOP = f"""
    class Shop(Workflow):
        host = "HOST"
        vus = 2
        iterations = 6

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            {GET}
"""


@pytest.fixture
def command(command: CommandLab) -> CommandLab:
    """Its folder has `shop.py`, which loads the target."""
    command.write(SHOP.replace("HOST", command.target.url), "shop.py")
    return command


def python(command: CommandLab, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=command.folder,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(command.folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )


SHOP_CLASS = ("shop", "Shop")
"""A module of the folder and its class."""


def run_here(command: CommandLab, what: Any, **options: Any) -> Result:
    """`squall.run` in this process, with core threads."""
    with in_process(command.folder), contextlib.chdir(command.folder):
        sys.path.insert(0, str(command.folder))
        if isinstance(what, tuple):
            module, name = what
            what = getattr(importlib.import_module(module), name)
        return squall.run(what, **options)


def test_a_class_a_path_and_a_url_can_be_run(
    command: CommandLab, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_here(command, SHOP_CLASS, workers=1)
    assert (result.passed, result.step("home").count) == (True, 6)
    assert result.step("home").p(95) > 0
    by_path = run_here(command, "shop.py", iterations=4, workers=1)
    assert by_path.workflow("Shop").iteration.count == 4
    by_url = run_here(command, f"{command.target.url}/x", iterations=3, workers=1)
    assert by_url.step("get").count == 3
    with pytest.raises(KeyError, match='no step "hmoe"; known: home'):
        result.step("hmoe")
    assert capsys.readouterr() == ("", "")
    assert command.target.counts()["paths"] == {"/": 10, "/x": 3}


def test_each_workflow_has_a_load_of_its_own(command: CommandLab) -> None:
    command.write(
        f"{textwrap.dedent(SHOP)}{textwrap.dedent(SHOP).replace('Shop', 'Blog')}".replace(
            "HOST", command.target.url
        ),
        "both.py",
    )
    load = {"Shop": {"iterations": 3}, "Blog": {"vus": 1, "iterations": 5}}
    result = run_here(command, "both.py", workers=1, load=load)
    made = {each.name: each.iteration.count for each in result.workflows}
    assert made == {"Shop": 3, "Blog": 5}
    for wrong, said in (
        ({"Shpo": {"vus": 1}}, 'no workflow "Shpo"; did you mean "Shop"|known: Shop, Blog'),
        ({"Shop": {"vos": 1}}, 'load of Shop has no "vos"; known: vus'),
        ({"Shop": 5}, "load of Shop=5 is not a mapping"),
        (5, "load=5 is not a mapping"),
    ):
        with pytest.raises(squall.SquallError, match=said):
            run_here(command, "both.py", workers=1, load=wrong)
    assert command.target.counts()["total"] == 8


def test_a_class_whose_state_goes_to_another_runs_alone(command: CommandLab) -> None:
    command.write(
        f"""
        class Buy(Workflow):
            host = "{command.target.url}"
            iterations = 2

            @step()
            async def order(self, url: URL = "/order") -> HTTPResponse:
                {GET}

            @state("Audit")
            def number(self) -> Provide[int]:
                return 7

        @depends("Buy")
        class Audit(Workflow):
            host = "{command.target.url}"
            iterations = 3

            @step()
            async def look(self, number: int = 0) -> HTTPResponse:
                return await self.client.http.get(f"/audit/{{number}}")
        """,
        "audit.py",
    )
    assert run_here(command, ("audit", "Buy"), workers=1).passed
    assert command.load("audit.py", "--only", "Buy").code == 0
    assert command.load("audit.py", "--skip", "Buy").code == 0
    assert command.target.counts()["paths"] == {"/order": 4, "/audit/0": 3}
    assert command.load("audit.py", "--only", "Audit").code == 0
    assert command.target.counts()["paths"] == {"/order": 6, "/audit/0": 3, "/audit/7": 3}


def test_a_run_inside_a_running_loop_works(command: CommandLab) -> None:
    async def main() -> int:
        return run_here(command, SHOP_CLASS, workers=1).step("home").count

    assert asyncio.run(main()) == 6


def test_mistakes_are_exceptions_with_the_same_words(command: CommandLab) -> None:
    class Inner(Workflow):
        @step()
        async def home(self) -> None: ...

    for what, options, said in (
        (Inner, {}, "^Inner is defined inside a function"),
        ("nowhere.py", {}, "nowhere.py"),
        (SHOP_CLASS, {"rate": "5/s", "iterations": 3}, "contradict each other"),
        (SHOP_CLASS, {"thresholds": ["hmoe.p(95) < 1s"]}, 'did you mean "home"\\?'),
    ):
        with pytest.raises(squall.SquallError, match=said):
            run_here(command, what, **options)
    assert command.target.counts()["total"] == 0


def test_a_class_that_was_typed_in_is_told_to_live_in_a_file(command: CommandLab) -> None:
    text = "import squall\nclass Typed(squall.Workflow): ...\nsquall.run(Typed)\n"
    done = python(command, "-c", text)
    assert "ConfigError: Typed was typed interactively and has no file" in done.stderr
    assert "During handling" not in done.stderr


def test_a_file_that_runs_itself_while_it_is_loaded_is_told_what_to_write(
    command: CommandLab,
) -> None:
    shop = (command.folder / "shop.py").read_text(encoding="utf-8")
    itself = command.folder / "itself.py"
    itself.write_text(f"{shop}\nimport squall\nsquall.run(Shop)\n", encoding="utf-8")
    for said in (python(command, "itself.py").stderr, command.squall("run", "itself.py").err):
        assert 'put it under if __name__ == "__main__":' in said
        assert "itself.py:12" in said
    assert command.target.counts()["total"] == 0
    guarded = f'{shop}\nimport squall\nif __name__ == "__main__":\n    print(squall.run(Shop))\n'
    itself.write_text(guarded, encoding="utf-8")
    assert python(command, "itself.py").stdout.startswith("<Result passed, ")


def test_a_run_under_pytest_is_an_ordinary_test(command: CommandLab) -> None:
    text = """
    import squall
    from shop import Shop

    def test_home_answers() -> None:
        result = squall.run(Shop, workers=1)
        assert result.passed
        assert result.step("home").failed == 0
    """
    (command.folder / "test_home.py").write_text(textwrap.dedent(text), encoding="utf-8")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "test_home.py"]
    done = python(command, *words)
    assert done.returncode == 0, done.stdout
    assert command.target.counts()["total"] == 6


def test_files_are_written_and_secrets_are_not_in_them(command: CommandLab) -> None:
    result = run_here(
        command,
        "shop.py",
        workers=1,
        secrets={"TOKEN": "127.0.0.1"},
        html="report.html",
        junit=command.folder / "junit.xml",
        json="results.json",
    )
    assert result.passed
    assert "<testsuite" in (command.folder / "junit.xml").read_text(encoding="utf-8")
    assert "<html" in (command.folder / "report.html").read_text(encoding="utf-8")
    assert "127.0.0.1" not in (command.folder / "results.json").read_text(encoding="utf-8")


def test_files_are_written_inside_a_loop(command: CommandLab) -> None:
    async def inside() -> Result:
        return run_here(command, "shop.py", workers=1, json="inside.json")

    assert asyncio.run(inside()).passed
    assert (command.folder / "inside.json").stat().st_size > 0


def test_a_place_that_cannot_be_written_is_refused_before_the_run(command: CommandLab) -> None:
    with pytest.raises(squall.SquallError, match="html"):
        run_here(command, "shop.py", html=str(command.folder / "nowhere" / "report.html"))
    assert command.target.counts()["total"] == 0
