"""`python -m squall` is the `squall` command."""

from __future__ import annotations

import sys

from squall.cli import command

if __name__ == "__main__":
    sys.exit(command())
