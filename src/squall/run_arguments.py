"""Checks the arguments that `squall.run` and `Client.submit` share, and makes options of them.

Each wrong argument is a `UsageError` of one line that begins with the caller.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast

import msgspec

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_duration, parse_host, quoted, text_of
from squall.api.workflow import Workflow
from squall.engine.connection_options import check_resolve, connection_options
from squall.engine.run_options import ProfileFlags, RunOptions

T = TypeVar("T")


class WorkflowLoad(TypedDict, total=False):
    """The load of one workflow, in `squall.run(..., load={"Shop": {"vus": 5}})`."""

    vus: int | None
    duration: str | float | None
    iterations: int | str | None
    rate: str | float | None
    stages: Sequence[str]


def checked_options(
    caller: str,
    workflow: type[Workflow] | str | os.PathLike[str],
    given: Mapping[str, Any],
    **others: Any,
) -> RunOptions:
    """`given` has the arguments of the caller by name, as `locals()` does."""
    load = {name: given[name] for name in WorkflowLoad.__optional_keys__}
    loads = _mapping(caller, "load", given["load"])
    connection = connection_options(
        lambda name: f"{caller}: {name}",
        proxy=text_of(f"{caller}: proxy", given["proxy"], "write a URL"),
        cacert=path_of(caller, "cacert", given["cacert"]),
        cert=path_of(caller, "cert", given["cert"]),
        cert_key=path_of(caller, "cert_key", given["cert_key"]),
    )
    options = options_for(
        caller,
        workflow,
        _profile(caller, "", load),
        load={name: _profile(caller, name, each) for name, each in loads.items()},
        host=_checked(caller, "host", parse_host, given["host"]),
        env=_mapping(caller, "env", given["env"]),
        secrets={**_mapping(caller, "secrets", given["secrets"]), **connection.secrets},
        thresholds=_texts(caller, "thresholds", given["thresholds"]),
        only=_texts(caller, "only", given["only"]),
        skip=_texts(caller, "skip", given["skip"]),
        seed=given["seed"],
        tags=_mapping(caller, "tags", given["tags"]),
        insecure=given["insecure"],
        http2=given["http2"],
        traceparent=given["traceparent"],
        ca_file=connection.ca_file,
        proxy=connection.proxy,
        resolve=_mapping(caller, "resolve", given["resolve"]),
        warmup_s=seconds_of(caller, given["warmup"]) or 0.0,
        timeout_s=seconds_of(caller, given["timeout"]),
        **others,
    )
    check_resolve(f"{caller}: resolve", options.resolve)
    return options


def options_for(
    caller: str,
    workflow: type[Workflow] | str | os.PathLike[str],
    flags: ProfileFlags,
    *,
    load: Mapping[str, ProfileFlags] | None = None,
    **others: Any,
) -> RunOptions:
    is_class = isinstance(workflow, type)
    if is_class and not issubclass(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{caller}: class {workflow.__name__} is not a Workflow")
    if not is_class and not isinstance(workflow, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"{caller}: {quoted(workflow)} is neither a workflow class nor a path nor a URL"
        )
    if os.environ.get("SQUALL_LOADING"):
        raise UsageError(
            f"{caller} was called while its file was loaded for a run; "
            'put it under  if __name__ == "__main__":'
        )
    name = ""
    if isinstance(workflow, type):
        if "<locals>" in workflow.__qualname__:
            raise ConfigError(
                f"{workflow.__name__} is defined inside a function; core processes load it "
                "from its file, so define it at the top level of a module"
            )
        path, name = _file_of(workflow), workflow.__name__
        others["only"] = others.get("only") or (name,)
    else:
        path = os.fspath(workflow)
    profiles = dict(load or {})
    if not flags.is_empty:
        profiles[name] = flags
    place = {"url": path} if "://" in path else {"file": path}
    return _of_right_kinds(caller, profiles=profiles, **place, **others)


def _of_right_kinds(caller: str, **fields: Any) -> RunOptions:
    """The options, if each has the kind that `RunOptions` declares: they are encoded for other
    processes, where a wrong one would be a bug of Squall."""
    try:
        return msgspec.convert(msgspec.to_builtins(RunOptions(**fields)), RunOptions)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        name = path.strip("`.") or "an argument"
        raise UsageError(f"{caller}: {name}: {text.replace('`', '')}") from None
    except TypeError:
        wrong = next(name for name, value in fields.items() if not _is_plain(value))
        value = quoted(fields[wrong])
        raise UsageError(f"{caller}: {wrong}={value} is not plain data") from None


def _is_plain(value: Any) -> bool:
    try:
        msgspec.to_builtins(value)
    except TypeError:
        return False
    return True


def _file_of(workflow: type[Workflow]) -> str:
    try:
        path = inspect.getfile(workflow)
    except (OSError, TypeError):
        path = ""
    if not os.path.isfile(path):
        raise ConfigError(
            f"{workflow.__name__} was typed interactively and has no file; core processes load it "
            "from a file, so put it into a module"
        )
    return path


def seconds_of(caller: str, value: str | float | None) -> float | None:
    return None if value is None else _checked(caller, "time", parse_duration, value)


def _profile(caller: str, workflow: str, given: Mapping[str, Any]) -> ProfileFlags:
    load: dict[str, Any] = dict(_mapping(caller, f"load of {workflow}", given))
    unknown = [name for name in load if name not in ProfileFlags.__struct_fields__]
    if unknown:
        known = ", ".join(ProfileFlags.__struct_fields__)
        raise UsageError(f'{caller}: load of {workflow} has no "{unknown[0]}"; known: {known}')
    load["stages"] = _texts(caller, "stages", load.get("stages", ()))
    return ProfileFlags(**load)


def _texts(caller: str, name: str, value: Any) -> tuple[str, ...]:
    """One text is one item: a string is a sequence of characters too."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise UsageError(f"{caller}: {name}={quoted(value)} is not a list of texts")
    return tuple(cast("Sequence[str]", value))


def _mapping(caller: str, name: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{caller}: {name}={quoted(value)} is not a mapping such as {{...}}")
    return dict(cast("Mapping[str, Any]", value or {}))


def path_of(caller: str, name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{caller}: {name}={quoted(value)}: name a file")
    return os.fspath(cast("str | os.PathLike[str]", value))


def _checked(caller: str, name: str, parse: Callable[[Any, str], T], value: Any) -> T:
    try:
        return parse(value, name)
    except ConfigError as error:
        raise UsageError(f"{caller}: {error}") from None
