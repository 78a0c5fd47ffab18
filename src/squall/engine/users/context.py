"""The context of an iteration, and its encoding for other workflows.

Every iteration starts with a fresh copy of what the start actions left. Containers of plain
data are copied; other objects belong to the author and are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from squall.engine.core_protocol import decode_value, encode_value
from squall.engine.plan.received_values import HAND_OVER_MAX_BYTES

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
    room = HandOverRoom()
    # What another workflow needs comes first: the rest must not take its room.
    for name in sorted(context, key=lambda name: name not in wanted):
        value = context[name]
        if not isinstance(cast(object, name), str):
            warnings.append(f"{who}: the context key {name!r} is not text and is not handed over")
            continue
        try:
            values[name] = room.take(encode_value(value))
            continue
        except HandOverTooLarge as refusal:
            text = f"{who}.{name} {refusal}"
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


class HandOverTooLarge(Exception):
    """A value does not fit among those that a workflow hands over."""


class HandOverRoom:
    """Limits what a process hands over to other workflows, on one machine as on a cluster."""

    def __init__(self) -> None:
        self._left = HAND_OVER_MAX_BYTES

    def take(self, encoded: bytes) -> bytes:
        if len(encoded) > self._left:
            raise HandOverTooLarge(
                f"has {len(encoded) / 2**20:,.1f} MiB; a workflow hands over at most "
                f"{HAND_OVER_MAX_BYTES >> 20} MiB in all; hand over a path or a key instead"
            )
        self._left -= len(encoded)
        return encoded


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: _copied(item) for key, item in items}
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[Any]", value)]
    if isinstance(value, set):
        return set(cast("set[Any]", value))
    return value
