"""Length-prefixed frames out of a byte stream, whatever its fragmentation.

Decides how many bytes one connection may make us hold: a frame over the cap is refused
by its prefix, before any of it is kept. It must never look into a frame, and its work is
linear in the bytes that arrive.
"""

from __future__ import annotations

from struct import Struct

from squall.wire.errors import FrameTooLarge
from squall.wire.header import PREFIX_SIZE

_PREFIX = Struct(">I")
_length_at = _PREFIX.unpack_from


class BufferBudget:
    """The bytes of unfinished frames that all connections of a node may hold together."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class FrameDecoder:
    """`feed` gives the frames that are complete, without their prefixes.

    Once `broken` is set the stream has no frame boundary any more: close it. What came
    before is still delivered, so the outcome does not depend on the fragmentation.
    """

    __slots__ = ("_budget", "_buffer", "_held", "_needed", "broken", "cap")

    def __init__(self, cap: int, budget: BufferBudget | None = None) -> None:
        self.cap = cap
        """May be raised between two calls of `feed`."""
        self.broken: FrameTooLarge | None = None
        self._budget = budget
        self._buffer = bytearray()
        self._held = 0
        self._needed = PREFIX_SIZE

    @property
    def buffered(self) -> int:
        """Bytes that arrived and were not given out."""
        return self._held

    def feed(self, data: bytes, most: int = 1 << 30) -> list[bytes]:
        """At most `most` frames; the others wait for the next call."""
        if self._held:
            self._buffer += data
            # Looking at each piece of a large frame again would not be linear.
            if len(self._buffer) < self._needed:
                self._hold(len(self._buffer))
                return []
            data = bytes(self._buffer)
            self.discard()
        frames: list[bytes] = []
        at, size, cap, needed = 0, len(data), self.cap, PREFIX_SIZE
        while (body_at := at + PREFIX_SIZE) <= size and len(frames) < most:
            (length,) = _length_at(data, at)
            if length > cap:
                self.broken = FrameTooLarge(f"a frame of {length} bytes, at most {cap} allowed")
                return frames
            end = body_at + length
            if end > size:
                needed = PREFIX_SIZE + length
                break
            frames.append(data[body_at:end])
            at = end
        if at < size:
            self._buffer += data[at:]
            self._needed = needed
            self._hold(size - at)
        return frames

    def discard(self) -> None:
        """Gives back what is held, also when the connection is gone."""
        self._buffer = bytearray()
        if self._budget is not None:
            self._budget.held -= self._held
        self._held = 0

    def _hold(self, size: int) -> None:
        budget = self._budget
        if budget is not None:
            budget.held += size - self._held
        self._held = size
        if budget is not None and budget.held > budget.limit:
            self.broken = FrameTooLarge(
                f"unfinished frames of all connections hold {budget.held} bytes, "
                f"at most {budget.limit} are allowed"
            )


def with_prefix(frame: bytes) -> bytes:
    return _PREFIX.pack(len(frame)) + frame
