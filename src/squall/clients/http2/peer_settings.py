"""Applies what the peer announces in a SETTINGS frame (RFC 9113, 6.5) to a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.clients.http2 import frames

if TYPE_CHECKING:
    from squall.clients.http2.connection import HTTP2Connection


def apply_settings(conn: HTTP2Connection, payload: bytes) -> tuple[int, str] | None:
    """Returns (error code, what is wrong) if the connection must end."""
    for name, value in frames.read_settings(payload):
        if name == frames.MAX_CONCURRENT_STREAMS:
            conn.most_streams = value
        elif name == frames.INITIAL_WINDOW_SIZE:
            # Open streams get the difference, which may make their window negative.
            largest = value
            for stream in conn.streams.values():
                stream.window += value - conn.first_window
                largest = max(largest, stream.window)
            if largest > frames.LARGEST_WINDOW:
                return frames.FLOW_CONTROL_ERROR, "a window larger than allowed"
            conn.first_window = value
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.SMALLEST_MAX_FRAME <= value <= frames.LARGEST_MAX_FRAME:
                return frames.PROTOCOL_ERROR, "a frame size that is not allowed"
            conn.most_frame = value
        elif name == frames.ENABLE_PUSH and value:
            return frames.PROTOCOL_ERROR, "a server that announces pushes"
        elif name == frames.HEADER_TABLE_SIZE and value < frames.FIRST_TABLE_BYTES:
            # We add nothing to that table, but the peer waits for our word (RFC 7541, 4.2).
            conn.shrinks = True
    return None
