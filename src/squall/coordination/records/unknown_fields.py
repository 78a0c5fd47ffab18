"""Keeps fields that this version does not know when it changes a record.

During an upgrade members of two versions share a store. An older one reads a record of a newer one,
changes the fields that it knows and writes the record back: the others must survive. This includes
nested records, such as the jobs of a schedule. A record that replaces one, such as a registration
or the lease of the next term, keeps nothing. Fields that this version knows, and data of the
application, are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeGuard, Union, cast, get_args, get_origin

import msgspec

Shape = Literal["one", "named", "ordered"]


def keep_unknown(kind: type[msgspec.Struct], fields: dict[str, Any], before: Any) -> None:
    """Copies into `fields` what `before`, the record as it was read, has besides the fields of its
    kind."""
    if not _is_object(before):
        return
    nested = _nested(kind)
    for name, value in before.items():
        if name not in kind.__struct_encode_fields__:
            fields.setdefault(name, value)
        elif name in nested and name in fields:
            _keep_within(*nested[name], fields[name], value)


def has_unknown(kind: type[msgspec.Struct], value: bytes) -> bool:
    """Whether a record has fields that this version does not know."""
    return not msgspec.json.decode(value).keys() <= set(kind.__struct_encode_fields__)


def _keep_within(shape: Shape, kind: type[msgspec.Struct], now: Any, before: Any) -> None:
    if shape == "ordered":
        _keep_in_order(kind, now, before)
    elif _is_object(now) and shape == "one":
        keep_unknown(kind, now, before)
    elif _is_object(now) and _is_object(before):
        for name in now.keys() & before.keys():
            keep_unknown(kind, now[name], before[name])


def _keep_in_order(kind: type[msgspec.Struct], now: Any, before: Any) -> None:
    """Items of a list have no key: the same item as before is the one with equal known fields."""
    if not isinstance(before, list):
        return
    known = [(_known_part(kind, each), each) for each in cast("list[Any]", before)]
    for record in now:
        part = _known_part(kind, record)
        same = next((each for was, each in known if was is not None and was == part), None)
        keep_unknown(kind, record, same)


def _known_part(kind: type[msgspec.Struct], fields: Any) -> msgspec.Struct | None:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return None


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


@cache
def _nested(kind: type[msgspec.Struct]) -> dict[str, tuple[Shape, type[msgspec.Struct]]]:
    """The fields that hold nested records, with their shape and kind."""
    found: dict[str, tuple[Shape, type[msgspec.Struct]]] = {}
    for field in msgspec.structs.fields(kind):
        origin: Any = get_origin(field.type)
        shape: Shape = "named" if origin in (dict, Mapping) else "ordered"
        if origin in (None, Union, UnionType):
            shape = "one"
        for part in (field.type, *get_args(field.type)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                found[field.encode_name] = (shape, part)
    return found
