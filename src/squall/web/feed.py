"""Sends the viewers of one run its history, then each second, line and change.

All of it runs in the event loop of the server. It never waits for a viewer: each has a bounded
queue. A viewer that falls behind is cut off; its browser reconnects and gets the whole history. The
history is bounded too: when the points exceed a size, the older half is thinned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from squall.engine.load_change import LoadChange
from squall.reporting.text.control_characters import one_line
from squall.stats.manifest import FileManifest
from squall.stats.snapshot import Snapshot
from squall.web.points import point_of

HISTORY_BYTES = 8_000_000
"""Of encoded points: hours of a usual file, minutes of one with hundreds of workflows."""
LOG_LINES = 500
LOG_LINE_CHARS = 2_000
LINES_PER_FLUSH = 100
FLUSH_S = 0.25
VIEWERS_MAX = 50
QUEUE_EVENTS = 64
KEEP_ALIVE_S = 10.0
_CHUNK_POINTS = 120

_encode = msgspec.json.encode


@dataclass(frozen=True)
class PageControls:
    """The changes that a viewer with the control token may make. Each raises `SquallError` if it is
    refused."""

    change: Callable[[LoadChange], Awaitable[None]]
    multiply: Callable[[float, str], Awaitable[None]]
    """Factor and workflow ("" for all)."""
    stop: Callable[[bool], None] | None = None
    """None: this command only watches."""


@dataclass(frozen=True)
class FinishedRun:
    """The end of a run: its results document and its report."""

    document: bytes
    report: bytes


class TooManyViewers(Exception):
    """The run has as many viewers as allowed."""


class RunFeed:
    """One run, from its manifest to its report."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.controls: PageControls | None = None
        self.finished: FinishedRun | None = None
        # Set when nothing more is to come, with or without a result.
        self.is_over = False
        self._manifest: dict[str, Any] | None = None
        self._latest: bytes = b"null"
        self._points: list[bytes] = []
        self._points_bytes = 0
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._unsent: list[str] = []
        self._left_out = 0
        self._flush: asyncio.TimerHandle | None = None
        self._notice = ""
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        # Done when the last viewer has left.
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def viewers(self) -> int:
        return len(self._queues)

    def start(self, manifest: FileManifest, processes: int) -> None:
        self._manifest = manifest_entry(manifest, processes)
        self._publish("start", _encode(self._head()))

    def offer(self, controls: PageControls) -> None:
        self.controls = controls
        self._publish("start", _encode(self._head()))

    def snapshot(self, snapshot: Snapshot) -> None:
        point = _encode(point_of(snapshot))
        self._latest = _encode(snapshot)
        self._points.append(point)
        self._points_bytes += len(point)
        if self._points_bytes > HISTORY_BYTES:
            self._thin()
        self._publish("second", b'{"point":' + point + b',"now":' + self._latest + b"}")

    def log(self, text: str) -> None:
        """Adds lines. They are sent together; above a rate they are only counted."""
        for line in text.splitlines() or [""]:
            shown = one_line(line[:LOG_LINE_CHARS])
            self._log.append(shown)
            if len(self._unsent) < LINES_PER_FLUSH:
                self._unsent.append(shown)
            else:
                self._left_out += 1
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self._send_log)

    def notice(self, text: str) -> None:
        """Sets what viewers wait for, such as `stopping`."""
        self._notice = text
        self._publish("notice", _encode(text))

    def end(self, finished: FinishedRun | None, reason: str = "") -> None:
        """Sends the last event, after which viewers load the report and leave."""
        self._send_log()
        self.finished, self.is_over, self.controls = finished, True, None
        self._notice = reason
        self._publish("end", _encode({"report": finished is not None, "reason": reason}))

    async def wait_for_viewers(self, timeout_s: float) -> None:
        """Returns when no viewer is left, or after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return

    def disconnect(self) -> None:
        for queue in list(self._queues):
            self._drop(queue)

    async def events(self, *, may_control: bool, key: str) -> AsyncGenerator[bytes]:
        """Server-sent events for one viewer, until it leaves or falls behind. `key` admits the
        requests of the page's links."""
        if len(self._queues) >= VIEWERS_MAX:
            raise TooManyViewers
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_EVENTS)
        first = self._greeting({"mayControl": may_control, "key": key})
        self._queues.add(queue)
        self._empty.clear()
        try:
            for event in first:
                yield event
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        event = await queue.get()
                except TimeoutError:
                    # Without it a viewer that vanished would be noticed at the next event only.
                    yield b": alive\n\n"
                    continue
                if event is None:
                    return
                yield event
        finally:
            self._queues.discard(queue)
            if not self._queues:
                self._empty.set()

    # What a new viewer gets.

    def _greeting(self, own: dict[str, Any]) -> list[bytes]:
        events = [_event("hello", _encode(self._head() | own))]
        for first in range(0, len(self._points), _CHUNK_POINTS):
            chunk = self._points[first : first + _CHUNK_POINTS]
            events.append(_event("history", b"[" + b",".join(chunk) + b"]"))
        events.append(_event("log", _encode(list(self._log))))
        if self._points:
            events.append(_event("now", self._latest))
        if self.is_over:
            over = {"report": self.finished is not None, "reason": self._notice}
            events.append(_event("end", _encode(over)))
        return events

    def _head(self) -> dict[str, Any]:
        controls = self.controls
        return {
            "name": self.name,
            "manifest": self._manifest,
            "notice": self._notice,
            "controls": {
                "load": controls is not None,
                "stop": controls is not None and controls.stop is not None,
            },
        }

    # Sending.

    def _send_log(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if not self._unsent:
            return
        lines, self._unsent = self._unsent, []
        if self._left_out:
            lines.append(f"({self._left_out} more lines are left out)")
            self._left_out = 0
        self._publish("log", _encode(lines))

    def _publish(self, name: str, data: bytes) -> None:
        event = _event(name, data)
        for queue in list(self._queues):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._drop(queue)

    def _drop(self, queue: asyncio.Queue[bytes | None]) -> None:
        """Ends the stream of a viewer whose queue is full."""
        self._queues.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    def _thin(self) -> None:
        half = len(self._points) // 2
        self._points = self._points[:half:2] + self._points[half:]
        self._points_bytes = sum(map(len, self._points))


def manifest_entry(manifest: FileManifest, processes: int) -> dict[str, Any]:
    """The data about an author's file that the page shows."""
    from squall.engine.load.profile import describe

    return {
        "file": manifest.path,
        "processes": processes,
        "workflows": [
            {
                "name": each.name,
                "isTest": each.is_test,
                "isOpen": each.profile.is_open,
                "load": describe(each.profile),
                "duration": each.profile.duration_s if each.profile.duration_s < 1e9 else None,
            }
            for each in manifest.workflows
        ],
    }


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
