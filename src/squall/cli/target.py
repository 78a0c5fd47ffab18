"""`squall target`: hands its words to the built-in server, which knows its options."""

from __future__ import annotations

from argparse import Namespace

from squall.target import main


def execute(arguments: Namespace) -> int:
    return int(main(arguments.words))
