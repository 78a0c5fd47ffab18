"""Imports the libraries of optional stores when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from squall.coordination.errors import ConfigurationError


def load_extra(module: str, extra: str) -> Any:
    """The module. Raises `ConfigurationError` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigurationError(
            f"this store needs {package}, which is not installed: pip install 'squall[{extra}]'"
        ) from None
