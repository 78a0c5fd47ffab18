"""Optional libraries: found when a store needs them, named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from squall.coordination.errors import ConfigurationError


def load_extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigurationError(
            f"this store needs {package}, which is not installed: pip install 'squall[{extra}]'"
        ) from None
