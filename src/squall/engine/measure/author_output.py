"""Captures what the author's code prints and logs, so that it cannot break the screen.

In a core process, standard output and standard error become writers that pass complete lines
to a sink, each with the workflow and user it came from. A process passes on 20 lines a second
and reports how many it dropped. Nothing here raises into the author's code, whatever is
printed and whatever the sink does.
"""

from __future__ import annotations

import codecs
import io
import logging
import re
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import Any, TextIO, cast

from squall.api.workflow import Workflow

LINES_PER_S = 20
LONGEST_LINE = 2_000
LONGEST_PARTIAL = 8_000
"""Text without an end of line is passed on as a line when it grows beyond this."""

DEEPEST_STACK = 60
"""Frames walked to find the user; deeper calls are printed without a name."""

Sink = Callable[[str, str], None]
"""`sink(prefix, line)`; called on the thread that prints."""

OwnerName = Callable[[object], str | None]
"""The name of a user, `Shop 17`, if the object is one of the author's workflows."""

_ENDS = re.compile(r"([\n\r])")
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-_])")
_CONTROLS = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029])
_CONTROLS[ord("\t")] = "    "


def user_name(value: object) -> str | None:
    """`Shop 17` for a user of a workflow: the `owner_name` of a core process."""
    if not isinstance(value, Workflow):
        return None
    user = getattr(value, "vu", None)
    name = type(value).__name__
    return name if user is None else f"{name} {user.id}"


