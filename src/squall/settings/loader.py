"""Loads a settings tree: defaults < squall.toml < SQUALL_* environment < flags.

A tree is a msgspec struct of sections, which are structs or dataclasses of values. A key is a
dotted path ("timers.heartbeat_round_s"); in the environment the dots become two underscores
(SQUALL_TIMERS__HEARTBEAT_ROUND_S) and lists are separated by commas.

All mistakes are reported together, each with its key, the bad value, its source and the
remedy. An unknown key is refused, and nothing is read after the start.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import os
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from squall.api.errors import ConfigError

PREFIX = "SQUALL_"
DEFAULT = "default"

Tree = TypeVar("Tree", bound=msgspec.Struct)


@dataclass(frozen=True)
class Problem:
    """An invalid combination of values, found by a check of the tree."""

    keys: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Profile:
    """A key whose value chooses the defaults of other keys: value -> key -> default."""

    key: str
    defaults: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Sources:
    """Where values come from. Flags are key -> text."""

    file: Path | None = None
    environment: Mapping[str, str] | None = None
    flags: Mapping[str, str] | None = None


@dataclass
class _Value:
    raw: object
    source: str
    is_text: bool = False


def load(
    tree: type[Tree],
    sources: Sources,
    *,
    profiles: Sequence[Profile] = (),
    checks: Sequence[Callable[[Tree], Iterable[Problem]]] = (),
) -> Tree:
    """Raises `ConfigError` with every mistake."""
    known = leaves(tree)
    mistakes: list[str] = []
    given: dict[str, _Value] = {}
    for key, value in _given(sources):
        if key in known:
            given[key] = value
        else:
            mistakes.append(_unknown(key, value, known))
    values, origins = _defaults(tree(), profiles, given)
    for key, value in given.items():
        try:
            values[key] = _converted(value, known[key])
            origins[key] = value.source
        except (ValueError, TypeError):
            mistakes.append(
                f"{key} = {_shown(value.raw)} ({value.source}): must be "
                f"{_expected(known[key])}, such as {_example(known[key], values[key])}"
            )
    if not mistakes:
        try:
            made: Tree = _built(tree, "", values)
        except _SectionError as error:
            mistakes.append(_refused(error, given))
        else:
            for check in checks:
                mistakes.extend(_mistake(problem, values, origins) for problem in check(made))
            if not mistakes:
                return made
    head = f"{len(mistakes)} settings are wrong:\n  " if len(mistakes) > 1 else "setting "
    raise ConfigError(head + "\n  ".join(mistakes))


def digest(tree: msgspec.Struct) -> str:
    """Digest of the values that members of a group must share; they compare it on connecting."""
    shared = {
        key: _at(tree, key) for key, kind in leaves(type(tree)).items() if _extra(kind, "shared")
    }
    return hashlib.sha256(msgspec.json.encode(shared, order="sorted")).hexdigest()[:32]


def leaves(section: Any, prefix: str = "") -> dict[str, Any]:
    """Key -> annotated type of every value, in the order in which they are declared."""
    found: dict[str, Any] = {}
    for name, kind in _fields(section):
        if _is_section(kind):
            found.update(leaves(kind, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = kind
    return found


# Where values come from, lowest rank first.


def _given(sources: Sources) -> Iterator[tuple[str, _Value]]:
    if sources.file is not None:
        for key, raw in _flat(_parsed(sources.file)):
            yield key, _Value(raw, sources.file.name)
    environment = os.environ if sources.environment is None else sources.environment
    for name in sorted(environment):
        # Other variables of ours have no "__"; they are not settings.
        if name.startswith(PREFIX) and "__" in name.removeprefix(PREFIX):
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            yield key, _Value(environment[name], name, is_text=True)
    for key, text in (sources.flags or {}).items():
        yield key, _Value(text, f"--set {key}", is_text=True)


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings in {file}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _defaults(
    plain: msgspec.Struct,
    profiles: Sequence[Profile],
    given: Mapping[str, _Value],
) -> tuple[dict[str, object], dict[str, str]]:
    values = {key: _at(plain, key) for key in leaves(type(plain))}
    origins = dict.fromkeys(values, DEFAULT)
    for profile in profiles:
        chosen = given[profile.key].raw if profile.key in given else values[profile.key]
        # A profile that does not exist is reported with the other mistakes.
        for key, value in profile.defaults.get(str(chosen), {}).items():
            values[key] = value
            origins[key] = f"{profile.key} {chosen}"
    return values, origins


# Conversion of given values.


def _converted(value: _Value, kind: Any) -> object:
    raw = value.raw
    if value.is_text and _is_list(kind):
        raw = [part.strip() for part in str(raw).split(",") if part.strip()]
    converted: object = msgspec.convert(raw, kind, strict=not value.is_text)
    # No setting may be negative or infinite, even if its section does not state it.
    if isinstance(converted, int | float) and not 0 <= converted < math.inf:
        raise ValueError("out of range")
    return converted


class _SectionError(Exception):
    """A section's constructor refused its values."""

    def __init__(self, section: str, reason: Exception) -> None:
        super().__init__(f"{section}{reason}")
        self.section = section


