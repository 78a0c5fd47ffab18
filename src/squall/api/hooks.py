"""Decorators that turn methods of a workflow into hooks.

A decorator only stores its arguments; the planner reads them later. `@step` and `@then` put a
`Step` on the class: `self.login(...)` still calls the method, and `self.login.response` is the
latest result of that step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from inspect import CO_COROUTINE
from types import FunctionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from squall.api.errors import ConfigError
from squall.api.quantities import quoted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

Expect: TypeAlias = int | str | range | Sequence[int | str]
Duration: TypeAlias = str | float
OnFailure: TypeAlias = Literal["stop", "continue"]


class ProvideMark:
    """In the return annotation of a `@state` hook: provides its value to other workflows."""


class UseMark:
    """In the return annotation of a `@state` hook: receives values of other workflows."""


class AllMark:
    """In the annotation of an argument of a `Use` hook: receives all values of its name."""


Provide = Annotated[T, ProvideMark()]
"""The return type of a `@state` hook that provides its value to the workflows it names."""
Use = Annotated[T, UseMark()]
"""The return type of a `@state` hook that receives values: `self.hook()` calls it with them."""
All = Annotated[Sequence[T], AllMark()]
"""An argument of a hook with `Use[...]`: receives the values of all processes and sources."""


class Hook:
    """A decorated method; it binds to an instance like any method."""

    kind: str
    function: Callable[..., Any]

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        refuse_no_method(kind, function)
        self.kind = kind
        self.function = function
        self.name = ""
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = own_name(self.name, owner, name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else self.function.__get__(instance, owner)

    def __repr__(self) -> str:
        return f"<{self.kind} {_qualified(self.function)}>"


class ActionHook(Hook):
    def __init__(self, function: Callable[..., Any], at: Literal["start", "end"]) -> None:
        super().__init__("action", function)
        self.at = at


class CheckHook(Hook):
    def __init__(self, function: Callable[..., Any], after: tuple[StepName, ...]) -> None:
        super().__init__("check", function)
        self.after = after


class MetricHook(Hook):
    def __init__(
        self, function: Callable[..., Any], after: tuple[StepName, ...], unit: str
    ) -> None:
        super().__init__("metric", function)
        self.after = after
        self.unit = unit


class StateHook(Hook):
    """A `@state` method. A consumer is called without arguments; they come from
    `__squall_received__`, which the engine sets on the class before the users start."""

    def __init__(self, function: Callable[..., Any], workflows: tuple[WorkflowName, ...]) -> None:
        super().__init__("state", function)
        self.workflows = workflows

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self

        received = getattr(type(instance), "__squall_received__", {}).get(self.name, {})

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.function(instance, *args, **{**received, **kwargs})

        return call


class BoundStep(Generic[P, R]):
    """`self.login`, where `login` is a step: calling it runs the step's method once more."""

    __slots__ = ("_instance", "_step")

    def __init__(self, step: Step[P, R], instance: Any) -> None:
        self._step = step
        self._instance = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self._step.function(self._instance, *args, **kwargs)

    @property
    def response(self) -> R:
        """The latest result of the step in this iteration; in a `@state` hook that provides a
        value, the latest successful result of this process."""
        results = cast("dict[str, Any]", self._instance.context)
        if self._step.name not in results:
            raise LookupError(f"step {self._step.name!r} has no result yet in this iteration")
        return cast(R, results[self._step.name])


