"""moto with conditional writes that are atomic, as those of S3 are.

moto checks `If-Match` and `If-None-Match` before it writes, and each request has a thread. Without
a lock, two writers of one object can both pass the check, both get 200, and one write is lost.
Run as a program it is `moto_server`, with the same options.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

PROGRAM = (sys.executable, __file__)
_LOCK = threading.Lock()


def make_writes_atomic() -> None:
    """Holds one lock over each write of an object. Its body has been read before."""
    from moto.s3.responses import S3Response

    for name in ("put_object", "delete_object"):
        write = getattr(S3Response, name)
        if not hasattr(write, "__wrapped__"):
            setattr(S3Response, name, _locked(write))


def _locked(write: Callable[..., Any]) -> Callable[..., Any]:
    def locked(*arguments: Any) -> Any:
        with _LOCK:
            return write(*arguments)

    locked.__wrapped__ = write  # type: ignore[attr-defined]
    return locked


if __name__ == "__main__":
    from moto.server import main

    make_writes_atomic()
    main()
