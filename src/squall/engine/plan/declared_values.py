"""What an author may write as a class attribute or as an option of a decorator.

One reader per name, all in two tables. A reader returns the value in the form that the engine uses,
or raises a `ConfigError` that shows the value and says what is wanted; the planner adds file, line,
class and hook. What is not in a table is no setting. Nothing here decides what a value does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from squall.api.errors import ConfigError
from squall.api.quantities import (
    one_of,
    parse_count,
    parse_duration,
    parse_expect,
    parse_host,
    parse_iterations,
    parse_rate,
    parse_span,
    text_of,
    wrong,
)
from squall.api.reporting import (
    LIVE_METHODS,
    METHODS,
    LiveReporter,
    RunReporter,
    is_live_reporter,
    is_reporter,
)
from squall.engine.load.profile import parse_stages

Reader = Callable[[Any, str], Any]
"""(value, name of the attribute or option) -> the value that the engine uses."""

PRIORITIES = ("low", "normal", "high", "exclusive", "auto")
ON_FAILURE = ("stop", "continue")


def _choice(allowed: Sequence[str]) -> Reader:
    return lambda value, what: one_of(what, value, allowed)


def _priority(value: Any, what: str) -> str:
    return one_of(what, value.lower() if isinstance(value, str) else value, PRIORITIES)


def _thresholds(value: Any, what: str) -> list[str]:
    """One text is one threshold."""
    hint = 'write one, such as "home.p(99) < 300ms"'
    texts: list[Any] = [value] if isinstance(value, str) else []
    if isinstance(value, list | tuple):
        texts = list(cast(Sequence[Any], value))
    elif not texts:
        raise wrong(what, value, "is no list of thresholds", hint)
    for text in texts:
        if not isinstance(text, str):
            raise wrong(what, text, "is not a threshold", hint)
    return texts


def _reporters(value: Any, what: str) -> list[RunReporter | LiveReporter]:
    several = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [value]
    for each in several:
        if not is_reporter(each) and not is_live_reporter(each):
            methods = f"{', '.join(METHODS)}, a live one {', '.join(LIVE_METHODS)}"
            raise wrong(what, each, "is not a reporter", f"a reporter has {methods}")
    return several


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(what, value, "is neither True nor False", "write one of them")
    return value


def _pause(read: Callable[[Any, str], Any]) -> Reader:
    """0 means no pause, as in `Workflow` itself."""
    return lambda value, what: None if _is_zero(value) else read(value, what)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


_duration_or_0: Reader = partial(parse_duration, zero_ok=True)

ATTRIBUTES: dict[str, Reader] = {
    "abstract": _flag,
    "host": parse_host,
    "vus": partial(parse_count, least=0),
    "duration": parse_duration,
    "iterations": parse_iterations,
    "stages": parse_stages,
    "rate": parse_rate,
    "max_vus": parse_count,
    "start_after": _duration_or_0,
    "think": _pause(parse_span),
    "pacing": _pause(parse_duration),
    "grace": _duration_or_0,
    "timeout": parse_duration,
    "priority": _priority,
    "thresholds": _thresholds,
    "connections": _choice(("vu", "iteration", "request", "shared")),
    "streams": parse_count,
    "pool_size": parse_count,
    "http": _choice(("1.1", "auto")),
    "session": _choice(("iteration", "vu")),
    "on_failure": _choice(ON_FAILURE),
    "on_control_loss": _choice(("stop", "continue")),
    "weight": parse_count,
    "reporting": _reporters,
}

OPTIONS: dict[str, Reader] = {
    "weight": parse_count,
    "expect": parse_expect,
    "timeout": parse_duration,
    "on_failure": _choice(ON_FAILURE),
    "at": _choice(("start", "end")),
    "unit": lambda value, what: text_of(what, value, 'write one, such as "ms"'),
    "when": _choice(("success", "always")),
}


def read_option(name: str, value: Any, problem: Callable[[str], None]) -> Any:
    """The value of a decorator's option; None, after a call of `problem`, if it is wrong."""
    try:
        return OPTIONS[name](value, name)
    except ConfigError as error:
        problem(str(error))
        return None
