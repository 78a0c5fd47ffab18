"""Whether a file can run here: the same Python, and the third-party modules it imports.

Asked before anything of the author's runs: all that is missing is named in one line.
It must never import a module; finding it is enough.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

from squall.api.errors import ConfigError
from squall.engine.scratch import python_version


def check_python(wanted: str) -> None:
    """ConfigError when the file comes from another x.y; empty: any will do."""
    if wanted and wanted != python_version():
        raise ConfigError(
            f"made with Python {wanted}, and this worker runs Python {python_version()} "
            f"({sys.executable}): use the same version on both sides"
        )


def check_requirements(modules: Iterable[str]) -> None:
    """ConfigError names every module that is not there."""
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