def _built(section: Any, prefix: str, values: Mapping[str, object]) -> Any:
    arguments: dict[str, object] = {}
    for name, kind in _fields(section):
        key = f"{prefix}{name}"
        arguments[name] = values[key] if key in values else _built(kind, f"{key}.", values)
    try:
        return section(**arguments)
    except (ValueError, TypeError, ConfigError) as error:
        raise _SectionError(prefix, error) from error


def _at(tree: msgspec.Struct, key: str) -> object:
    found: object = tree
    for name in key.split("."):
        found = getattr(found, name)
    return found


def _fields(section: Any) -> list[tuple[str, Any]]:
    if issubclass(section, msgspec.Struct):
        return [(field.name, field.type) for field in msgspec.structs.fields(section)]
    hints = typing.get_type_hints(section, include_extras=True)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(section)]


def _is_section(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(cast("Any", kind))


# Messages about mistakes.


def _unknown(key: str, value: _Value, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not near:
        last = key.rpartition(".")[2]
        near = [other for other in known if other.rpartition(".")[2] == last][:1]
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(_sections(known))}"
    return f"{key} ({value.source}): there is no such setting{hint}"


def _sections(known: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(f"{key.partition('.')[0]}.*" for key in known))


def _refused(error: _SectionError, given: Mapping[str, _Value]) -> str:
    named = [
        f"{key} by {value.source}" for key, value in given.items() if key.startswith(error.section)
    ]
    return f"{error} (given: {', '.join(named)})"


def _mistake(problem: Problem, values: Mapping[str, object], origins: Mapping[str, str]) -> str:
    shown = ", ".join(f"{key} = {_shown(values[key])} ({origins[key]})" for key in problem.keys)
    return f"{shown}: {problem.text}"


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple):
        return str(list(cast("tuple[object, ...]", value)))
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _expected(kind: Any) -> str:
    """What a type admits, in words."""
    described = msgspec.inspect.type_info(kind)
    if isinstance(described, msgspec.inspect.Metadata):
        described = described.type
    return _in_words(described)


def _example(kind: Any, default: object) -> str:
    examples = [example for mark in _marks(kind) for example in mark.examples or ()]
    return _shown(examples[0] if examples else default)


def _in_words(described: msgspec.inspect.Type) -> str:
    match described:
        case msgspec.inspect.UnionType(types=options):
            return " or ".join(_in_words(option) for option in options)
        case msgspec.inspect.NoneType():
            return "null"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType():
            return "a whole number" + _range(described)
        case msgspec.inspect.FloatType():
            return "a number" + _range(described)
        case msgspec.inspect.LiteralType(values=values):
            return "one of " + ", ".join(_shown(value) for value in values)
        case msgspec.inspect.EnumType(cls=names):
            return "one of " + ", ".join(_shown(member) for member in names)
        case msgspec.inspect.StrType(pattern=pattern):
            return f"text that matches {pattern}" if pattern else "text"
        case (
            msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item)
        ):
            return f"a list, each item {_in_words(item)}"
        case _:
            return "a value of another kind"


def _range(number: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    limits = [
        f"{words} {limit:g}" if isinstance(limit, float) else f"{words} {limit}"
        for words, limit in (
            ("above", number.gt),
            ("of at least", number.ge),
            ("below", number.lt),
            ("of at most", number.le),
        )
        if limit is not None
    ]
    return " " + " and ".join(limits or ["of at least 0"])


def _extra(kind: Any, name: str) -> bool:
    return any((mark.extra or {}).get(name) for mark in _marks(kind))


def _marks(kind: Any) -> list[msgspec.Meta]:
    """The metadata of an annotation, also inside a union with None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [mark for option in typing.get_args(kind) for mark in _marks(option)]
    found = getattr(kind, "__metadata__", ())
    return [mark for mark in found if isinstance(mark, msgspec.Meta)]


def _is_list(kind: Any) -> bool:
    if hasattr(kind, "__metadata__"):
        kind = typing.get_args(kind)[0]
    return typing.get_origin(kind) in (list, tuple)
