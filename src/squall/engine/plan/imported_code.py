"""Finds the code of the author's file: modules to bundle, and packages that must be installed.

Decides, in a core process that has loaded the file, which modules are the author's own
(they are found on the search path outside of the standard library and of installed
packages) and which third-party modules they import. Both come from the import statements
of the sources, so that an import inside a function counts, and from what is loaded, so
that an import by name counts. It must never import anything itself.

Imports that a file can do without are ignored: those under `TYPE_CHECKING`, under
`if __name__ == "__main__"`, and in a `try` that catches ImportError.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from squall.engine.plan.author_file import is_installed

_OWN = "squall"
_OPTIONAL_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


@dataclass
class Code:
    """`modules` pairs the path below the author's folder with the absolute one."""

    modules: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    requirements: list[str] = field(default_factory=list[str])


def imported_code(path: Path) -> Code:
    """Finds the code of a file that this process has loaded."""
    return _Search(path).run()


class _Search:
    def __init__(self, entry: Path) -> None:
        self._entry = Path(os.path.abspath(entry))
        self._folder = str(self._entry.parent)
        # Path below the folder -> absolute path.
        self._found: dict[str, str] = {}
        self._required: set[str] = set()
        # Sources to read, with the package that relative imports start from.
        self._queue: list[tuple[Path, str]] = [(self._entry, "")]
        self._seen: set[str] = set()

    def run(self) -> Code:
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            if name != "__main__" and isinstance(spec, ModuleSpec) and self._is_local(spec):
                self._take(name, spec)
        while self._queue:
            source, package = self._queue.pop()
            for name in _imported_names(source, package):
                self._resolve(name)
        return Code(sorted(self._found.items()), sorted(self._required))

    def _resolve(self, name: str) -> None:
        """Takes each prefix of `a.b.c` that is a module; the rest is a name in it."""
        parts = name.split(".")
        if parts[0] == _OWN or parts[0] in sys.stdlib_module_names or name in self._seen:
            return
        self._seen.add(name)
        search: list[str] | None = None
        for depth in range(1, len(parts) + 1):
            prefix = ".".join(parts[:depth])
            spec = _find(prefix, search)
            if spec is None:
                if depth == 1:
                    self._required.add(prefix)
                return
            if not self._is_local(spec):
                self._required.add(parts[0])
                return
            self._take(prefix, spec)
            search = list(spec.submodule_search_locations or ())

    def _is_local(self, spec: ModuleSpec) -> bool:
        """Whether a module is the author's. A folder without `__init__.py` has no origin, so the
        modules inside it decide."""
        origin = spec.origin
        if spec.name.split(".")[0] == _OWN or spec.name in sys.builtin_module_names:
            return False
        if origin is None or not os.path.isabs(origin):
            places = list(spec.submodule_search_locations or ())
            return bool(places) and not any(map(is_installed, places))
        return not is_installed(origin)

    def _take(self, name: str, spec: ModuleSpec) -> None:
        origin = spec.origin
        if origin is None or not os.path.isfile(origin):
            return
        path = os.path.abspath(origin)
        if path == str(self._entry):
            return
        parts = name.split(".")
        is_package = spec.submodule_search_locations is not None
        depth = len(parts) + (1 if is_package else 0)
        below = "/".join(Path(path).parts[-depth:])
        if self._found.setdefault(below, path) == path and path not in self._seen:
            self._seen.add(path)
            if path.endswith(".py"):
                package = name if is_package else ".".join(parts[:-1])
                self._queue.append((Path(path), package))


def _find(name: str, search: list[str] | None) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if isinstance(spec, ModuleSpec):
        return spec
    try:
        return PathFinder.find_spec(name, search)
    except (ImportError, ValueError, OSError):
        return None


def _imported_names(source: Path, package: str) -> Iterator[str]:
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in _needed(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
            continue
        start = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join(filter(None, [*above, start]))
        if start:
            yield start
            for alias in node.names:
                yield f"{start}.{alias.name}"


def _needed(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run and must succeed."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and _never_runs(child.test):
            for other in child.orelse:
                yield from _needed(ast.Module([other], []))
        elif isinstance(child, ast.Try) and any(map(_forgives, child.handlers)):
            for other in (*child.orelse, *child.finalbody):
                yield from _needed(ast.Module([other], []))
        else:
            yield from _needed(child)


def _never_runs(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return text.endswith("TYPE_CHECKING") or text == "__name__ == '__main__'"


def _forgives(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & _OPTIONAL_ERRORS)
