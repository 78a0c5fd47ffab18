"""The context of a user's iteration, and values that travel between workflows.

Every iteration starts with a fresh copy of what the start actions left. Values are
copied, not shared, where they are containers of plain data; other objects are the
author's own and are handed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from squall.engine.protocol import decode_value, encode_value

Context = dict[str, Any]


def fresh_maker(base: Context) -> Callable[[], Context]:
    """A function that makes the context of the next iteration."""
    if any(isinstance(value, (dict, list, set)) for value in base.values()):
        return lambda: {key: _copied(value) for key, value in base.items()}
    return base.copy


def decoded_context(values: dict[str, bytes]) -> Context:
    return {name: decode_value(data) for name, data in values.items()}


def encoded_context(
    context: Context, needed: Iterable[str], who: str
) -> tuple[dict[str, bytes], str, list[str]]:
    """What of a finished workflow's context can travel: (values, error, warnings).

    A value that another workflow needs and that cannot travel is an error here, on the
    laptop, and not first on a cluster.
    """
    values: dict[str, bytes] = {}
    warnings: list[str] = []
    error = ""
    wanted = set(needed)
    for name, value in context.items():
        try:
            values[name] = encode_value(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            text = (
                f"{who}.{name} is a {type(value).__name__}, which cannot be handed to another "
                "workflow; return plain data (text, numbers, lists, dicts)"
            )
            if name in wanted:
                error = error or text
            else:
                warnings.append(text)
    return values, error, warnings


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: _copied(item) for key, item in items}
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[Any]", value)]
    if isinstance(value, set):
        return set(cast("set[Any]", value))
    return value