class OutputCapture:
    """Replaces the process's standard streams from `install` to `uninstall`."""

    def __init__(
        self, sink: Sink, owner_name: OwnerName, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._sink = sink
        self._owner_name = owner_name
        self._clock = clock
        self._lock = threading.RLock()
        self._inside = False
        self._second = clock()
        self._passed = 0
        self._dropped = 0
        self._replaced: tuple[TextIO, TextIO] | None = None
        self._writers: list[LineWriter] = []
        self._handler: logging.Handler | None = None

    def install(self) -> None:
        """Call it before the author's file is imported, to catch logging handlers it makes."""
        if self._replaced is None:
            self._replaced = (sys.stdout, sys.stderr)
            self._writers = [LineWriter(self, sys.stdout), LineWriter(self, sys.stderr)]
            sys.stdout, sys.stderr = cast(list[TextIO], self._writers)

    def attach_logging(self, level: int | None = None) -> None:
        """Adds a root handler, unless the author's file made one; call it after the import.

        Without `level` the root logger keeps its own, by default WARNING.
        """
        root = logging.getLogger()
        if root.handlers or self._handler is not None:
            return
        self._handler = _LineHandler(self)
        root.addHandler(self._handler)
        if level is not None:
            root.setLevel(level)

    def uninstall(self) -> None:
        """Passes on what is left and restores the streams, unless they were replaced again."""
        for writer in self._writers:
            writer.end_line()
        self._report_dropped()
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            self._handler = None
        if self._replaced is not None:
            if sys.stdout is self._writers[0]:
                sys.stdout = self._replaced[0]
            if sys.stderr is self._writers[1]:
                sys.stderr = self._replaced[1]
            self._replaced = None
            self._writers = []

    def tick(self) -> None:
        """Call it about once a second: reports dropped lines even if nothing more is printed."""
        with self._lock:
            self._roll()

    def saturated(self) -> bool:
        """Whether a line printed now would be dropped."""
        with self._lock:
            # The sink itself prints on this thread; passing that on would recurse.
            if self._inside:
                return True
            self._roll()
            return self._passed >= LINES_PER_S

    def drop(self, lines: int) -> None:
        with self._lock:
            self._dropped += lines

    def prefix(self, frame: FrameType | None) -> str:
        """`[Shop 17]` of the nearest caller that is a method of a user, else ""."""
        for _ in range(DEEPEST_STACK):
            if frame is None:
                break
            name = self._user(frame)
            if name is not None:
                return f"[{name}]"
            frame = frame.f_back
        return ""

    def pass_on(self, prefix: str, line: str) -> None:
        with self._lock:
            if self._inside:
                return
            self._roll()
            if self._passed >= LINES_PER_S:
                self._dropped += 1
                return
            self._passed += 1
            self._give(prefix, _harmless(line))

    def _user(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if not code.co_argcount and "self" not in code.co_freevars:
            return None
        local = frame.f_locals
        for name in (*code.co_varnames[: min(1, code.co_argcount)], "self"):
            value = local.get(name)
            try:
                found = None if value is None else self._owner_name(value)
            except Exception:
                # An author's object may raise on any attribute: it is not a user then.
                continue
            if found is not None:
                return found
        return None

    def _roll(self) -> None:
        now = self._clock()
        if now - self._second >= 1.0:
            self._second = now
            self._passed = 0
            self._report_dropped()

    def _report_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._give("", f"[... {dropped} {'line' if dropped == 1 else 'lines'} dropped]")

    def _give(self, prefix: str, line: str) -> None:
        self._inside = True
        try:
            self._sink(prefix, line)
        except Exception:
            # The sink was the only place to report it.
            return
        finally:
            self._inside = False


class LineWriter(io.TextIOBase):
    """A text stream that passes on complete lines. Text without an end of line waits
    until it gets one, another user prints, or it grows too long."""

    def __init__(self, capture: OutputCapture, original: TextIO) -> None:
        super().__init__()
        self._capture = capture
        self._original = original
        self._partial = ""
        self._owner = ""
        self._cut = False
        self._bytes = _ByteWriter(self)

    def write(self, text: Any, /) -> int:
        text = text if isinstance(text, str) else str(text)
        try:
            self._take(text, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        except Exception:
            # Printing is never a reason for a step to fail.
            self._partial = ""
        return len(text)

    def end_line(self) -> None:
        if self._partial:
            line, self._partial = self._partial, ""
            self._capture.pass_on(self._owner, line)

    def _take(self, text: str, frame: FrameType | None) -> None:
        capture = self._capture
        if not self._partial and capture.saturated():
            # It will be dropped, so do not pay for the name of the user.
            capture.drop(text.count("\n"))
            self._cut = not text.endswith("\n")
            return
        if self._cut:
            # The beginning of this line was dropped, so its end is as well.
            _, ended, text = text.partition("\n")
            capture.drop(len(ended))
            self._cut = not ended
            if not text:
                return
        prefix = capture.prefix(frame)
        if prefix != self._owner:
            self.end_line()
            self._owner = prefix
        pieces = _ENDS.split(text.replace("\r\n", "\n"))
        for line, end in zip(pieces[::2], pieces[1::2], strict=False):
            line, self._partial = self._partial + line, ""
            # A carriage return redraws a line; with nothing before it there is none.
            if line or end == "\n":
                capture.pass_on(prefix, line)
        self._partial += pieces[-1]
        if len(self._partial) > LONGEST_PARTIAL:
            self.end_line()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        """The real stream's, for child processes that inherit it."""
        return self._original.fileno()

    def flush(self) -> None:
        """Does nothing: lines are passed on when they end."""

    def close(self) -> None:
        """Standard streams stay open, or the next print of another user would fail."""

    def reconfigure(self, **_settings: Any) -> None:
        """Accepted because scripts call it on standard output; nothing depends on it."""

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    @property
    def errors(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "replace"

    @property
    def line_buffering(self) -> bool:
        return True

    @property
    def buffer(self) -> io.RawIOBase:
        return self._bytes


class _ByteWriter(io.RawIOBase):
    """`sys.stdout.buffer` of a captured stream."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: Any, /) -> int:
        data = bytes(data)
        self._writer.write(self._decoder.decode(data))
        return len(data)

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """As the stream it belongs to."""


class _LineHandler(logging.Handler):
    """The root handler: `WARNING shop: text`, tracebacks included, one prefix a line."""

    def __init__(self, capture: OutputCapture) -> None:
        super().__init__()
        self._capture = capture
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:
            text = f"bad log call at {record.filename}:{record.lineno}: {error}"
        try:
            lines = text.split("\n")
            if self._capture.saturated():
                self._capture.drop(len(lines))
                return
            prefix = self._capture.prefix(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            for line in lines:
                self._capture.pass_on(prefix, line)
        except Exception:
            # Logging is never a reason for a step to fail.
            return


def _harmless(line: str) -> str:
    """Removes control sequences, which move the cursor or change colours, and cuts the line."""
    line = _ESCAPES.sub("", line).translate(_CONTROLS)
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 3] + "..."
