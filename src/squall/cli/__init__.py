"""The commands: they parse, call and print. Start with `main`.

Each folder holds commands that belong together, and their flags in `flags`; `shared` holds what
several folders use.
"""

from __future__ import annotations


def command() -> int:
    """The entry point of `squall`. Ctrl-C during the imports is reported in one line too."""
    try:
        from squall.cli.main import main
        from squall.reporting.text.standard_streams import guard_stderr
    except KeyboardInterrupt:
        import sys

        print("squall: interrupted", file=sys.stderr)
        return 105
    guard_stderr()
    return main()
