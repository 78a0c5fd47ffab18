"""How a run is presented: screen, lines or nothing, and with which characters."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

import squall.cli.shared.presenters as presenting
from squall.api.errors import UsageError
from squall.cli.shared.presenters import is_utf8, mode_of


class Stream(io.StringIO):
    def __init__(self, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._tty = tty
        self._encoding = encoding

    def isatty(self) -> bool:
        return self._tty

    @property
    def encoding(self) -> str:
        return self._encoding


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A person at a terminal, with stdout in a file."""
    for name in ("CI", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    # Not those of `sys` itself: pytest puts its own there between the phases of a test.
    streams = SimpleNamespace(stdin=Stream(tty=True), stderr=Stream(tty=True))
    monkeypatch.setattr(presenting, "sys", streams)
    return monkeypatch


def mode(wanted: str | None = None, *, quiet: bool = False, once: bool = False) -> str:
    return mode_of(wanted, quiet=quiet, once=once)


def test_a_person_at_a_terminal_gets_the_screen(terminal: pytest.MonkeyPatch) -> None:
    assert mode() == "full"
    assert mode("ci") == "ci"
    assert mode("none") == "none"
    assert mode(quiet=True) == mode(once=True) == mode("full", once=True) == "ci"


def test_ci_gets_lines_unless_the_screen_is_wanted(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("CI", "true")
    assert mode() == "ci"
    assert mode("full") == "full"


@pytest.mark.parametrize("name", ["stdin", "stderr"])
def test_without_a_terminal_on_both_sides_there_are_lines(
    terminal: pytest.MonkeyPatch, name: str
) -> None:
    terminal.setattr(presenting.sys, name, Stream(tty=False))
    assert mode() == mode("full") == "ci"


def test_a_terminal_that_can_nothing_gets_lines(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("TERM", "dumb")
    assert mode() == mode("full") == "ci"


def test_an_unknown_mode_is_refused(terminal: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--ui loud: write full, ci or none"):
        mode("loud")


@pytest.mark.parametrize(
    ("environment", "encoding", "wanted"),
    [
        ({}, "utf-8", True),
        ({"LANG": "en_US.UTF-8"}, "UTF8", True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, "utf-8", False),
        ({"LANG": "de_DE.ISO-8859-1"}, "iso8859-1", False),
        ({"LANG": "en_US.UTF-8"}, "ascii", False),
        ({"TERM": "linux"}, "utf-8", False),
    ],
)
def test_utf8_needs_the_stream_the_locale_and_a_font(
    terminal: pytest.MonkeyPatch, environment: dict[str, str], encoding: str, wanted: bool
) -> None:
    for name, value in environment.items():
        terminal.setenv(name, value)
    assert is_utf8(Stream(tty=True, encoding=encoding)) is wanted
