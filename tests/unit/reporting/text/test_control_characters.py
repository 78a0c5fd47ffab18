"""Text of others cannot control the terminal, wherever it is printed."""

from __future__ import annotations

import io
from typing import cast

import pytest

from squall.reporting.text.control_characters import cell_text, cleaned, one_line
from squall.reporting.text.layout import Paint
from squall.reporting.text.standard_streams import TextStream, print_json, print_or_drop

HARMFUL = [
    ("w1\x1b[2J\x1b[H cleared", "w1 cleared"),
    ("w1\x1b]0;title\x07 renamed", "w1 renamed"),
    ("w1\x1b]52;c;c2VjcmV0\x1b\\ clipboard", "w1 clipboard"),
    ("w1\x1bP1$r\x1b\\ device", "w1 device"),
    ("w1\x1b]8;;http://evil unfinished", "w1"),
    ("w1\x9b2J\x9d0;t\x9c eight bits", "w1 eight bits"),
    ("VALID\rINVALID", "VALIDINVALID"),
    ("back\x08\x08space\x7f", "backspace"),
    ("bell\x07 null\x00 shift\x0e\x0f", "bell null shift"),
    ("lone \x1b", "lone "),
    ("charset \x1b(0", "charset "),
    ("reverse\u202e txt\u2066 \u2028", "reverse txt "),
    ("colour \x1b[31mred\x1b[0m, \x1b[5mblinks", "colour \x1b[31mred\x1b[0m, blinks"),
    ("as it is: é 漢 🙂\ttab\nline", "as it is: é 漢 🙂\ttab\nline"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), HARMFUL)
def test_a_text_of_others_is_harmless_on_stdout_and_stderr(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cleaned(text) == shown
    print_or_drop(text)
    assert capsys.readouterr().out == f"{shown}\n"
    stream = io.StringIO()
    print(text, file=cast(io.StringIO, TextStream(stream)))
    assert stream.getvalue() == f"{shown}\n"


@pytest.mark.parametrize("text", [text for text, _ in HARMFUL])
def test_a_cell_of_the_screen_holds_no_control_character(text: str) -> None:
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in cell_text(text))


@pytest.mark.parametrize("shade", ["good", "warn", "bad", "strong", "dim"])
def test_the_colours_of_squall_stay(shade: str) -> None:
    painted = Paint(True)("VALID", shade)  # type: ignore[arg-type]
    assert cleaned(painted) == painted != "VALID"


def test_a_text_of_others_cannot_pass_for_a_second_line() -> None:
    assert one_line("ended\n  12.0 s  all is well") == "ended   12.0 s  all is well"


def test_data_for_programs_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "a\x9bb"})
    assert capsys.readouterr().out == '{"name":"a\x9bb"}\n'
