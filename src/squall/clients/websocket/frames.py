"""Frames of the WebSocket protocol (RFC 6455, 5): what a client sends, and a decoder of what it
receives. Nothing here does I/O."""

from __future__ import annotations

import os
import struct

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

NORMAL, PROTOCOL_ERROR, NO_CODE, NO_CLOSE, INVALID_TEXT, TOO_LARGE = (
    1000,
    1002,
    1005,
    1006,
    1007,
    1009,
)
_CODES = {
    1000: "normal",
    1001: "going away",
    1002: "protocol error",
    1003: "unsupported data",
    1005: "no code",
    1007: "invalid text",
    1008: "policy violation",
    1009: "message too large",
    1010: "extension missing",
    1011: "server error",
    1012: "service restart",
    1013: "try again later",
    1014: "bad gateway",
}
# Kept frames are small: a large message is rarely sent twice.
KEPT_BYTES = 16 * 1024
_MOST_KEPT = 1024


class FrameError(ValueError):
    """The peer broke the protocol; `code` is the close code that says how. `before` has the
    messages that were complete before the fault."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code
        self.before: list[tuple[int, bytes]] = []


def code_text(code: int) -> str:
    """Like "1011 server error"."""
    return f"{code} {_CODES.get(code, '')}".rstrip()


def frame(kind: int, payload: bytes, mask: bytes) -> bytes:
    """A whole message in one frame, masked, as a client must send it."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | kind, 0x80 | size))
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
    return b"%b%b%b" % (head, mask, masked(payload, mask))


def masked(payload: bytes, mask: bytes) -> bytes:
    """Each byte XOR a byte of the mask; one operation on two large numbers."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def new_mask() -> bytes:
    return os.urandom(4)


class KeptFrames:
    """Frames of messages that are sent again and again, masked once."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bytes], bytes] = {}

    def get(self, kind: int, payload: bytes) -> bytes:
        found = self._kept.get((kind, payload))
        if found is None:
            found = frame(kind, payload, new_mask())
            if len(payload) <= KEPT_BYTES:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                self._kept[kind, payload] = found
        return found


class Decoder:
    """Turns received bytes into messages; `feed` returns them as (kind, payload).

    State: `_rest` are the pieces of an incomplete frame, `_have` their bytes and `_need` how many
    the frame has (0 if that is not known yet), so that a large frame is joined once. `_parts` are
    the fragments of an incomplete message, and `_kind` is its kind (0 if there is none).
    """

    __slots__ = ("_have", "_kind", "_most_bytes", "_need", "_parts", "_rest", "_size")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rest: list[bytes] = []
        self._have = 0
        self._need = 0
        self._parts: list[bytes] = []
        self._kind = 0
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Raises `FrameError`, which has the messages that were complete before it."""
        messages: list[tuple[int, bytes]] = []
        try:
            self._feed(data, messages)
        except FrameError as error:
            error.before = messages
            raise
        return messages

    def _feed(self, data: bytes, messages: list[tuple[int, bytes]]) -> None:
        if self._rest:
            self._rest.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._rest)
            self._rest = []
        need = 0
        position, size = 0, len(data)
        while size - position >= 2:
            first, length = data[position], data[position + 1]
            if length & 0x80:
                raise FrameError(PROTOCOL_ERROR, "a masked frame")
            start = position + 2
            if length == 126:
                start += 2
            elif length == 127:
                start += 8
            if start > size:
                break
            if length > 125:
                length = int.from_bytes(data[position + 2 : start], "big")
            end = start + length
            kind = first & 0x0F
            self._check(first, kind, length)
            if end > size:
                need = end - position
                break
            position = end
            payload = data[start:end]
            if kind >= CLOSE:
                messages.append((kind, payload))
            elif first & 0x80 and not self._kind:
                messages.append((kind, _checked_text(kind, payload)))
            else:
                self._fragment(first, kind, payload, messages)
        if position < size:
            self._rest, self._have, self._need = [data[position:]], size - position, need

    def _check(self, first: int, kind: int, length: int) -> None:
        if first & 0x70:
            raise FrameError(PROTOCOL_ERROR, "a reserved bit")
        if kind >= CLOSE:
            if kind > PONG or length > 125 or not first & 0x80:
                raise FrameError(PROTOCOL_ERROR, "a wrong control frame")
        elif kind > BINARY:
            raise FrameError(PROTOCOL_ERROR, "an unknown kind of frame")
        elif bool(kind) == bool(self._kind):
            # A continuation of nothing, or a new message inside another one.
            raise FrameError(PROTOCOL_ERROR, "a fragment in the wrong place")
        elif self._size + length > self._most_bytes:
            raise FrameError(TOO_LARGE, f"a message over {self._most_bytes >> 20} MiB")

    def _fragment(
        self, first: int, kind: int, payload: bytes, messages: list[tuple[int, bytes]]
    ) -> None:
        self._kind = kind or self._kind
        self._parts.append(payload)
        self._size += len(payload)
        if first & 0x80:
            messages.append((self._kind, _checked_text(self._kind, b"".join(self._parts))))
            self._kind, self._parts, self._size = 0, [], 0


def _checked_text(kind: int, payload: bytes) -> bytes:
    if kind == TEXT and not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise FrameError(INVALID_TEXT, "text that is not UTF-8") from None
    return payload


def read_close(payload: bytes) -> tuple[int, str]:
    """(Code, text) of a close frame; RFC 6455, 7.4."""
    if not payload:
        return NO_CODE, ""
    code = int.from_bytes(payload[:2], "big")
    known = 1000 <= code <= 1014 and code not in (1004, NO_CODE, NO_CLOSE)
    if len(payload) < 2 or not (known or 3000 <= code < 5000):
        raise FrameError(PROTOCOL_ERROR, "a wrong close code")
    try:
        return code, payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(INVALID_TEXT, "a close reason that is not UTF-8") from None


def close_payload(code: int, reason: str = "") -> bytes:
    return struct.pack(">H", code) + reason.encode()[:123]
