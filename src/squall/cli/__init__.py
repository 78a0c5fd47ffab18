"""Commands: nothing but parsing and calling."""

from __future__ import annotations


def command() -> int:
    """The `squall` of a shell. Ctrl-C while it is still being loaded is one line too."""
    try:
        from squall.cli.main import main
        from squall.cli.streams import forgive_stderr
    except KeyboardInterrupt:
        import sys

        print("squall: interrupted", file=sys.stderr)
        return 105
    forgive_stderr()
    return main()
