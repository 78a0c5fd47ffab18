"""`squall run` around the engine: what goes where, and the exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import squall.cli.run.command as run
from squall.api.errors import ExitCode
from squall.cli.main import main
from squall.reporting.text.standard_streams import wants_color
from squall.stats.manifest import FileManifest, WorkflowManifest


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the engine: records the options, prints a line, ends as requested."""
    seen = SimpleNamespace(options=None, code=ExitCode.PASSED)

    async def run_local(options: Any, **callbacks: Any) -> Any:
        seen.options = options
        workflow = WorkflowManifest(name="Shop", shape="home")
        manifest = FileManifest(path="shop.py", workflows=[workflow])
        callbacks["on_manifest"](manifest, 2)
        callbacks["on_log"]("[Shop 17]", "hello from a step")
        return SimpleNamespace(exit_code=seen.code, text="token", manifest=manifest)

    monkeypatch.setattr(run, "run_local", run_local)
    monkeypatch.setattr(
        "squall.reporting.text.summary.render_summary",
        lambda outcome, **kw: f"SUMMARY {kw} {outcome.text}",
    )
    monkeypatch.setattr(
        "squall.reporting.document.build.build_document",
        lambda outcome: {"schema": "x", "run": {"id": "7"}, "text": outcome.text},
    )
    return seen


def test_results_go_to_stdout_and_progress_to_stderr(
    engine: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "shop.py", "--columns", "p50,max"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "SUMMARY {'columns': ('p50', 'max'), 'color': False} token\n"
    assert captured.err.splitlines() == [
        "shop.py  Shop  1 user for 1m  home  2 processes",
        "[Shop 17] hello from a step",
    ]
    assert engine.options.file == "shop.py"


def test_quiet_leaves_out_progress_but_not_what_the_author_prints(
    engine: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "shop.py", "-q"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "[Shop 17] hello from a step\n"
    assert captured.out.startswith("SUMMARY")


def test_secrets_stay_out_of_what_is_printed(
    engine: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "shop.py", "--secret", "A=token", "--secret", "B=hello"]) == 0
    captured = capsys.readouterr()
    assert "token" not in captured.out
    assert captured.err.splitlines()[-1] == "[Shop 17] *** from a step"
    assert engine.options.secrets == {"A": "token", "B": "hello"}


@pytest.mark.parametrize(
    ("code", "words", "exit_code"),
    [
        (ExitCode.THRESHOLDS, [], 99),
        (ExitCode.INVALID, [], 98),
        (ExitCode.THRESHOLDS, ["--exit-zero"], 0),
        (ExitCode.INVALID, ["--exit-zero"], 0),
        (ExitCode.INTERRUPTED, ["--exit-zero"], 105),
        (ExitCode.AUTHOR, ["--exit-zero"], 107),
    ],
)
@pytest.mark.usefixtures("capsys")
def test_exit_zero_excuses_bad_results_only(
    engine: SimpleNamespace, code: ExitCode, words: list[str], exit_code: int
) -> None:
    engine.code = code
    assert main(["run", "shop.py", *words]) == exit_code


def test_the_document_is_written_and_a_bad_place_found_before_the_run(
    engine: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "shop.py", "--json", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == "x"
    engine.options = None
    assert main(["run", "shop.py", "--json", str(tmp_path / "no" / "r.json")]) == 2
    assert engine.options is None, "the run must not start"
    assert capsys.readouterr().err.splitlines()[-1].startswith("squall run: --json ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "no_color", "wanted"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colour_needs_a_terminal_and_no_setting_against_it(
    environment: dict[str, str], no_color: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_color(Terminal(), no_color=no_color) is wanted
    assert wants_color(io.StringIO(), no_color=False) is False
