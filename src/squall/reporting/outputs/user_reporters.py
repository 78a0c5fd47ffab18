"""Loads reporters that users write, by flag or from `reporting` in their file.

A class gets its configuration in the form that its constructor asks for (`targets`). Otherwise
only core processes import the author's file; a reporter in it is the one reason to import it here
as well, after the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from squall.api.errors import SquallError, UsageError
from squall.api.reporting import (
    LIVE_METHODS,
    METHODS,
    LiveReporter,
    RunReporter,
    is_live_reporter,
    is_reporter,
)
from squall.api.workflow import Workflow
from squall.engine.plan.author_file import load_file, workflow_classes
from squall.engine.plan.workflow_plan import attribute
from squall.engine.run_options import RunOptions
from squall.reporting.outputs.delivery import PreparedOutput
from squall.reporting.outputs.targets import CreatedOutput, create, secrets_in
from squall.stats.manifest import FileManifest


def load_reporter(where: str, target: str) -> CreatedOutput:
    """Creates `module:Class` or `path/to/file.py:Class` with `target` as its configuration."""
    flag = f"-o {where}"
    home, _, name = where.rpartition(":")
    if not home or not name:
        raise UsageError(f"{flag}: write module:Class=target or file.py:Class=target")
    found = getattr(_module(home, flag), name, None)
    if not isinstance(found, type):
        raise UsageError(f"{flag}: {home} has no class {name}")
    created = create(cast(type[Any], found), target, flag)
    if not is_reporter(created.made) and not is_live_reporter(created.made):
        raise UsageError(f"{flag}: {name} lacks {_lacking(created.made)}; a reporter has {_ALL}")
    return created


def reporters_of_file(
    manifest: FileManifest, options: RunOptions
) -> tuple[list[PreparedOutput], list[str]]:
    """The reporters of the workflows that ran, and the errors in loading them."""
    names = {workflow.name for workflow in manifest.workflows if workflow.reporting}
    if not names or not options.file:
        return [], []
    try:
        with _environment(options):
            module = load_file(Path(options.file), options.file)
            classes = workflow_classes(module, Workflow)
    except SquallError as error:
        return [], [f"reporting: {error}"]
    found: dict[int, PreparedOutput] = {}
    for cls in classes:
        if cls.__name__ in names:
            for each in reporters_in(attribute(cls, "reporting")):
                # An object that two workflows share is used once.
                name = f"reporting of {cls.__name__}"
                found.setdefault(id(each), prepared_reporter(name, each))
    return list(found.values()), []


def prepared_reporter(name: str, reporter: RunReporter | LiveReporter) -> PreparedOutput:
    """The output of a reporter object that an author made."""
    secrets = getattr(reporter, "secrets", None)
    if not isinstance(secrets, tuple):
        secrets = secrets_in(getattr(reporter, "config", None))
    return PreparedOutput(name, reporter, secrets=cast("tuple[str, ...]", secrets))


def reporters_in(value: Any) -> Iterable[RunReporter | LiveReporter]:
    """`reporting` is one reporter, or a list of them."""
    if isinstance(value, list | tuple):
        return cast(Iterable[RunReporter | LiveReporter], value)
    return () if value is None else (value,)


_ALL = f"{', '.join(METHODS)}, a live one {', '.join(LIVE_METHODS)}"


def _module(home: str, flag: str) -> Any:
    if home.endswith(".py"):
        return load_file(Path(home), home)
    before = list(sys.path)
    # As with `python -m`, modules in the current directory can be named.
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(home)
    except ImportError as error:
        raise UsageError(f"{flag}: {home} cannot be imported: {error}") from None
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{flag}: {home} failed at import: {text}") from error
    finally:
        sys.path[:] = before


def _lacking(made: object) -> str:
    wanted = LIVE_METHODS if callable(getattr(made, "tick", None)) else METHODS
    return ", ".join(name for name in wanted if not callable(getattr(made, name, None)))


@contextmanager
def _environment(options: RunOptions) -> Generator[None]:
    """The environment that core processes have while they load the file."""
    before = dict(os.environ)
    os.environ.update(options.env)
    os.environ.update(options.secrets)
    # `squall.run` inside a file that is being loaded is a mistake.
    os.environ["SQUALL_LOADING"] = "1"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
