"""The line that is read from the stack of a process that cannot report it."""

from __future__ import annotations

from squall.engine.process.stack_signal import authors_place

STACK = """Stack (most recent call first):
  File "/usr/lib/python3.12/re/__init__.py", line 167 in match
  File "/data/bundles/abc/shop/prices.py", line 12 in cheapest
  File "/data/bundles/abc/flow.py", line 20 in get
"""


def test_the_innermost_line_of_the_author_is_named() -> None:
    assert authors_place(STACK, "/data/bundles/abc") == "shop/prices.py:12 in cheapest"
    assert authors_place(STACK, "/data/bundles/ab") == ""
    assert authors_place("", "/data/bundles/abc") == ""
