"""The argument parser of every command: errors in one line, and flags that are read late.

Nothing here may import more than argparse needs, because every command reads it first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from squall.api.errors import UsageError

EXIT_CODES = """\
exit codes:
    0  passed
    1  internal error
    2  usage: the command line is wrong
    3  cluster or store unreachable
   98  result invalid: the generator could not keep up, or load was lost
   99  a threshold failed
  104  bad configuration: a mistake in the workflow file or a setting
  105  interrupted (Ctrl-C); summary and results are still written
  107  the author's code raised outside a step
"""

SIDES = "\0--"
"""Replaces `--` among the files of `compare`, because argparse drops it; no file can have this
name."""

Group = argparse._ArgumentGroup  # pyright: ignore[reportPrivateUsage]
Flags = Callable[["Parser"], None]
"""Adds the flags of one command to its parser."""


class Parser(argparse.ArgumentParser):
    """Reports a mistake as one line, because a whole usage text would scroll the line away.

    `flags` is called when the parser is first used: a command line reads the flags of its own
    command and of no other.
    """

    def __init__(self, *, flags: Flags | None = None, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # An abbreviation that works today would be ambiguous with an option of tomorrow.
        super().__init__(allow_abbrev=False, **settings)
        self._flags = flags

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self.read_flags()
        return super().parse_known_args(args, namespace)

    def read_flags(self) -> None:
        """Adds the flags of this parser, once."""
        flags, self._flags = self._flags, None
        if flags is not None:
            flags(self)

    def add_commands(self, dest: str, metavar: str = "COMMAND") -> Callable[..., Parser]:
        """The function that adds one subcommand; the chosen one will be in `dest`."""
        return self.add_subparsers(
            dest=dest, metavar=metavar, required=True, parser_class=Parser
        ).add_parser

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")
