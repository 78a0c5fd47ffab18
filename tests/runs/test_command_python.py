"""`squall.run(...)` in a Python program of its own, and under pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from command_lab import GET, CommandLab

from target_fixture import TargetHandle

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
def command(tmp_path: Path, target: TargetHandle) -> CommandLab:
    lab = CommandLab(tmp_path, target)
    lab.write(SHOP.replace("HOST", target.url), "shop.py")
    return lab


def python(command: CommandLab, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=command.folder,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": str(command.folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def program(command: CommandLab, text: str) -> subprocess.CompletedProcess[str]:
    (command.folder / "program.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return python(command, "program.py")


def test_a_class_a_path_and_a_url_can_be_run(command: CommandLab) -> None:
    done = program(
        command,
        f"""
        import squall
        from shop import Shop

        result = squall.run(Shop, workers=1)
        print(result.passed, result.step("home").count, result.step("home").p(95) > 0)
        print(squall.run("shop.py", iterations=4, workers=1).workflow("Shop").iteration.count)
        print(squall.run("{command.target.url}/x", iterations=3, workers=1).step("get").count)
        try:
            result.step("hmoe")
        except KeyError as error:
            print(error)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "True 6 True",
        "4",
        "3",
        "'no step \"hmoe\"; known: home'",
    ]
    assert done.stderr == ""
    assert command.target.counts()["paths"] == {"/": 10, "/x": 3}


def test_a_run_inside_a_running_loop_works(command: CommandLab) -> None:
    done = program(
        command,
        """
        import asyncio
        import squall
        from shop import Shop

        async def main() -> None:
            print(squall.run(Shop, workers=1).step("home").count)

        asyncio.run(main())
        """,
    )
    assert done.stdout == "6\n", done.stderr


def test_mistakes_are_exceptions_with_the_same_words(command: CommandLab) -> None:
    done = program(
        command,
        """
        import squall
        from shop import Shop

        def inner():
            class Inner(squall.Workflow):
                @squall.step()
                async def home(self) -> None: ...
            return Inner

        for what, options in (
            (inner(), {}),
            ("nowhere.py", {}),
            (Shop, {"rate": "5/s", "iterations": 3}),
            (Shop, {"thresholds": ["hmoe.p(95) < 1s"]}),
        ):
            try:
                squall.run(what, **options)
            except squall.SquallError as error:
                print(error)
        """,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("Inner is defined inside a function")
    assert "nowhere.py" in said[1]
    assert "contradict each other" in said[2]
    assert 'did you mean "home"?' in said[3]
    assert command.target.counts()["total"] == 0


def test_a_class_that_was_typed_in_is_told_to_live_in_a_file(command: CommandLab) -> None:
    text = "import squall\nclass Typed(squall.Workflow): ...\nsquall.run(Typed)\n"
    done = python(command, "-c", text)
    assert "ConfigError: Typed was typed in and has no file" in done.stderr
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
    assert "passed" in python(command, "itself.py").stdout


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
