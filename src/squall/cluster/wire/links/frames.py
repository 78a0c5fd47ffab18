"""Cuts a byte stream into length-prefixed frames, whatever its fragmentation.

It bounds the bytes that one connection can make this node hold: a frame over the cap is
refused by its prefix, before any of it is kept. It never reads the content of a frame, and its work
is linear in the bytes that arrive.
"""

from __future__ import annotations

from struct import Struct

from squall.cluster.wire.errors import FrameTooLarge
from squall.cluster.wire.header import PREFIX_SIZE

_PREFIX = Struct(">I")
_length_at = _PREFIX.unpack_from


class BufferBudget:
    """Bounds the bytes of unfinished frames that all connections of a node hold together."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class FrameDecoder:
    """Collects the bytes of one stream; `feed` returns complete frames without their prefixes.

    Once `broken` is set the stream has lost its frame boundaries and must be closed. Frames
    before that point are still delivered, so the outcome does not depend on fragmentation.
    """

    __slots__ = ("_budget", "_buffer", "_held", "_needed", "broken", "cap")

    def __init__(self, cap: int, budget: BufferBudget | None = None) -> None:
        # The owner may raise it between two calls of `feed`.
        self.cap = cap
        self.broken: FrameTooLarge | None = None
        self._budget = budget
        self._buffer = bytearray()
        self._held = 0
        self._needed = PREFIX_SIZE

    @property
    def buffered(self) -> int:
        """Bytes that arrived and are not part of a returned frame."""
        return self._held

    def feed(self, data: bytes, most: int = 1 << 30) -> list[bytes]:
        """At most `most` frames; the others wait for the next call."""
        if self._held:
            self._buffer += data
            # Scanning the pieces of a large frame again would not be linear.
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
        """Drops what is held and returns it to the budget."""
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
