"""Programs of the tests: modules of this package that run as processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program(module: str, *words: str) -> list[str]:
    """The command of a module; start it with `cwd=ROOT`, where `tests` is importable."""
    return [sys.executable, "-m", module, *words]
