"""Imports the libraries of outputs when they are used. `registry` has found them before the run.

What these libraries log is not shown, unless the program that runs Squall asks for it by handlers
of its own: a backend that does not answer is one line, which Squall writes.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

# Besides the loggers that are named like the module: what the libraries stand on.
_LOGGERS = ("asyncio", "botocore", "grpc", "urllib3")


def library(module: str) -> Any:
    """The module, without types: few of these libraries have them."""
    for name in (module.partition(".")[0], *_LOGGERS):
        logger = logging.getLogger(name)
        if not logger.handlers:
            # Without any handler Python prints warnings to standard error.
            logger.addHandler(logging.NullHandler())
    return import_module(module)
