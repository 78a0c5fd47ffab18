"""Parses an event stream as the HTML standard describes it (9.2.6). Nothing here does I/O."""

from __future__ import annotations

from squall.api.sse import SSEEvent

# An event is held in memory until its blank line comes.
MOST_EVENT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """No event ended within `MOST_EVENT_BYTES`."""


class EventParser:
    """Turns pieces of a stream into events. `last_id` and `retry_s` (None until the server sets it)
    outlive a connection; `begin` forgets what a connection left unfinished."""

    __slots__ = ("_begins", "_cut_at_cr", "_rest", "last_id", "retry_s")

    def __init__(self) -> None:
        self.last_id = ""
        self.retry_s: float | None = None
        self.begin()

    def begin(self) -> None:
        self._rest = b""
        self._begins = True
        # The last piece ended with CR: an LF at the start of the next one belongs to it.
        self._cut_at_cr = False

    def feed(self, piece: bytes, now: float) -> list[SSEEvent]:
        if self._cut_at_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._cut_at_cr = False
        if b"\r" in piece:
            self._cut_at_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif piece:
            self._cut_at_cr = False
        data = self._rest + piece if self._rest else piece
        if self._begins:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            data = data.removeprefix(_BOM)
            self._begins = False
        *blocks, self._rest = data.split(b"\n\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            raise EventTooLarge
        events: list[SSEEvent] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                # The common event; the loop below would give the same.
                text = block[6:].decode("utf-8", "replace")
                if text:
                    events.append(SSEEvent("message", text, self.last_id, now))
                continue
            event = self._event(block, now)
            if event is not None:
                events.append(event)
        return events

    def _event(self, block: bytes, now: float) -> SSEEvent | None:
        kind, lines = "", list[str]()
        for line in block.decode("utf-8", "replace").split("\n"):
            name, colon, value = line.partition(":")
            if not name:
                # An empty line, or a comment.
                continue
            value = value.removeprefix(" ") if colon else ""
            if name == "data":
                lines.append(value)
            elif name == "event":
                kind = value
            elif name == "id" and "\0" not in value:
                self.last_id = value
            elif name == "retry" and value.isascii() and value.isdigit():
                self.retry_s = int(value) / 1000
        data = "\n".join(lines)
        return SSEEvent(kind or "message", data, self.last_id, now) if data else None
