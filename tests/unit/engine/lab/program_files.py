"""Programs for tests: a file's text in, the plan or the mistakes out."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Any

from squall.api.errors import ConfigError
from squall.api.workflow import Workflow
from squall.engine.plan.author_file import load_file, workflow_classes
from squall.engine.plan.program import Program, build_program
from squall.engine.run_options import RunOptions

HEADER = (
    "from squall import (URL, Auth, Cookies, Counter, CustomResult, Data, "
    "SQL, Directory, Document, Email, Feed, File, FileGlob, Form, Gauge, Headers, HTTPResponse, "
    "Mutation, Params, Proto, Protobuf, Provide, Query, Rate, Resource, "
    "Sample, Timed, Use, Workflow, action, bearer, check, depends, env, metric, state, step, "
    "then)\n"
)
"""One line, so that line 2 of a file is the first line a test writes."""
HOST = 'host = "http://127.0.0.1:1"'

_numbers = itertools.count()


def load(folder: Path, text: str, *, header: str = HEADER, **options: Any) -> Program:
    """The program of a file; `ConfigError` when it has mistakes."""
    path = folder / f"flow{next(_numbers)}.py"
    path.write_text(header + textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    classes = workflow_classes(load_file(path, path.name), Workflow)
    return build_program(classes, "flow.py", folder, RunOptions(file="flow.py", **options))


def mistakes(folder: Path, text: str, **options: Any) -> list[str]:
    """The lines of the refusal."""
    try:
        load(folder, text, **options)
    except ConfigError as error:
        return str(error).split("\n")
    raise AssertionError("the file was accepted")
