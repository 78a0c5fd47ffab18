"""The form of a target, `PLACE,option=value,...`, for built-in outputs and those of authors.

The configuration that a class or function asks for as its first parameter decides how a target is
read: `str` gets the text as it is; the fields of a dataclass or a msgspec struct get the parts,
converted to their types. A part without a name belongs to the first field, or continues a list
before it: `kafka=a:9092,b:9092,topic=load`. A value `@FILE` is read from a file, and `env:NAME`
from the environment. No message shows a value, because it may be a secret.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from squall.api.errors import UsageError
from squall.reporting.redaction import without_credentials

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Secret:
    """Marks a field whose value is never shown: `token: Annotated[str, Secret("API_TOKEN")] = ""`.
    Without a value in the target it is read from the environment variable, if that is set."""

    variable: str = ""


@dataclasses.dataclass(frozen=True)
class CreatedOutput:
    """The object that a factory made from a target."""

    made: Any
    secrets: tuple[str, ...]
    """Values that no message may show."""


def create(factory: Callable[..., Any], target: str, flag: str) -> CreatedOutput:
    """Calls a class or function with its configuration. A parameter `flag` gets the name of the
    output in messages, `-o influx`."""
    name = getattr(factory, "__name__", "it")
    try:
        config, secrets = _config(factory, target)
        made = factory() if config is None else create_with(factory, config, flag)
    except (msgspec.ValidationError, TypeError, ValueError, OSError) as error:
        text = " ".join(without_credentials(str(error)).split())
        raise UsageError(
            f"{flag}={without_credentials(target)}: {name} cannot be created: {text}"
        ) from None
    return CreatedOutput(made, secrets)


def create_with(factory: Callable[..., Any], config: object, flag: str) -> Any:
    """Calls a factory with the configuration that it asks for."""
    named = {"flag": flag} if "flag" in inspect.signature(factory).parameters else {}
    return factory(config, **named)


def wanted_config(factory: Callable[..., Any]) -> Any:
    """The type of the configuration that a factory asks for as its first parameter."""
    function = factory.__init__ if isinstance(factory, type) else factory
    hints = get_type_hints(function)
    return next(kind for name, kind in hints.items() if name not in ("return", "flag"))


def resolved(config: T) -> T:
    """A configuration that was written in Python, with the values of `@FILE`, `env:NAME` and the
    environment variables of its secrets."""
    changes: dict[str, Any] = {}
    for name, kind in _hints(type(config)).items():
        value, secret = getattr(config, name), _secret(kind)
        if isinstance(value, str) and value:
            changes[name] = _resolved(name, value)
        elif not value and secret is not None and os.environ.get(secret.variable):
            changes[name] = os.environ[secret.variable]
    if not changes:
        return config
    if isinstance(config, msgspec.Struct):
        return msgspec.structs.replace(config, **changes)
    return dataclasses.replace(cast(Any, config), **changes)


def secrets_in(config: object) -> tuple[str, ...]:
    """The secrets of a configuration, and the passwords in its URLs."""
    found: list[str] = []
    for name, kind in _hints(type(config)).items():
        value = getattr(config, name, None)
        texts = cast(list[Any], value) if isinstance(value, list) else [value]
        for text in texts:
            if not isinstance(text, str) or not text:
                continue
            if _secret(kind) is None:
                found += _passwords(text)
            else:
                # Of a header `name=value` only the value may be shown elsewhere.
                found += [text, text.partition("=")[2]] if texts is value else [text]
    return tuple(filter(None, found))


def _config(factory: Callable[..., Any], target: str) -> tuple[Any, tuple[str, ...]]:
    """The value for the first parameter; None if the factory takes none."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [
        each
        for each in inspect.signature(factory).parameters.values()
        if each.kind in by_place and each.name != "flag"
    ]
    if not parameters:
        if target:
            raise ValueError("it takes no configuration; write nothing after the =")
        return None, ()
    function = factory.__init__ if isinstance(factory, type) else factory
    wanted = get_type_hints(function).get(parameters[0].name, str)
    hints = _hints(wanted)
    if not hints:
        return target, tuple(_passwords(target))
    pairs, read = _pairs(target, hints)
    config = msgspec.convert(pairs, wanted, strict=False)
    return config, (*read, *secrets_in(config))


def _hints(wanted: Any) -> dict[str, Any]:
    """The fields of a dataclass or a struct with their types; empty for anything else."""
    if dataclasses.is_dataclass(wanted):
        fields = dataclasses.fields(wanted)
        # The place is the first one that can be given without its name.
        names = [field.name for field in fields if not field.kw_only]
        names += [field.name for field in fields if field.kw_only]
    else:
        names = list(getattr(wanted, "__struct_fields__", ()))
    hints = get_type_hints(wanted, include_extras=True) if names else {}
    return {name: hints[name] for name in names}


def _pairs(target: str, hints: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values by field, and those of them that were read from a file or the environment."""
    names = list(hints)
    texts: dict[str, list[str]] = {}
    last = ""
    for part in target.split(",") if target else ():
        key, equals, value = part.partition("=")
        if equals and key in hints:
            last = key
            texts.setdefault(key, []).append(value)
        elif not texts and not (equals and key.isidentifier()):
            last = names[0]
            texts[last] = [part]
        elif last and not equals and _is_list(hints[last]):
            texts[last].append(part)
        else:
            shown = f"{key}=..." if equals and key.isidentifier() else "a part after the first"
            raise ValueError(f"{shown}: write NAME=VALUE; names are {', '.join(names)}")
    for name, kind in hints.items():
        secret = _secret(kind)
        if name not in texts and secret is not None and os.environ.get(secret.variable):
            found = os.environ[secret.variable]
            texts[name] = found.split(",") if _is_list(kind) else [found]
    values: dict[str, Any] = {}
    read: list[str] = []
    for name, parts in texts.items():
        if len(parts) > 1 and not _is_list(hints[name]):
            raise ValueError(f"{name}= is given twice")
        resolved = [_resolved(name, part) for part in parts]
        read += [after for before, after in zip(parts, resolved, strict=True) if before != after]
        values[name] = resolved if _is_list(hints[name]) else resolved[0]
    return values, read


def _resolved(name: str, value: str) -> str:
    """Reads `@FILE` and `env:NAME`."""
    if value.startswith("@"):
        try:
            with open(value[1:], encoding="utf-8") as file:
                return file.read().strip()
        except OSError as error:
            raise ValueError(f"{name}={value}: {error.strerror}") from None
    if value.startswith("env:"):
        variable = value.removeprefix("env:")
        if variable not in os.environ:
            raise ValueError(f"{name}={value}: the environment has no {variable}; export it first")
        return os.environ[variable]
    return value


def _is_list(kind: Any) -> bool:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(kind) in (list, tuple)


def _secret(kind: Any) -> Secret | None:
    marks = getattr(kind, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Secret)), None)


def _passwords(text: str) -> list[str]:
    return [found for found in re.findall(r"//[^:/@\s]*:([^/\s,]*)@", text) if found]
