"""The commands: they parse, call and print. Start with `main`.

Each folder holds commands that belong together, and their flags in `flags`; `shared` holds what
several folders use.
"""

from __future__ import annotations

import os


def command() -> int:
    """The entry point of `squall`. Ctrl-C during the imports is reported in one line too."""
    # numpy loads OpenBLAS, which starts a thread per core in every process. Squall multiplies no
    # matrices: the threads cost a quarter of the import, and a machine with 64 cores has 4,096.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from squall.cli.main import main
        from squall.reporting.text.standard_streams import guard_stderr
    except KeyboardInterrupt:
        import sys

        print("squall: interrupted", file=sys.stderr)
        return 105
    guard_stderr()
    return main()
