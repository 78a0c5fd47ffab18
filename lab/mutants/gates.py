"""Mutants of gates and datacenters as whole nodes, each switched on by its name."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

MUTANTS: dict[str, str] = {}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    yield
