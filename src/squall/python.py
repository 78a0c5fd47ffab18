"""Runs workflows from Python and pytest: `squall.run(Shop, vus=5, duration="3s")`."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

import msgspec

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_host, quoted, text_of
from squall.api.workflow import Workflow
from squall.engine.run_options import connection_secrets

if TYPE_CHECKING:
    from squall.engine.run_options import ProfileFlags, RunOptions
    from squall.reporting.outputs.delivery import PreparedOutput
    from squall.reporting.run_result import Result

T = TypeVar("T")


class WorkflowLoad(TypedDict, total=False):
    """The load of one workflow, in `squall.run(..., load={"Shop": {"vus": 5}})`."""

    vus: int | None
    duration: str | float | None
    iterations: int | str | None
    rate: str | float | None
    stages: Sequence[str]


class Outputs(TypedDict, total=False):
    """Files to write after the run, as the flags of the same names do."""

    json: str | os.PathLike[str]
    html: str | os.PathLike[str]
    junit: str | os.PathLike[str]
    markdown: str | os.PathLike[str]
    csv: str | os.PathLike[str]
    xml: str | os.PathLike[str]


def run(
    workflow: type[Workflow] | str | os.PathLike[str],
    *,
    vus: int | None = None,
    duration: str | float | None = None,
    iterations: int | str | None = None,
    rate: str | float | None = None,
    stages: Sequence[str] = (),
    load: Mapping[str, WorkflowLoad] | None = None,
    host: str = "",
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    thresholds: Sequence[str] = (),
    workers: int | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    seed: int = 0,
    tags: Mapping[str, str] | None = None,
    warmup: str | float | None = None,
    timeout: str | float | None = None,
    insecure: bool = False,
    cacert: str | os.PathLike[str] = "",
    cert: str | os.PathLike[str] = "",
    cert_key: str | os.PathLike[str] = "",
    proxy: str = "",
    resolve: Mapping[str, str] | None = None,
    **outputs: Unpack[Outputs],
) -> Result:
    """Runs a workflow class (with those it depends on), a file or a URL, and returns the result.

    `vus`, `duration`, `iterations`, `rate` and `stages` replace the load model of the file; `load`
    gives them for each workflow. `html`, `junit`, `json` and the other outputs name files to write.
    `resolve` maps "host:port" to an address. The other arguments are the flags of `squall run` of
    the same name. `timeout` ends a run that is not over by then. It blocks, also inside a running
    event loop, and raises `ConfigError` for a file that cannot run and `UsageError` for a wrong
    argument.
    """
    given = WorkflowLoad(
        vus=vus, duration=duration, iterations=iterations, rate=rate, stages=stages
    )
    through, hidden = connection_secrets(
        text_of("squall.run: proxy", proxy, "write a URL"),
        _path("cert", cert),
        _path("cert_key", cert_key),
    )
    options = options_for(
        workflow,
        _profile("", given),
        load={name: _profile(name, each) for name, each in _mapping("load", load).items()},
        host=_checked("host", parse_host, host),
        env=_mapping("env", env),
        secrets={**_mapping("secrets", secrets), **hidden},
        thresholds=_texts("thresholds", thresholds),
        workers=workers,
        only=_texts("only", only),
        skip=_texts("skip", skip),
        seed=seed,
        tags=_mapping("tags", tags),
        insecure=insecure,
        ca_file=_path("cacert", cacert),
        proxy=through,
        resolve=_mapping("resolve", resolve),
        warmup_s=seconds_of(warmup) or 0.0,
        timeout_s=seconds_of(timeout),
    )
    prepared = _prepared(outputs)
    result = _blocking(options)
    _deliver(result, prepared, options)
    return result


def _prepared(outputs: Mapping[str, Any]) -> list[PreparedOutput]:
    """Checks the outputs before the run."""
    from squall.reporting.outputs.delivery import KINDS, Output, prepare

    unknown = [kind for kind in outputs if kind not in KINDS]
    if unknown:
        raise UsageError(f"squall.run has no argument {unknown[0]}; outputs: {', '.join(KINDS)}")
    places = {kind: _path(kind, target) for kind, target in outputs.items()}
    return prepare([Output(kind, place, kind) for kind, place in places.items() if place])


def _deliver(result: Result, prepared: list[PreparedOutput], options: RunOptions) -> None:
    from squall.reporting.outputs.delivery import deliver
    from squall.reporting.redaction import Redactor

    if not prepared:
        return
    document = Redactor(options.secrets.values()).document(result.document)
    delivery = deliver(document, prepared)
    for line in (*delivery.failures, *delivery.notices):
        # Not an error: the result must not be lost with a file.
        warnings.warn(f"squall.run: {line}", stacklevel=3)


def _profile(workflow: str, given: Mapping[str, Any]) -> ProfileFlags:
    from squall.engine.run_options import ProfileFlags

    load: dict[str, Any] = dict(_mapping(f"load of {workflow}", given))
    unknown = [name for name in load if name not in ProfileFlags.__struct_fields__]
    if unknown:
        known = ", ".join(ProfileFlags.__struct_fields__)
        raise UsageError(f'squall.run: load of {workflow} has no "{unknown[0]}"; known: {known}')
    load["stages"] = _texts("stages", load.get("stages", ()))
    return ProfileFlags(**load)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text is one item: a string is a sequence of characters too."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise UsageError(f"squall.run: {name}={quoted(value)} is not a list of texts")
    return tuple(cast("Sequence[str]", value))


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"squall.run: {name}={quoted(value)} is not a mapping such as {{...}}")
    return dict(cast("Mapping[str, Any]", value or {}))


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"squall.run: {name}={quoted(value)}: name a file")
    return os.fspath(cast("str | os.PathLike[str]", value))


def _checked(name: str, parse: Callable[[Any, str], T], value: Any) -> T:
    try:
        return parse(value, name)
    except ConfigError as error:
        raise UsageError(f"squall.run: {error}") from None


class LocalRunner:
    """Runs workflows on this machine: `await LocalRunner().run(workflows=[...])`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, workers: int | None = None) -> None:
        # `host` and `port` exist for runners that listen for workers. Core processes talk over
        # socket pairs here, so nothing listens.
        self._workers = workers

    async def run(
        self,
        test_name: str = "",
        workflows: Sequence[tuple[Sequence[str], Workflow] | type[Workflow]] = (),
        terminal_mode: str = "none",
        timeout: str | float | None = None,  # noqa: ASYNC109 the whole run's, not this call's
    ) -> Result:
        """Runs all given workflows, which must be in one file, as one run."""
        from squall.engine.run_options import ProfileFlags

        classes = [_class_of(entry) for entry in workflows]
        if not classes:
            raise UsageError("LocalRunner.run: no workflows given")
        files = {inspect.getfile(cls) for cls in classes}
        if len(files) > 1:
            raise ConfigError(
                f"the workflows of one run must be in one file, not in {sorted(files)}"
            )
        options = options_for(
            classes[0],
            ProfileFlags(),
            workers=self._workers,
            only=tuple(cls.__name__ for cls in classes),
            tags={"test": test_name} if test_name else {},
            timeout_s=seconds_of(timeout),
        )
        return await _run(options, lines=terminal_mode in ("full", "ci"))


