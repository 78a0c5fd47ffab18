"""The syntax trees of the repository's files, each made once for all tests of the house."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@contextmanager
def paused_collector() -> Iterator[None]:
    """For work that makes millions of objects and keeps them all: the collector would walk over
    them again and again, and take four times as long as the parser."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def tree_of(path: Path) -> ast.Module:
    with paused_collector():
        return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """Every node, in the order of `ast.walk`: several rules look at each tree."""
    with paused_collector():
        return list(ast.walk(tree))
