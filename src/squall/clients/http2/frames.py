"""Frames of HTTP/2 (RFC 9113, 4 and 6): their numbers, and the bytes that a client sends."""

from __future__ import annotations

import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
_ERRORS = (
    *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT"),
    *("STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR"),
    *("CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
)

# What both sides may assume before the first SETTINGS frame.
FIRST_WINDOW = 65_535
FIRST_TABLE_BYTES = 4096
SMALLEST_MAX_FRAME = 16_384
LARGEST_MAX_FRAME = (1 << 24) - 1
LARGEST_WINDOW = (1 << 31) - 1
# What we allow a peer to send before it hears of us again.
WINDOW = 1 << 30
LARGEST_STREAM = (1 << 31) - 1

read_head = struct.Struct(">IBI").unpack_from
pack_id = struct.Struct(">I").pack
pack_head = struct.Struct(">IBI").pack
_pack_setting = struct.Struct(">HI").pack
_read_setting = struct.Struct(">HI").iter_unpack
_read_two = struct.Struct(">II").unpack_from


def error_name(code: int) -> str:
    return _ERRORS[code] if code < len(_ERRORS) else f"error {code:#x}"


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return pack_head(len(payload) << 8 | kind, flags, stream_id) + payload


def header_frames(stream_id: int, block: bytes, limit: int, *, ends: bool) -> bytes:
    """A header block as frames of at most `limit` bytes."""
    flags = END_STREAM if ends else 0
    if len(block) <= limit:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [frame(HEADERS, flags, stream_id, block[:limit])]
    for begin in range(limit, len(block), limit):
        last = begin + limit >= len(block)
        part = block[begin : begin + limit]
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream_id, part))
    return b"".join(parts)


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([_pack_setting(*item) for item in values.items()]))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, pack_id(increment))


def reset(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, pack_id(code))


def goaway(code: int) -> bytes:
    """Promises that no pushed stream was handled, because a client allows none."""
    return frame(GOAWAY, 0, 0, pack_id(0) + pack_id(code))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    return _read_setting(payload)


def read_goaway(payload: bytes) -> tuple[int, int]:
    """(The last stream that the peer handles, its reason.)"""
    last_id, code = _read_two(payload)
    return last_id & LARGEST_STREAM, code


def read_number(payload: bytes) -> int:
    """A window increment or an error code: four bytes."""
    return int.from_bytes(payload[:4], "big")


def without_padding(payload: bytes, flags: int) -> bytes | None:
    """The payload of a DATA or HEADERS frame; None if it claims more padding than it has."""
    if flags & PADDED:
        if not payload or payload[0] >= len(payload):
            return None
        payload = payload[1 : len(payload) - payload[0]]
    return payload


_CONTROL_NAMES = {
    PRIORITY: "PRIORITY",
    RST_STREAM: "RST_STREAM",
    SETTINGS: "SETTINGS",
    PING: "PING",
    GOAWAY: "GOAWAY",
    WINDOW_UPDATE: "WINDOW_UPDATE",
}
_CONTROL_SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}


def control_fault(kind: int, flags: int, stream_id: int, payload: bytes) -> tuple[int, str] | None:
    """(Error code, what is wrong) if a frame that carries no part of a response belongs to the
    wrong stream or has the wrong size (RFC 9113, 6). Unknown kinds have no faults."""
    name = _CONTROL_NAMES.get(kind)
    if name is None:
        return None
    is_of_connection = kind in (SETTINGS, PING, GOAWAY)
    if kind != WINDOW_UPDATE and is_of_connection == bool(stream_id):
        return PROTOCOL_ERROR, f"{name} of a wrong stream"
    size = len(payload)
    if kind == SETTINGS:
        fits = not size if flags & ACK else size % 6 == 0
    elif kind == GOAWAY:
        fits = size >= 8
    else:
        fits = size == _CONTROL_SIZES[kind]
    return None if fits else (FRAME_SIZE_ERROR, f"{name} of a wrong size")


# What a client sends first. The window is larger than any response may be.
OPENING = (
    PREFACE
    + settings_frame({ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: WINDOW})
    + window_update(0, WINDOW - FIRST_WINDOW)
)
