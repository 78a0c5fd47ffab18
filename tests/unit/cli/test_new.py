"""`squall new --ci`: a job that runs the file, with flags that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.cli.dev.ci_files import CI_FILES
from squall.cli.main import build_parser, main


def commands(value: Any) -> list[str]:
    """All texts of a document that begin with `squall`."""
    if isinstance(value, str):
        return [value] if value.startswith("squall ") else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in commands(item)]


@pytest.mark.parametrize("system", CI_FILES)
def test_a_job_runs_the_file_and_keeps_what_it_wrote(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "load/shop.py", "--ci", system]) == 0
    text = Path(CI_FILES[system].path).read_text(encoding="utf-8")
    (command,) = commands(yaml.safe_load(text))
    arguments = build_parser().parse_args(shlex.split(command)[1:])
    assert arguments.what == "load/shop.py"
    assert Path("load/shop.py").exists()
    for file in (arguments.json, arguments.html, arguments.junit):
        assert len(re.findall(re.escape(file), text)) > 1, file


def test_a_file_that_exists_is_kept_and_a_job_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text("mine", encoding="utf-8")
    assert main(["new", "shop.py", "--ci", "gitlab"]) == 0
    assert Path("shop.py").read_text(encoding="utf-8") == "mine"
    assert main(["new", "shop.py", "--ci", "gitlab"]) == 2
    assert ".gitlab-ci.yml exists; --force overwrites it" in capsys.readouterr().err
