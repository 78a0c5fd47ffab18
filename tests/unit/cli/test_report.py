"""`squall report`: the summary again, outputs without a run, bad input in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.cli.main import main


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "there is no such file"),
        ("{", "is cut off"),
        ("{}", "is not a results document"),
        ('{"schema": "squall.results/9"}', "newer Squall wrote it: update"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    content: str | None, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path), "--markdown", str(tmp_path / "m.md")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"squall report: {path}: ") and part in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert not (tmp_path / "m.md").exists()


def test_an_output_that_cannot_be_written_is_found_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "missing.json", "--csv", str(tmp_path / "no" / "a")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_without_files_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 2
    assert "RESULTS" in capsys.readouterr().err
