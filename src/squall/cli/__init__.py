"""The commands: they parse, call and print. Start with `main`.

Each folder holds commands that belong together, and their flags in `flags`; `shared` holds what
several folders use.
"""

from __future__ import annotations

import os
import sys


def command() -> int:
    """The entry point of `squall`. Ctrl-C during the imports is reported in one line too."""
    _open_missing_streams()
    # numpy loads OpenBLAS, which starts a thread per core in every process. Squall multiplies no
    # matrices: the threads cost a quarter of the import, and a machine with 64 cores has 4,096.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from squall.cli.main import main
        from squall.reporting.text.standard_streams import guard_stderr
    except KeyboardInterrupt:
        print("squall: interrupted", file=sys.stderr)
        return 105
    guard_stderr()
    return main()


def _open_missing_streams() -> None:
    """Opens /dev/null for each standard stream that the caller closed (`squall run ... >&-`, some
    supervisors). Otherwise the next file or socket gets its number, and libuv ends the process."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, os.O_RDWR)
        # Processes that this one starts inherit it.
        os.dup2(null, number)
        if null != number:
            os.close(null)
        else:
            os.set_inheritable(number, True)
        setattr(sys, name, os.fdopen(number, mode, closefd=False))
