"""The messages that the page of troubleshooting explains are messages that Squall prints.

The page shows them with values filled in, so a part of each message is looked up in the strings of
the product. Reading the source as text costs a tenth of parsing it.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.lab.documents import DOCS
from tests.lab.programs import ROOT

PAGE = DOCS / "troubleshooting.md"
PART_MIN = 14
"""A shorter part could be found by chance."""


@cache
def product() -> str:
    """The source without docstrings and comments; strings that continue on the next line are
    joined, and values that are filled in are `{}`."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))
    )
    text = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    text = re.sub(r"^ *#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"""["']\n *f?["']""", "", text)
    return re.sub(r"{[^{}\n]*}", "{}", text)


def messages() -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def is_printed(message: str) -> bool:
    """Whether a string of the product has at least 30 % of the message in one piece. A number is
    a value that the product fills in."""
    message = re.sub(r"\d[\d.]*", "{}", message)
    length = min(len(message), max(PART_MIN, int(0.3 * len(message))))
    starts = range(len(message) - length + 1)
    return any(message[start : start + length] in product() for start in starts)


def test_the_page_has_messages() -> None:
    assert len(messages()) > 30


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_page_is_one_that_squall_prints(message: str) -> None:
    assert is_printed(message), f"no string of the product matches: {message}"


@pytest.mark.parametrize(
    "message",
    [
        "Shop.home kept the loop to itself for 84 % of the time at shop.py:14",
        "Shop lost 3 of its 40 shoppers on their way to the till",
        'no steps called "crat" exist, perhaps "cart"?',
    ],
)
def test_a_message_that_squall_does_not_print_is_found(message: str) -> None:
    assert not is_printed(message)
