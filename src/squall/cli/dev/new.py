"""`squall new FILE`: writes a commented starter workflow; overwrites only with `--force`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from squall.api.errors import UsageError

STARTER = Path(__file__).with_name("starter_workflow.py")
"""A module of this package, so that lint and type checks cover what people get."""


def execute(arguments: Namespace) -> int:
    path = Path(arguments.file)
    if path.suffix != ".py":
        raise UsageError(f"{path}: a workflow is a Python file; name it {path.name}.py")
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(STARTER.read_text(encoding="utf-8"))
    except FileExistsError:
        raise UsageError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    print(f"wrote {path}; try it:")
    print("  squall target &        # a server to load, on 127.0.0.1:8080")
    print(f"  squall run {path} --once")
    print(f"  squall run {path} -d 10s")
    return 0
