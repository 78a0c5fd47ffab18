"""The one mechanism that checks what an application passes: options, timings, arguments, callbacks.

A `Rule` says which values it accepts, in words and with an example. Every refusal has the name, the
value, the rule and a value to use, and comes before anything is started. A secret is never shown.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from squall.coordination.errors import ConfigurationError


@dataclass(frozen=True)
class Rule:
    """Which values are accepted. `text` completes the sentence "NAME is VALUE: ..."."""

    text: str
    accepts: Callable[[Any], bool]
    example: str
    is_secret: bool = False


def wrong(name: str, value: object, rule: str, example: str) -> NoReturn:
    raise ConfigurationError(f"{name} is {value!r}: {rule}; use {name}={example}")


def check(name: str, value: object, rule: Rule) -> None:
    if rule.accepts(value):
        return
    if rule.is_secret:
        kind = type(value).__name__
        raise ConfigurationError(
            f"{name} is of type {kind}: {rule.text}; use {name}={rule.example}"
        )
    wrong(name, value, rule.text, rule.example)


# The rules.


def text(example: str = "'...'") -> Rule:
    return Rule("it must be a non-empty text", _is_text, example)


def flag() -> Rule:
    return Rule("it must be True or False", lambda value: isinstance(value, bool), "True")


def whole(low: int, high: int | None = None, *, example: int) -> Rule:
    words = (
        f"it must be within {low} .. {high}" if high is not None else f"it must be {low} or more"
    )
    return Rule(
        f"{words}, a whole number",
        lambda value: _is_whole(value) and value >= low and (high is None or value <= high),
        str(example),
    )


def seconds(*, example: float, above: float | None = None, least: float = 0.0) -> Rule:
    """A finite number of seconds, above `above`, or at least `least`."""
    words = f"above {above:g}" if above is not None else f"{least:g} or more"
    return Rule(
        f"it must be a number of seconds, {words}",
        lambda value: (
            _is_number(value) and (value > above if above is not None else value >= least)
        ),
        f"{example}",
    )


def number(*, above: float, example: float) -> Rule:
    return Rule(
        f"it must be a number above {above:g}",
        lambda value: _is_number(value) and value > above,
        f"{example}",
    )


def one_of(*words: str, example: str) -> Rule:
    return Rule(f"use one of {', '.join(words)}", lambda value: value in words, repr(example))


def function(example: str = "f") -> Rule:
    return Rule("it must be a function", callable, example)


def async_function(example: str) -> Rule:
    """A function whose call is awaited. A plain `def` would block the heartbeats of its member, and
    its result could not be awaited."""
    return Rule("it must be an `async def` function", _is_async, example)


def or_none(rule: Rule) -> Rule:
    def accepts(value: object) -> bool:
        return value is None or rule.accepts(value)

    return replace(rule, text=f"{rule.text}, or None", accepts=accepts)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_async(value: object) -> bool:
    if not callable(value):
        return False
    found: Any = value
    while isinstance(found, functools.partial):
        found = cast("functools.partial[Any]", found).func
    found = inspect.unwrap(found)
    # What a lambda returns shows only when it is called.
    if getattr(found, "__name__", "") == "<lambda>":
        return True
    return inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(
        getattr(found, "__call__", None)  # noqa: B004  not whether it is callable
    )
