"""The context of an iteration, and its encoding for other workflows.

Every iteration starts with a fresh copy of what the start actions left. Containers of plain
data are copied; other objects belong to the author and are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from squall.engine.core_protocol import decode_value, encode_value

Context = dict[str, Any]


def fresh_maker(base: Context) -> Callable[[], Context]:
    """Returns a function that makes the context of the next iteration."""
    if any(isinstance(value, (dict, list, set)) for value in base.values()):
        return lambda: {key: _copied(value) for key, value in base.items()}
    return base.copy


def decoded_context(values: dict[str, bytes]) -> Context:
    return {name: decode_value(data) for name, data in values.items()}


def received_arguments(values: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """The arguments of each Use hook, from "hook.argument" -> encoded value."""
    received: dict[str, dict[str, Any]] = {}
    for name, data in values.items():
        hook, _, argument = name.partition(".")
        received.setdefault(hook, {})[argument] = decode_value(data)
    return received


def encoded_context(
    context: Context, needed: Iterable[str], who: str
) -> tuple[dict[str, bytes], str, list[str]]:
    """Encodes the context of a finished workflow for others: (values, error, warnings).

    A value that another workflow needs and that cannot be encoded is an error also on one
    machine, so that the author finds it before the file runs on a cluster.
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
