"""Turns an answer and a behaviour into the bytes to send.

Pure: decides framing (Content-Length or chunks), compression, forced statuses and redirects,
but not when the bytes are sent.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from http import HTTPStatus

import msgspec

from squall.target.behaviour import Behaviour
from squall.target.request import Answer, TargetRequest

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class AnswerBytes(msgspec.Struct, frozen=True):
    """A rendered answer. `head_bytes` and `status_line_bytes` are the offsets to cut it at."""

    status: int
    data: bytes
    status_line_bytes: int
    head_bytes: int
    close: bool


def apply(answer: Answer, behaviour: Behaviour, forced_status: int | None, path: str) -> Answer:
    """Applies a behaviour to the path's own answer."""
    status = forced_status or answer.status
    body, kind = answer.body, answer.content_type
    headers = [*answer.headers, *behaviour.headers]
    hop = behaviour.next_hop(path) if status < 400 else None
    if hop is not None:
        headers.append(("Location", hop))
        status = status if 300 <= status < 400 else 302
        body, kind = f"to {hop}\n".encode(), "text/plain; charset=utf-8"
    if status >= 400 and status != answer.status:
        body, kind = f"{status} {_REASONS.get(status, '')}\n".encode(), "text/plain; charset=utf-8"
    if behaviour.size is not None:
        body, kind = filler(behaviour.size), "application/octet-stream"
    return Answer(status, body, kind, headers)


def render(answer: Answer, behaviour: Behaviour, request: TargetRequest) -> AnswerBytes:
    """Renders an answer. HEAD gets the headers of GET without its body."""
    close = behaviour.close or behaviour.cut or not request.keep_alive
    body = answer.body
    headers = list(answer.headers)
    bodiless = answer.status in (204, 304)
    if not bodiless:
        headers.insert(0, ("Content-Type", answer.content_type))
        if behaviour.gzip:
            # A fixed date: equal answers must have equal bytes in every run.
            body = gzip.compress(body, 6, mtime=0)
            headers.append(("Content-Encoding", "gzip"))
        if behaviour.chunks and not request.http10:
            headers.append(("Transfer-Encoding", "chunked"))
            body = _in_chunks(body, behaviour.chunks)
        else:
            headers.append(("Content-Length", str(len(body))))
    if close:
        headers.append(("Connection", "close"))
    elif request.http10:
        headers.append(("Connection", "keep-alive"))
    first = f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Unknown')}\r\n"
    rest = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"{first}{rest}\r\n".encode("latin-1")
    data = head if bodiless or request.method == "HEAD" else head + body
    return AnswerBytes(answer.status, data, len(first), len(head), close)


@lru_cache(maxsize=4)
def filler(size: int) -> bytes:
    """A readable body of exactly this many bytes."""
    line = b"0123456789abcdefghijklmnopqrstuvwxyz squall target filler line\n"
    return (line * (size // len(line) + 1))[:size]


def _in_chunks(body: bytes, chunks: int) -> bytes:
    # `chunked=1` makes two chunks if it can: a single one would hide bugs in joining them.
    step = max(1, -(-len(body) // max(2, chunks)))
    parts = [body[at : at + step] for at in range(0, len(body), step)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
