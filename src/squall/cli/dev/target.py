"""`squall target`: passes its arguments to the built-in server, which parses them itself."""

from __future__ import annotations

from argparse import Namespace

from squall.target import main


def execute(arguments: Namespace) -> int:
    return int(main(arguments.words))
