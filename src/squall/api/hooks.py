"""Decorators that turn methods of a workflow into hooks.

A decorator only stores its arguments; the planner reads them later. `@step` and `@then` put a
`Step` on the class: `self.login(...)` still calls the method, and `self.login.response` is the
latest result of that step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from squall.api.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

Expect: TypeAlias = int | str | range | Sequence[int | str]
Duration: TypeAlias = str | float


class ProvideMark:
    """In the return annotation of a `@state` hook: provides its value to other workflows."""


class UseMark:
    """In the return annotation of a `@state` hook: receives values of other workflows."""


Provide = Annotated[T, ProvideMark()]
"""The return type of a `@state` hook that provides its value to the workflows it names."""
Use = Annotated[T, UseMark()]
"""The return type of a `@state` hook that receives values: `self.hook()` calls it with them."""


class Hook:
    """A decorated method; it binds to an instance like any method."""

    kind: str
    function: Callable[..., Any]

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        self.kind = kind
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else self.function.__get__(instance, owner)


class ActionHook(Hook):
    def __init__(self, function: Callable[..., Any], at: Literal["start", "end"]) -> None:
        super().__init__("action", function)
        self.at = at


class CheckHook(Hook):
    def __init__(self, function: Callable[..., Any], after: tuple[str, ...]) -> None:
        super().__init__("check", function)
        self.after = after


class MetricHook(Hook):
    def __init__(self, function: Callable[..., Any], after: tuple[str, ...], unit: str) -> None:
        super().__init__("metric", function)
        self.after = after
        self.unit = unit


class StateHook(Hook):
    """A `@state` method. A consumer is called without arguments; they come from
    `__squall_received__`, which the engine sets on the class before the users start."""

    def __init__(self, function: Callable[..., Any], workflows: tuple[str, ...]) -> None:
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
        after: tuple[str, ...],
        follows: bool,
        weight: int | None,
        expect: Expect | None,
        timeout: Duration | None,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.after = after
        # True for `@then()`: the step runs after the step above it in the file.
        self.follows = follows
        self.weight = weight
        self.expect = expect
        self.timeout = timeout
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Step[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> BoundStep[P, R]: ...
    def __get__(
        self, instance: object | None, owner: type | None = None
    ) -> Step[P, R] | BoundStep[P, R]:
        return self if instance is None else BoundStep(self, instance)


def step(
    *after: str,
    weight: int | None = None,
    expect: Expect | None = None,
    timeout: Duration | None = None,
) -> Callable[[Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]], Step[P, R]]:
    """Makes a step that runs after the named steps, in parallel with steps that have the same
    dependencies.

    Of the steps with equal dependencies and a `weight`, each iteration runs exactly one. `expect`
    names the statuses that are ok: `200`, `[200, 302]`, `"2xx"`; the default is 200 to 399.
    `timeout` is the limit for each call of the step.
    """
    if any(callable(name) for name in after):
        raise ConfigError("write @step() with its parentheses")

    def decorate(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Step[P, R]:
        return Step(
            function, after=after, follows=False, weight=weight, expect=expect, timeout=timeout
        )

    return decorate


def then(
    *,
    weight: int | None = None,
    expect: Expect | None = None,
    timeout: Duration | None = None,
) -> Callable[[Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]], Step[P, R]]:
    """Makes a step that runs after the step above it in the file. Its options are those of
    `step`."""

    def decorate(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Step[P, R]:
        return Step(function, after=(), follows=True, weight=weight, expect=expect, timeout=timeout)

    return decorate


def action(*, at: Literal["start", "end"] = "start") -> Callable[[F], F]:
    """Makes an action that runs once per virtual user, before its first or after its last
    iteration."""

    def decorate(function: F) -> F:
        return cast(F, ActionHook(function, at))

    return decorate


def check(*after: str) -> Callable[[F], F]:
    """Checks the results of the named steps, once per iteration: true passes, false or an exception
    fails. A failed check does not fail the run; a threshold on `checks` does."""

    def decorate(function: F) -> F:
        return cast(F, CheckHook(function, after))

    return decorate


def metric(*after: str, unit: str = "") -> Callable[[F], F]:
    """Computes a number from the results of the named steps, once per iteration."""

    def decorate(function: F) -> F:
        return cast(F, MetricHook(function, after, unit))

    return decorate


def state(*workflows: str) -> Callable[[F], F]:
    """Passes a value between workflows: `-> Provide[T]` provides it, `-> Use[T]` receives it."""

    def decorate(function: F) -> F:
        return cast(F, StateHook(function, workflows))

    return decorate


def depends(*workflows: str, when: Literal["success", "always"] = "success") -> Callable[[C], C]:
    """Runs this workflow after the named ones; `when="always"` also after a failure."""

    def decorate(workflow: C) -> C:
        setattr(workflow, "__squall_depends__", (workflows, when))  # noqa: B010
        return workflow

    return decorate
