"""What every store must do, as test functions for the modules of tests that have a store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any


def contract_tests(part: ModuleType, but: Collection[str] = ()) -> dict[str, Callable[..., Any]]:
    """The tests of one part of the contract, by name: a test module puts them into its globals."""
    return {
        name: test
        for name, test in vars(part).items()
        if name.startswith("test_") and callable(test) and name not in but
    }
