"""The reference pages say what the code says: `make reference` writes them."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import squall
from squall.api.http import HTTPVerbs
from squall.cli.main import COMMANDS
from squall.clients.http import HTTPClient
from tests.lab.programs import ROOT

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_maker", REFERENCE / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["api.md", "cli.md", "outputs.md", "rows.md"])
def test_a_page_is_what_the_code_would_write(maker: ModuleType, page: str) -> None:
    written = (REFERENCE / page).read_text(encoding="utf-8")
    assert written == maker.PAGES[page](), f"{page} is old: run `make reference`"


def test_everything_that_authors_import_has_an_entry() -> None:
    headings = re.findall(r"^### `(\w+)`$", (REFERENCE / "api.md").read_text(), re.MULTILINE)
    assert set(squall.__all__) - set(headings) == set()
    assert len(headings) == len(set(headings))


def test_every_command_has_an_entry() -> None:
    page = (REFERENCE / "cli.md").read_text()
    assert [word for word in COMMANDS if f"### `squall {word}`\n" not in page] == []


@pytest.mark.parametrize("verb", [name for name in vars(HTTPVerbs) if not name.startswith("_")])
def test_a_verb_explains_itself_at_run_time_too(verb: str) -> None:
    """What `help(self.client.http.get)` shows."""
    text = getattr(HTTPVerbs, verb).__doc__
    assert text
    assert getattr(HTTPClient, verb).__doc__ == text
