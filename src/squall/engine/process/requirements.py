"""Checks whether a file can run here: the Python version and the modules that it imports.

Runs before any of the author's code, and names everything that is missing in one line. It only
searches for modules; importing one would run the author's code.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

from squall.api.errors import ConfigError
from squall.engine.process.scratch_folder import python_version


def check_python(wanted: str) -> None:
    """Raises ConfigError if the file was bundled with another x.y; empty accepts any."""
    if wanted and wanted != python_version():
        raise ConfigError(
            f"made with Python {wanted}, but this worker runs Python {python_version()} "
            f"({sys.executable}): use the same version on both sides"
        )


def check_requirements(modules: Iterable[str]) -> None:
    """Raises a ConfigError that names every missing module."""
    missing = sorted({name for name in modules if not _is_there(name)})
    if missing:
        noun = "module" if len(missing) == 1 else "modules"
        raise ConfigError(
            f"{noun} not installed on this worker: {', '.join(missing)} "
            f"({sys.executable} -m pip install ...)"
        )


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