def _class_of(entry: tuple[Sequence[str], Workflow] | type[Workflow]) -> type[Workflow]:
    return entry if isinstance(entry, type) else type(entry[1])


def options_for(
    workflow: type[Workflow] | str | os.PathLike[str],
    flags: ProfileFlags,
    *,
    load: Mapping[str, ProfileFlags] | None = None,
    **others: Any,
) -> RunOptions:
    is_class = isinstance(workflow, type)
    if is_class and not issubclass(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"squall.run: class {workflow.__name__} is not a Workflow")
    if not is_class and not isinstance(workflow, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"squall.run: {quoted(workflow)} is neither a workflow class nor a path nor a URL"
        )
    if os.environ.get("SQUALL_LOADING"):
        raise UsageError(
            "squall.run() was called while its file was loaded for a run; "
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
    return _of_right_kinds(profiles=profiles, **place, **others)


def _of_right_kinds(**fields: Any) -> RunOptions:
    """The options, if each has the kind that `RunOptions` declares: they are encoded for other
    processes, where a wrong one would be a bug of Squall."""
    from squall.engine.run_options import RunOptions

    try:
        return msgspec.convert(msgspec.to_builtins(RunOptions(**fields)), RunOptions)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        name = path.strip("`.") or "an argument"
        raise UsageError(f"squall.run: {name}: {text.replace('`', '')}") from None
    except TypeError:
        wrong = next(name for name, value in fields.items() if not _is_plain(value))
        value = quoted(fields[wrong])
        raise UsageError(f"squall.run: {wrong}={value} is not plain data") from None


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


def seconds_of(value: str | float | None) -> float | None:
    from squall.api.quantities import parse_duration

    return None if value is None else _checked("time", parse_duration, value)


async def _run(options: RunOptions, *, lines: bool = False) -> Result:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        return await _run_local(options, lines=lines)
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


async def _run_local(options: RunOptions, *, lines: bool) -> Result:
    from squall.engine.run.local_run import run_local
    from squall.reporting.redaction import Redactor
    from squall.reporting.run_result import Result
    from squall.reporting.text.progress_lines import ProgressLines

    progress = ProgressLines(Redactor(options.secrets.values()), quiet=not lines)
    if not lines:
        # It prints only warnings.
        return Result(await run_local(options, on_manifest=progress.on_manifest))
    return Result(
        await run_local(
            options,
            on_manifest=progress.on_manifest,
            on_snapshot=progress.on_snapshot,
            on_log=progress.on_log,
        )
    )


def _blocking(options: RunOptions) -> Result:
    """Works inside a running loop too (pytest-asyncio, notebooks): it runs in a thread then."""
    if not _in_loop():
        return asyncio.run(_run(options))
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(_run(options)))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, name="squall-run")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
