"""The documents lead somewhere, and the commands in them are commands.

Needs no network and no mkdocs: `make docs` builds the site from the same pages.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.api.errors import SquallError
from squall.cli.main import COMMANDS, _marked, build_parser
from squall.target.command import build_parser as target_parser
from tests.lab.documents import DOCS, anchors, command_lines, fenced, links, pages
from tests.lab.programs import ROOT

PAGES = pages()
SITE = ROOT / ".ci" / "site" / "mkdocs.yml"


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Links.


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken: list[str] = []
    for line, link in links(page):
        address, _, anchor = link.partition("#")
        if "://" in address:
            continue
        target = Path(os.path.normpath(page.parent / address)) if address else page
        if not target.exists():
            broken.append(f"{shown(page)}:{line}  {link}: no such file")
        elif target.is_dir():
            broken.append(f"{shown(page)}:{line}  {link}: a folder; link to a page")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{shown(page)}:{line}  {link}: no such heading")
    assert not broken, "\n".join(broken)


def test_every_page_can_be_reached_from_the_index() -> None:
    found: set[Path] = set()
    pending = [DOCS / "README.md"]
    while pending:
        page = pending.pop()
        if page in found or not page.exists():
            continue
        found.add(page)
        for _, link in links(page):
            target = Path(os.path.normpath(page.parent / link.partition("#")[0]))
            if target.suffix == ".md":
                pending.append(target)
    assert {shown(page) for page in PAGES} - {shown(page) for page in found} == set()


def test_the_navigation_of_the_site_names_every_page_once() -> None:
    named: list[str] = []

    def read(entry: Any) -> None:
        if isinstance(entry, str):
            named.append(entry)
        elif isinstance(entry, dict):
            for value in entry.values():
                read(value)
        else:
            for value in entry:
                read(value)

    # Tags such as !!python/name are for mkdocs.
    text = re.sub(r"!!python/\S+", "", SITE.read_text(encoding="utf-8"))
    read(yaml.safe_load(text)["nav"])
    there = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted(there)


# Commands.


def typed_lines(page: Path) -> Iterator[tuple[int, str, bool]]:
    """What a reader would type, also the commands in files for a CI."""
    for block in fenced(page):
        if block.language == "yaml":
            yield from ((block.line, text, True) for text in _strings(yaml.safe_load(block.text)))
    yield from command_lines(page)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def words_of(line: str) -> list[str]:
    """The words after `squall`; an empty list if the line is something else."""
    line = re.sub(r"\$\{\{.*?\}\}", "VALUE", line)
    match = re.match(r"(?:\w+=\S+ )*(?:\S*/)?squall (.*)$", line)
    if match is None or line.startswith("- "):
        return []
    words: list[str] = []
    for word in shlex.split(match[1], comments=True):
        if word in ("|", ">", "&&", "&", "2>", ">>"):
            break
        words.append(word)
    return words


def is_pattern(words: list[str]) -> bool:
    """Whether it describes commands instead of being one: `squall COMMAND [flags]`."""
    return (
        not words
        or words[0] not in COMMANDS
        or any(re.search(r"\[|\.\.\.|\w\|\w", w) for w in words)
    )


COMMAND_LINES = [
    pytest.param(words, is_whole, id=f"{shown(page)}:{number}")
    for page in PAGES
    # The reference is written from the parsers; old commands stay in the history of changes.
    if page.name != "CHANGELOG.md" and page.parent.name != "reference"
    for number, line, is_whole in typed_lines(page)
    if not is_pattern(words := words_of(line))
]


def test_there_are_commands_in_the_documents() -> None:
    assert len(COMMAND_LINES) > 100


@pytest.mark.parametrize(("words", "is_whole"), COMMAND_LINES)
def test_a_command_in_the_documents_is_one(words: list[str], is_whole: bool) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        if words[0] == "target":
            target_parser().parse_args(words[1:])
            return
        try:
            build_parser().parse_args(_marked(words))
        except SquallError as error:
            if not is_whole and re.search("are required|expected one argument", str(error)):
                return
            pytest.fail(f"squall {shlex.join(words)}: {error}")


# Files of others.


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{shown(page)}:{block.line}")
        for page in PAGES
        for block in fenced(page)
        if block.language == "yaml"
    ],
)
def test_yaml_in_the_documents_is_yaml(block: Any) -> None:
    assert yaml.safe_load(block.text)
