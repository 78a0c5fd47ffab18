"""Sends the bodies of requests: as much as the windows of stream and connection allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.clients.http2 import frames

if TYPE_CHECKING:
    from squall.clients.http2.connection import HTTP2Connection
    from squall.clients.http2.stream import Stream


def begin_body(conn: HTTP2Connection, stream: Stream, block: bytes, body: bytes) -> None:
    """Sends a request whose frames do not fit into one write, or whose body comes later."""
    ends = not body and stream.listener is None
    conn.write(frames.header_frames(stream.id, block, conn.most_frame, ends=ends))
    if body:
        stream.unsent = body
        send_body(conn, stream)


def send_body(conn: HTTP2Connection, stream: Stream) -> None:
    """Sends what has room now; the rest waits in `blocked` until a window grows."""
    while stream.unsent:
        room = min(conn.send_window, stream.window, conn.most_frame)
        if room <= 0:
            conn.blocked[stream.id] = stream
            return
        part, stream.unsent = stream.unsent[:room], stream.unsent[room:]
        conn.send_window -= len(part)
        stream.window -= len(part)
        ends = not stream.unsent and (stream.listener is None or stream.ends)
        flags = frames.END_STREAM if ends else 0
        conn.write(frames.frame(frames.DATA, flags, stream.id, part))
    if stream.listener is not None:
        stream.listener.on_sent()


def send_more(conn: HTTP2Connection, stream: Stream, data: bytes, *, ends: bool) -> None:
    """Adds to the body of a stream with a listener."""
    stream.unsent += data
    stream.ends = ends
    if stream.unsent:
        send_body(conn, stream)
    elif ends:
        conn.write(frames.frame(frames.DATA, frames.END_STREAM, stream.id))
