"""Imports the libraries of outputs on first use; `registry` checks before the run that they exist.

Squall silences the logs of these libraries unless the program that runs Squall has log handlers of
its own: Squall itself prints one line for a backend that does not answer.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

# Besides the loggers that are named like the module: what the libraries stand on.
_LOGGERS = ("asyncio", "botocore", "grpc", "urllib3")


def library(module: str) -> Any:
    """Imports a module as `Any`, because few of these libraries have types."""
    for name in (module.partition(".")[0], *_LOGGERS):
        logger = logging.getLogger(name)
        if not logger.handlers:
            # Without any handler Python prints warnings to standard error.
            logger.addHandler(logging.NullHandler())
    return import_module(module)
