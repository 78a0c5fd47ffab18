"""The built-in HTTP target: a server for demos and for tests of the numbers.

It sits above `stats` and `api` and is imported by the command line and by tests only.
"""

from squall.target.command import add_options, build_parser, main, run

__all__ = ["add_options", "build_parser", "main", "run"]
