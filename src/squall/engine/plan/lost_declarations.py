"""Finds declarations that Python accepts and no run would see: hooks, feeds, resources and metrics.

A later statement of the class body replaces them, a subclass or another base class hides them, a
decorator of another library wraps them, or they stand outside a class. Nothing here runs the
author's code; where Python keeps no trace of a declaration, the source is read.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from squall.api.feeds import Feed
from squall.api.hooks import Hook, Step, action, check, metric, state, step, then
from squall.api.metrics import Metric
from squall.api.resources import Resource
from squall.api.workflow import Workflow
from squall.engine.plan.written_code import def_line, value_of

_HOOKS = {
    step: "step",
    then: "step",
    action: "action",
    check: "check",
    metric: "metric",
    state: "state hook",
}


class Lost(NamedTuple):
    """A declaration that does not take effect, and why."""

    name: str
    line: int
    """0 if it has none of its own: a class attribute that a subclass sets."""
    text: str


def lost_in_bodies(workflow: type[Workflow]) -> Iterator[Lost]:
    """What statements of a class body, or of the bodies of its bases, replace or wrap."""
    for base in _authored(workflow):
        try:
            lines, first = inspect.getsourcelines(base)
            (body,) = ast.parse(textwrap.dedent("".join(lines))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        statements = cast(ast.ClassDef, body).body
        yield from _replaced(base, statements, first - 1)
        for statement in statements:
            line = first + statement.lineno - 1
            if isinstance(statement, ast.Expr) and (found := _called(statement.value, base)):
                if kind := _hook_kind(found):
                    text = f"{found.__name__}(...) stands alone and makes no {kind}; "
                    yield Lost("", line, text + f"write @{found.__name__}(...) above the method")
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _wrapped(base, statement, line)
            elif isinstance(statement, ast.ClassDef):
                member = vars(base).get(statement.name)
                if isinstance(member, type) and issubclass(member, Workflow):
                    text = f"the workflow {statement.name} stands in another class and never runs; "
                    yield Lost("", line, text + "move it to the top level of the file")


def lost_to_subclasses(workflow: type[Workflow]) -> Iterator[Lost]:
    """What a subclass hides with something that is no declaration of this kind. None leaves a
    declaration of a base class out."""
    known: dict[str, tuple[type, str]] = {}
    for base in reversed(_authored(workflow)):
        for name, member in vars(base).items():
            kind = kind_of(member)
            if name in known and known[name][1] != kind and member is not None:
                owner, hidden = known[name]
                is_ = "is none itself" if not kind else f"is a {kind}"
                text = f"hides the {hidden} of {owner.__name__} and {is_}; "
                is_method = callable(member) and not kind and hidden in _HOOKS.values()
                text += "decorate it too" if is_method else "rename it"
                text += f", or leave the {hidden} out with {name} = None"
                yield Lost(name, def_line(member) if callable(member) or kind else 0, text)
            known.pop(name, None)
            if kind:
                known[name] = base, kind


def hidden_among_bases(workflow: type[Workflow]) -> Iterator[str]:
    """Declarations of a base class that another, unrelated base class hides: legal, and perhaps not
    meant."""
    known: dict[str, type] = {}
    for base in reversed(_authored(workflow)):
        for name, member in vars(base).items():
            if not (kind := kind_of(member)):
                continue
            if name in known and not issubclass(base, known[name]):
                yield f"the {kind} {name} of {base.__name__} hides that of {known[name].__name__}"
            known[name] = base


def kind_of(member: object) -> str:
    """What a class member declares: "step", "feed" ...; "" for anything else."""
    if isinstance(member, Step):
        return "step"
    if isinstance(member, Hook):
        return "state hook" if member.kind == "state" else member.kind
    kinds = (Feed, Resource, Metric)
    return next((kind.__name__.lower() for kind in kinds if isinstance(member, kind)), "")


def _authored(workflow: type[Workflow]) -> list[type]:
    return [base for base in workflow.__mro__ if base not in (object, Workflow)]


def _replaced(owner: type, statements: list[ast.stmt], offset: int) -> Iterator[Lost]:
    """Only statements at the top level of the body count: of those under `if` and `else` one
    runs."""
    known: dict[str, tuple[str, int]] = {}
    for statement in statements:
        line = offset + statement.lineno
        for name in _bound_names(statement):
            if name in known:
                kind, first = known.pop(name)
                text = f"a second {name} replaces the {kind} of line {first}; "
                yield Lost(name, line, text + "give one of them another name")
            if kind := _declared_kind(statement, owner):
                known[name] = kind, line


def _wrapped(
    owner: type, statement: ast.FunctionDef | ast.AsyncFunctionDef, line: int
) -> Iterator[Lost]:
    """A hook inside a plain function that a decorator of another library returned."""
    kind = _declared_kind(statement, owner)
    member = vars(owner).get(statement.name)
    # A member that is gone was deleted on purpose.
    if not kind or member is None or kind_of(member):
        return
    for above, each in zip(statement.decorator_list, statement.decorator_list[1:], strict=False):
        if found := _hook_kind(_called(each, owner)):
            outer = ast.unparse(above)
            inner = ast.unparse(cast(ast.Call, each).func)
            text = f"@{outer} hides the {found} below it; write @{outer} below @{inner}(...)"
            yield Lost(statement.name, line, text)


def _bound_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _declared_kind(statement: ast.stmt, owner: type) -> str:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        kinds = (_hook_kind(_called(each, owner)) for each in statement.decorator_list)
        return next((kind for kind in kinds if kind), "")
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        made = _called(statement.value, owner)
        for kind in (Feed, Resource, Metric):
            if isinstance(made, type) and issubclass(made, kind):
                return kind.__name__.lower()
    return ""


def _hook_kind(called: Any) -> str:
    return next((kind for hook, kind in _HOOKS.items() if hook is called), "")


def _called(expression: ast.expr, owner: type) -> Any:
    """What `step` or `squall.Feed` of a call stands for in the module of a class."""
    if not isinstance(expression, ast.Call):
        return None
    return value_of(expression.func, vars(sys.modules.get(owner.__module__, owner)))
