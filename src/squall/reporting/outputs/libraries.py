"""Imports the libraries of outputs when they are used. `registry` has found them before the run."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def library(module: str) -> Any:
    """The module, without types: few of these libraries have them."""
    return import_module(module)