class Step(Generic[P, R]):
    """A node of the step DAG."""

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        *,
        after: tuple[StepName, ...],
        follows: bool,
        options: dict[str, Any],
    ) -> None:
        refuse_no_method("then" if follows else "step", function)
        self.function = function
        self.name = ""
        self.after = after
        # True for `@then()`: the step runs after the step above it in the file.
        self.follows = follows
        # As written: the planner reads and checks them.
        self.options = options
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = own_name(self.name, owner, name)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Step[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> BoundStep[P, R]: ...
    def __get__(
        self, instance: object | None, owner: type | None = None
    ) -> Step[P, R] | BoundStep[P, R]:
        return self if instance is None else BoundStep(self, instance)

    def __repr__(self) -> str:
        return f"<step {_qualified(self.function)}>"


StepName: TypeAlias = str | Step[..., Any]
"""A step in a decorator: by its name, or by the step itself where it is defined above."""
WorkflowName: TypeAlias = str | type
"""A workflow in a decorator: by its name, or by its class where that is defined above."""


def step(
    *after: StepName,
    weight: int | None = None,
    expect: Expect | None = None,
    timeout: Duration | None = None,
    on_failure: OnFailure | None = None,
) -> Callable[[Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]], Step[P, R]]:
    """Makes a step that runs after the named steps, in parallel with steps that have the same
    dependencies.

    Of the steps with equal dependencies and a `weight`, each iteration runs exactly one. `expect`
    names the statuses that are ok: `200`, `[200, 302]`, `"2xx"`; the default is 200 to 399.
    `timeout` is the limit for each call of the step. `on_failure="stop"` ends the iteration after a
    failed status.
    """
    _refuse_bare("step()", after)
    options = {"weight": weight, "expect": expect, "timeout": timeout, "on_failure": on_failure}

    def decorate(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Step[P, R]:
        return Step(function, after=after, follows=False, options=options)

    return decorate


def then(
    *misplaced: Never,
    weight: int | None = None,
    expect: Expect | None = None,
    timeout: Duration | None = None,
    on_failure: OnFailure | None = None,
) -> Callable[[Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]], Step[P, R]]:
    """Makes a step that runs after the step above it in the file. Its options are those of
    `step`."""
    _refuse_bare("then()", misplaced)
    options = {"weight": weight, "expect": expect, "timeout": timeout, "on_failure": on_failure}

    def decorate(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Step[P, R]:
        hint = "it runs after the step above it; write @step(...) to name another step"
        _refuse_positional("then", function, misplaced, hint)
        return Step(function, after=(), follows=True, options=options)

    return decorate


def action(*misplaced: Never, at: Literal["start", "end"] = "start") -> Callable[[F], F]:
    """Makes an action that runs once per virtual user, before its first or after its last
    iteration."""
    _refuse_bare('action(at="start")', misplaced)

    def decorate(function: F) -> F:
        hint = 'write @action(at="start") or @action(at="end")'
        _refuse_positional("action", function, misplaced, hint)
        return cast(F, ActionHook(function, at))

    return decorate


def check(*after: StepName) -> Callable[[F], F]:
    """Checks the results of the named steps, once per iteration: true passes; false, None or an
    exception fails. A check without `return` passes unless its `assert` or `raise` fails. A failed
    check does not fail the run; a threshold on `checks` does."""
    _refuse_bare('check("step")', after)
    # `check("20 items", len(items) == 20)` in a step would make a decorator and count nothing.
    has_result = len(after) == 2 and not isinstance(after[1], str | Step)  # pyright: ignore[reportUnnecessaryIsInstance]
    if has_result or sys._getframe(1).f_code.co_flags & CO_COROUTINE:  # pyright: ignore[reportPrivateUsage]
        given = ", ".join(quoted(each) for each in after)
        raise ConfigError(
            f"check({given}) decorates a method and counts nothing; "
            "in a step write self.check(name, passed)"
        )

    def decorate(function: F) -> F:
        return cast(F, CheckHook(function, after))

    return decorate


def metric(*after: StepName, unit: str = "") -> Callable[[F], F]:
    """Computes a number from the results of the named steps, once per iteration."""
    _refuse_bare('metric("step")', after)

    def decorate(function: F) -> F:
        return cast(F, MetricHook(function, after, unit))

    return decorate


def state(*workflows: WorkflowName) -> Callable[[F], F]:
    """Passes a value between workflows: `-> Provide[T]` provides it, `-> Use[T]` receives it."""
    _refuse_bare('state("Workflow")', workflows)

    def decorate(function: F) -> F:
        return cast(F, StateHook(function, workflows))

    return decorate


def depends(
    *workflows: WorkflowName, when: Literal["success", "always"] = "success"
) -> Callable[[C], C]:
    """Runs this workflow after the named ones; `when="always"` also after a failure."""
    _refuse_bare('depends("Workflow")', workflows)

    def decorate(workflow: C) -> C:
        if not isinstance(workflow, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"@depends(...) is for a class, not for {quoted(workflow)}")
        names, whens = vars(workflow).get(DEPENDS, ((), ()))
        # Outer decorators run later and stand first in the file.
        setattr(workflow, DEPENDS, ((*workflows, *names), (when, *whens)))
        return workflow

    # `@depends` without parentheses replaces the class by this function.
    decorate.__dict__[BARE] = workflows
    return decorate


DEPENDS = "__squall_depends__"
"""Attribute of a workflow: its dependencies as written, and `when` of each decorator."""
BARE = "__squall_bare__"
"""Attribute of an applied `depends`: its arguments. If the class below a decorator is the only
one, the decorator has no parentheses."""


def refuse_no_method(decorator: str, function: Any) -> None:
    """Raises a `ConfigError` unless a decorator stands above a plain method."""
    if isinstance(function, (Hook, Step)):
        kind = function.kind if isinstance(function, Hook) else "step"
        raise ConfigError(
            f"{_qualified(cast(Any, function).function)}: @{decorator} above @{kind}; a method is "
            "one kind of hook"
        )
    if isinstance(function, (property, classmethod, staticmethod)):
        wrapper: str = cast(Any, function).__class__.__name__
        raise ConfigError(
            f"{_qualified(function)}: @{decorator} above @{wrapper}; a hook is a plain method"
        )
    if isinstance(function, type) or not callable(function):
        raise ConfigError(
            f"{_qualified(function)}: @{decorator} is for a method, not for {quoted(function)}"
        )


def own_name(known: str, owner: type, name: str) -> str:
    """The name of a hook on its class. A second one would be recorded as the first."""
    if known and known != name:
        raise ConfigError(f"{owner.__name__}.{name} is {known} again; write a method of its own")
    return name


def _refuse_bare(form: str, given: Sequence[object]) -> None:
    """Raises a `ConfigError` if a decorator has no parentheses: it receives the method then."""
    if len(given) == 1 and isinstance(given[0], FunctionType):
        raise ConfigError(f"{_qualified(given[0])}: write @{form} with its parentheses")


def _refuse_positional(
    decorator: str, function: object, given: Sequence[object], hint: str
) -> None:
    if given:
        raise ConfigError(f"{_qualified(function)}: @{decorator}({quoted(given[0])}): {hint}")


def _qualified(thing: Any) -> str:
    """`Shop.pay`: a method with its class, also inside a descriptor."""
    for inner in ("__func__", "fget"):
        thing = getattr(thing, inner, thing)
    name: str = getattr(thing, "__qualname__", "") or type(thing).__name__
    return name.rpartition("<locals>.")[2]
