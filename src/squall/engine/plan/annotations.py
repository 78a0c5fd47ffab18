"""Reads the annotations of hooks: prepared arguments, measured results, compatible types."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, is_typeddict

from squall.api.arguments import Prepared, argument_kinds
from squall.api.hooks import AllMark, ProvideMark, UseMark
from squall.api.results import CallResult, CustomResult


def prepared_kind(annotation: Any) -> type[Prepared] | None:
    """The prepared type of an argument, also if it is written as `URL | None`."""
    for member in _members(annotation):
        if isinstance(member, type) and member in argument_kinds():
            return member
    return None


def is_optional(annotation: Any) -> bool:
    """Whether an annotation is written as `... | None`."""
    return type(None) in get_args(annotation)


def measured(annotation: Any) -> tuple[str, type | None]:
    """(protocol, result type) of a test step's return annotation; ("", None) otherwise."""
    for member in _members(annotation):
        origin = _plain(member)
        if isinstance(origin, type) and issubclass(origin, (CallResult, CustomResult)):
            return origin.protocol, origin
    return "", None


def is_provide(annotation: Any) -> bool:
    return _marked(annotation, ProvideMark)


def is_all(annotation: Any) -> bool:
    return _marked(annotation, AllMark)


def is_use(annotation: Any) -> bool:
    return _marked(annotation, UseMark)


def compatible(produced: Any, wanted: Any) -> bool:
    """Whether a value of the producer's annotation can have the type that the consumer declares.

    Refuses only clear contradictions; annotations that cannot be compared are accepted.
    """
    wanted_types = [_plain(member) for member in _members(wanted)]
    produced_types = [_plain(member) for member in _members(produced)]
    if not all(_is_plain_class(item) for item in [*wanted_types, *produced_types]):
        return True
    if not produced_types:
        return produced is not type(None) or not wanted_types
    return any(
        item is object or issubclass(made, item) or (made is int and item is float)
        for made in produced_types
        for item in wanted_types
    )


def _is_plain_class(annotation: Any) -> bool:
    """Whether `issubclass` accepts it; Any, protocols and typed dicts are refused there."""
    if not isinstance(annotation, type) or annotation is Any:
        return False
    return not is_typeddict(annotation) and not getattr(annotation, "_is_protocol", False)


def _marked(annotation: Any, mark: type) -> bool:
    return get_origin(annotation) is Annotated and any(
        isinstance(item, mark) for item in get_args(annotation)[1:]
    )


def _members(annotation: Any) -> list[Any]:
    """The members of a union without None, with `Annotated` removed."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return list(_flatten(get_args(annotation)))
    return [] if annotation in (None, type(None)) else [annotation]


def _flatten(annotations: Iterable[Any]) -> Iterable[Any]:
    for annotation in annotations:
        yield from _members(annotation)


def _plain(annotation: Any) -> Any:
    """The run-time class behind `list[int]` or `Timed[bytes]`; type variables stay."""
    if isinstance(annotation, TypeVar):
        return annotation
    return get_origin(annotation) or annotation
