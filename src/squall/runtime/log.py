"""Structured logging: an event is a name with fields.

    log = Log(sink, clock, level="info").bind(node="m1", boot="5f2a")
    log.info("peer_connected", peer="10.0.0.7:7000", took_s=0.012)

A `Log` decides what is written (level, a bounded rate per event) and what is hidden (secrets,
by the name of their field or by their value, and bytes). The sink decides the form. Logging
never raises into the caller and writes to nothing but the sink.
"""

from __future__ import annotations

import json
import logging
import math
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Protocol, TextIO, cast

from squall.runtime.interfaces import Clock

SECRET_NAMES = re.compile(
    r"secret|passw|token|authorization|credential|private_key|api_key|cookie", re.IGNORECASE
)
PythonLogger = logging.Logger
HIDDEN = "[hidden]"
EVENTS_TRACKED = 1024
FRAMES_SHOWN = 6
VALUE_MAX_CHARACTERS = 2000
PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")


class Level(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True)
class LogRecord:
    wall_s: float
    level: Level
    event: str
    fields: Mapping[str, object]
    """Plain values: text, numbers, booleans, None, and lists of them."""


class LogSink(Protocol):
    def write(self, record: LogRecord) -> None: ...


@dataclass
class MemorySink:
    """Keeps the newest `capacity` records."""

    capacity: int = 10_000
    records: list[LogRecord] = field(default_factory=list[LogRecord])

    def write(self, record: LogRecord) -> None:
        self.records.append(record)
        if len(self.records) > self.capacity:
            del self.records[0]

    def events(self) -> list[str]:
        return [record.event for record in self.records]


class StreamSink:
    """Writes lines to a text stream: key=value for people, or JSON."""

    def __init__(self, stream: TextIO, *, as_json: bool = False) -> None:
        self._stream = stream
        self._line = json_line if as_json else text_line

    def write(self, record: LogRecord) -> None:
        self._stream.write(self._line(record) + "\n")
        self._stream.flush()


class LoggingSink:
    """Writes lines to Python's own logging, whose handlers decide where they go."""

    def __init__(self, logger: PythonLogger | str) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger

    def write(self, record: LogRecord) -> None:
        # Its own time and level are those of the handlers.
        if self._logger.isEnabledFor(record.level):
            fields = (f"{name}={_quoted(value)}" for name, value in record.fields.items())
            self._logger.log(record.level, "%s", " ".join((record.event, *fields)))


class Log:
    """Writes events with its context to a sink. `bind` adds context and shares the rest."""

    def __init__(
        self,
        sink: LogSink,
        clock: Clock,
        *,
        level: str = "info",
        events_per_s: float = 5.0,
        burst: int = 50,
    ) -> None:
        self._shared = _Shared(sink, clock, Level[level.upper()], events_per_s, burst)
        self._context: dict[str, object] = {}

    def bind(self, **context: object) -> Log:
        bound = object.__new__(Log)
        bound._shared = self._shared
        bound._context = {**self._context, **context}
        return bound

    def hide(self, secret: str) -> None:
        """Hides this text in every field from now on."""
        self._shared.hide(secret)

    @property
    def dropped(self) -> int:
        """Events above their rate, and events that the sink failed to write."""
        return self._shared.dropped

    def debug(self, event: str, **fields: object) -> None:
        self._write(Level.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(Level.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(Level.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(Level.ERROR, event, fields)

    def _write(self, level: Level, event: str, fields: Mapping[str, object]) -> None:
        shared = self._shared
        if level < shared.level:
            return
        suppressed = shared.admit(event)
        if suppressed < 0:
            return
        try:
            plain: dict[str, object] = {}
            for name, value in (*self._context.items(), *fields.items()):
                plain[name] = shared.plain(name, value)
                if isinstance(value, BaseException):
                    plain["trace"] = shared.redacted(_trace(value))
            if suppressed:
                plain["suppressed"] = suppressed
            shared.sink.write(LogRecord(shared.clock.wall(), level, event, plain))
        except Exception:
            # A full disk behind stderr, or a value whose own str() fails: the node goes on.
            shared.dropped += 1


def text_line(record: LogRecord) -> str:
    """`2026-03-01T12:00:00.250Z info    peer_connected peer=10.0.0.7:7000 took_s=0.012`"""
    parts = [_stamp(record.wall_s), f"{record.level.name.lower():7}", record.event]
    parts.extend(f"{name}={_quoted(value)}" for name, value in record.fields.items())
    return " ".join(parts)


def json_line(record: LogRecord) -> str:
    head = {
        "time": _stamp(record.wall_s),
        "level": record.level.name.lower(),
        "event": record.event,
    }
    # The head comes last in the merge: a field of the same name must not replace it.
    return json.dumps({**head, **record.fields, **head}, ensure_ascii=False)


@dataclass
class _Bucket:
    tokens: float
    stamp: float
    suppressed: int = 0


class _Shared:
    """The state that all logs bound from one share."""

    def __init__(
        self, sink: LogSink, clock: Clock, level: Level, events_per_s: float, burst: int
    ) -> None:
        self.sink = sink
        self.clock = clock
        self.level = level
        self.dropped = 0
        self._events_per_s = events_per_s
        self._burst = burst
        self._buckets: dict[str, _Bucket] = {}
        self._secrets: dict[str, None] = {}

    def hide(self, secret: str) -> None:
        if secret:
            self._secrets[secret] = None

    def admit(self, event: str) -> int:
        """How many events of this name were suppressed before this one; -1 suppresses it."""
        now = self.clock.now()
        bucket = self._buckets.get(event)
        if bucket is None:
            if len(self._buckets) >= EVENTS_TRACKED:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[event] = _Bucket(float(self._burst), now)
        refill = (now - bucket.stamp) * self._events_per_s
        bucket.tokens = min(bucket.tokens + max(refill, 0.0), float(self._burst))
        bucket.stamp = now
        if bucket.tokens < 1.0:
            bucket.suppressed += 1
            self.dropped += 1
            return -1
        bucket.tokens -= 1.0
        suppressed, bucket.suppressed = bucket.suppressed, 0
        return suppressed

    def plain(self, name: str, value: object) -> object:
        if SECRET_NAMES.search(name) and not isinstance(value, bool | None):
            return HIDDEN
        return self._plain(value)

    def _plain(self, value: object) -> object:
        match value:
            case bool() | int() | None:
                return value
            case float():
                return value if math.isfinite(value) else str(value)
            case bytes() | bytearray():
                return f"<{len(value)} bytes>"
            case BaseException():
                return self.redacted(f"{type(value).__name__}: {value}".removesuffix(": "))
            case list() | tuple():
                return [self._plain(item) for item in cast("Sequence[object]", value)]
            case _:
                return self.redacted(str(value))

    def redacted(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text if len(text) <= VALUE_MAX_CHARACTERS else text[:VALUE_MAX_CHARACTERS] + "..."


def _trace(error: BaseException) -> str:
    """The innermost calls, on one line: "replica.py:88 in commit < loop.py:12 in turn"."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_SHOWN:]
    return " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
        for frame in reversed(frames)
    )


def _stamp(wall_s: float) -> str:
    stamp = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")


def _quoted(value: object) -> str:
    """A single word as it is, anything else as JSON, so that an event stays one line."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=True)
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False)
