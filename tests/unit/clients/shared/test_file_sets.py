"""Directories and patterns: which files they stand for, here and in a bundle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from squall.api.arguments import FileSet, argument_kinds
from squall.api.errors import ConfigError
from squall.clients.http import HTTPShared
from squall.clients.shared import file_sets
from squall.clients.shared.file_sets import expanded, named_files

KINDS = {kind.__name__: kind for kind in argument_kinds()}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("data/b.txt", "data/sub/a.txt", "data/c.png", "shop.py"):
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "files"


def prepared(kind: str, value: Any, base: Path) -> Any:
    return asyncio.run(HTTPShared(base_dir=base).prepare(KINDS[kind], value))


def refusal(kind: str, value: Any, base: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        prepared(kind, value, base)
    return str(caught.value)


def test_a_directory_has_all_its_files_in_the_order_of_their_paths(base: Path) -> None:
    found = prepared("Directory", "data", base)
    assert isinstance(found, FileSet)
    assert [str(file) for file in found] == ["b.txt", "c.png", "sub/a.txt"]
    assert [file.content for file in found] == [b"data/b.txt", b"data/c.png", b"data/sub/a.txt"]
    assert found[1].content_type == b"image/png" and found[2].name == "a.txt"


def test_a_pattern_has_the_files_that_match(base: Path) -> None:
    assert [str(file) for file in prepared("FileGlob", "data/**/*.txt", base)] == [
        "data/b.txt",
        "data/sub/a.txt",
    ]


def test_a_pattern_may_begin_above_the_workflow_file(base: Path) -> None:
    (base.parent / "up.txt").write_text("up")
    (found,) = prepared("FileGlob", "../u*.txt", base)
    assert (str(found), found.content) == ("../up.txt", b"up")


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("Directory", "nothing", "nothing: no such directory"),
        ("Directory", "shop.py", "shop.py: is not a directory"),
        ("Directory", ".", "contains the workflow file"),
        ("Directory", "..", "contains the workflow file"),
        ("FileGlob", "data/b.txt", '"data/b.txt" is no pattern'),
        ("FileGlob", "*.jpg", 'no file matches "*.jpg"'),
        ("FileGlob", 7, "a pattern is a path, not 7"),
    ],
)
def test_a_mistake_is_one_line(kind: str, value: Any, said: str, base: Path) -> None:
    line = refusal(kind, value, base)
    assert said in line and "\n" not in line


def test_too_many_files_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sets, "MOST_FILES", 2)
    assert "directory data has more than 2 files" in refusal("Directory", "data", base)
    monkeypatch.setattr(file_sets, "MOST_FILES", 3)
    monkeypatch.setattr(file_sets, "MOST_BYTES", 5)
    assert "data has more than" in refusal("Directory", "data", base)


def test_a_bundle_has_the_files_that_the_run_reads(base: Path) -> None:
    email = {"attachments": ["data/c.png", ("made.txt", "text")]}
    named = [
        *named_files(KINDS["Directory"], "data"),
        *named_files(KINDS["FileGlob"], "*/*.txt"),
        *named_files(KINDS["Email"], email),
        *named_files(KINDS["File"], "shop.py"),
        *named_files(KINDS["File"], ("made.txt", b"text")),
        *named_files(KINDS["Headers"], {"a": "b"}),
    ]
    assert named == ["data/", "*/*.txt", "data/c.png", "shop.py"]
    found = [path for name in named for path in expanded(name, base)]
    assert found == [
        *("data/b.txt", "data/c.png", "data/sub/a.txt"),
        *("data/b.txt", "data/c.png", "shop.py"),
    ]


def test_a_file_with_the_marks_of_a_pattern_in_its_name_is_itself(base: Path) -> None:
    (base / "a[1].txt").write_text("one")
    assert expanded("a[1].txt", base) == ["a[1].txt"]
