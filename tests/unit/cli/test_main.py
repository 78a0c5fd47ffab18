"""The command: arguments, exit codes, one line per mistake."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import squall.cli.main as cli
from squall.api.errors import AuthorError, ConfigError, SquallError, UsageError
from squall.cli.dev.new import STARTER


def failing(error: BaseException) -> ModuleType:
    module = ModuleType("failing")

    def execute(arguments: Any) -> int:
        raise error

    module.execute = execute  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("--rate 5x: no"), 2, "squall run: --rate 5x: no\n"),
        (ConfigError("shop.py:31  Shop.pay: no"), 104, "shop.py:31  Shop.pay: no\n"),
        (AuthorError("shop.py:3  ImportError: x"), 107, "shop.py:3  ImportError: x\n"),
        (SquallError("broken"), 1, "broken\n"),
        (KeyboardInterrupt(), 105, "squall run: interrupted\n"),
    ],
)
def test_a_foreseeable_mistake_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def loaded(name: str) -> ModuleType:
        return failing(error) if name == "squall.cli.run.command" else import_module(name)

    monkeypatch.setattr(cli, "import_module", loaded)
    assert cli.main(["run", "shop.py"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", line)


@pytest.mark.parametrize(
    "words",
    [[], ["sprint"], ["run"], ["run", "a.py", "--fast"], ["run", "a.py", "--dur", "5s"], ["new"]],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("squall")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_lists_the_exit_codes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for code in ("0", "1", "2", "3", "98", "99", "104", "105", "107"):
        assert f"{code:>5}  " in text
    if words[0] == "run":
        assert "processes, default one per core" in text


@pytest.mark.parametrize("word", sorted(cli.COMMANDS))
def test_every_command_has_help_and_a_module_that_executes_it(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.build_parser().parse_args([word, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: squall {word}")
    command = cli.COMMANDS[word]
    assert callable(import_module(f"squall.cli.{command.folder}.{command.module}").execute)


def test_new_writes_a_starter_and_never_overwrites_it_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.py"
    assert cli.main(["new", str(path)]) == 0
    assert path.read_text() == STARTER.read_text()
    ast.parse(path.read_text())
    path.write_text("mine")
    assert cli.main(["new", str(path)]) == 2
    assert path.read_text() == "mine"
    assert "--force overwrites it" in capsys.readouterr().err
    assert cli.main(["new", str(path), "--force"]) == 0
    assert path.read_text() == STARTER.read_text()


@pytest.mark.parametrize("name", ["shop", "missing/shop.py"])
def test_new_explains_a_name_it_cannot_use(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith("squall new: ")


def test_reading_a_command_line_loads_nothing_heavy() -> None:
    """Core processes can start only after these imports: they must stay light."""
    code = (
        "import sys\n"
        "from squall.cli.main import build_parser\n"
        "from squall.cli.shared.run_options import run_options\n"
        "import squall.reporting.text.columns, squall.reporting.output_files\n"
        "run_options(build_parser().parse_args(['run', 'shop.py', '-u', '5']))\n"
        "heavy = {'numpy', 'rich', 'uvloop', 'httptools'} & set(sys.modules)\n"
        "print(sorted(heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


@pytest.mark.skipif(os.cpu_count() == 1, reason="a single core has no further threads")
@pytest.mark.parametrize(("asked", "threads"), [("", 1), ("2", 2)])
def test_its_processes_have_no_threads_for_matrices_unless_they_are_asked_for(
    asked: str, threads: int
) -> None:
    code = (
        "import contextlib, os, sys; from squall.cli import command; sys.argv[1:] = ['--version']\n"
        "with contextlib.suppress(SystemExit): command()\n"
        "import numpy; print(len(os.listdir('/proc/self/task')))"
    )
    others = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    environment = others | ({"OPENBLAS_NUM_THREADS": asked} if asked else {})
    words = [sys.executable, "-c", code]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert int(ended.stdout.split()[-1]) == threads
