"""Reads along while tests run: every log line, event, error, metric and `repr` of members, and
whether a secret or a signature stands in one of them.

A folder whose `conftest` imports `nothing_secret_is_told` is watched, each test by itself. Members
that were given no log have their own at the level of debug.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from squall.api.errors import SquallError
from squall.coordination import member_parts as assembly
from squall.coordination.coordinator import Coordinator
from squall.coordination.events import ErrorEvent, Event, EventBus
from squall.coordination.secrets.signing import Key, Keyring
from squall.runtime import log as log_module
from squall.runtime.log import Log, LoggingSink, LogRecord, json_line, text_line

DIGEST = re.compile(r"[0-9a-f]{64}")
LEAKS = pytest.StashKey[list[str]]()


class Watch:
    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self.signatures: set[str] = set()
        self.told: list[str] = []
        self._shown: list[ref[object]] = []
        """What has a `repr` that people see. Not kept alive: tests look at what stays in memory."""

    def show(self, thing: object) -> None:
        """As it is now, and as it is at the end if it is still there."""
        self.told.append(repr(thing))
        with suppress(TypeError):
            self._shown.append(ref(thing))

    def know(self, secret: object) -> None:
        for each in (secret,) if isinstance(secret, str) else secret or ():
            if each:
                self.secrets.add(each)

    def read(self, folder: Path) -> None:
        """What processes left there: their journals, and what they wrote to stderr."""
        for path in (*folder.rglob("*.err"), *folder.rglob("*.jsonl")):
            self.told.append(path.read_text(errors="replace"))

    def leaks(self) -> list[str]:
        """Texts that say what they must not."""
        shown = [thing for each in self._shown if (thing := each()) is not None]
        return [text for text in (*self.told, *map(repr, shown)) if self._is_leak(text)]

    def _is_leak(self, text: str) -> bool:
        if any(found in self.signatures for found in DIGEST.findall(text)):
            return True
        return any(secret in text for secret in self.secrets)


def _after(call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        done = call(self, *arguments, **named)
        note(self, done, *arguments)
        return done

    return noted


@contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    of_python = _PythonLogs(watch)
    logging.getLogger().addHandler(of_python)
    try:
        with pytest.MonkeyPatch.context() as patch:
            _read_logs(watch, patch)
            _read_errors_and_events(watch, patch)
            _learn_secrets(watch, patch)
            yield watch
    finally:
        logging.getLogger().removeHandler(of_python)


class _PythonLogs(logging.Handler):
    """Where asyncio tells of what nobody caught, with its traceback."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.told.append(self.format(record))


def _read_logs(watch: Watch, patch: pytest.MonkeyPatch) -> None:
    def record(*arguments: Any, **named: Any) -> LogRecord:
        made = LogRecord(*arguments, **named)
        watch.told += [text_line(made), json_line(made)]
        return made

    bound = assembly._bound  # pyright: ignore[reportPrivateUsage]

    def always(log: Log | None, options: Any, runtime: Any, name: str) -> Log | None:
        if log is None:
            sink = LoggingSink(assembly.LOGGER)
            log = Log(sink, runtime.clock, level="debug", events_per_s=1e6)
        return bound(log, options, runtime, name)

    patch.setattr(log_module, "LogRecord", record)
    patch.setattr(assembly, "_bound", always)


def _read_errors_and_events(watch: Watch, patch: pytest.MonkeyPatch) -> None:
    def made(error: Any, *arguments: Any) -> None:
        Exception.__init__(error, *arguments)
        watch.told.append(" ".join(map(str, arguments)))

    emit = EventBus.emit

    def emitted(bus: EventBus, event: Event, **named: bool) -> None:
        watch.told.append(repr(event))
        if isinstance(event, ErrorEvent):
            watch.told.append(f"{event.error!r} {event.error}")
        emit(bus, event, **named)

    patch.setattr(SquallError, "__init__", made)
    patch.setattr(EventBus, "emit", emitted)


def _learn_secrets(watch: Watch, patch: pytest.MonkeyPatch) -> None:
    def member(made: Coordinator, _: None, *__: object) -> None:
        watch.know(made.options.secret)
        watch.show(made)
        watch.show(made.options)

    def key(made: Key, _: None, secret: str, *__: object) -> None:
        watch.know(secret)
        watch.show(made)

    stop = Coordinator.stop

    async def stopped(made: Coordinator) -> None:
        if made._parts is not None:  # pyright: ignore[reportPrivateUsage]
            watch.told.append(made.metrics_text())
        await stop(made)

    patch.setattr(Coordinator, "__init__", _after(Coordinator.__init__, member))
    patch.setattr(Key, "__init__", _after(Key.__init__, key))
    patch.setattr(Keyring, "__init__", _after(Keyring.__init__, lambda made, *_: watch.show(made)))
    patch.setattr(
        Key, "sign", _after(Key.sign, lambda _, signature, *__: watch.signatures.add(signature))
    )
    patch.setattr(Coordinator, "stop", stopped)


@contextmanager
def watched(node: pytest.Item) -> Iterator[Watch]:
    """Fails at its end if something was told. A test that is tried again does not get rid of what
    it told before."""
    with watching() as watch:
        yield watch
    leaks = node.stash.setdefault(LEAKS, [])
    leaks += watch.leaks()
    assert leaks == [], "a secret or a signature was told"


@pytest.fixture(autouse=True)
def nothing_secret_is_told(request: pytest.FixtureRequest) -> Iterator[Watch]:
    with watched(request.node) as watch:
        yield watch
