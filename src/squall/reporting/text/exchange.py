"""Renders one exchange for `--once`: the request, the response, the timings.

Only the start of a body is shown, and never as raw control bytes, so that a binary answer
cannot change the terminal.
"""

from __future__ import annotations

from squall.reporting.number_format import brief_duration, data_size
from squall.stats.reports import ExchangeReport

_BODY_CHARS = 1000
_BODY_LINES = 20


def render_exchange(exchange: ExchangeReport) -> str:
    """Marks lines as curl does: `>` sent, `<` received."""
    where = f"{exchange.workflow}.{exchange.row}" if exchange.row else exchange.workflow
    what = f"{exchange.method} {exchange.url}".rstrip()
    peer = f"to {exchange.peer}" if exchange.peer else ""
    lines = [f"── {'  '.join(part for part in (where, what, peer) if part)}"]
    head, _, body = exchange.request.partition(b"\r\n\r\n")
    lines += _marked(">", _head_lines(head), _body_lines(body, len(body)))
    if exchange.error:
        lines.append(f"! {exchange.error} after {brief_duration(exchange.total_s)}")
    else:
        answer = _body_lines(exchange.body, exchange.body_size)
        lines += _marked("<", _head_lines(exchange.response_head), answer)
    lines.append(f"  {_timings(exchange)}")
    return "\n".join(lines)


def _timings(exchange: ExchangeReport) -> str:
    # A reused connection has no set-up; zeros would read as "very fast".
    setup = (("dns", exchange.dns_s), ("connect", exchange.connect_s), ("tls", exchange.tls_s))
    parts = [f"{name} {brief_duration(value_s)}" for name, value_s in setup if value_s]
    if not parts and not exchange.error and exchange.response_head:
        parts.append("connection reused")
    if exchange.first_byte_s:
        parts.append(f"first byte {brief_duration(exchange.first_byte_s)}")
    parts.append(f"whole {brief_duration(exchange.total_s)}")
    return "  ".join(parts)


def _marked(mark: str, head: list[str], body: list[str]) -> list[str]:
    marked = [f"{mark} {line}" for line in head]
    return [*marked, mark, *(f"{mark} {line}" for line in body)] if body else marked


def _head_lines(head: bytes) -> list[str]:
    return [_printable(line) for line in head.decode("latin-1").splitlines() if line]


def _body_lines(body: bytes, size: int) -> list[str]:
    if not body:
        return []
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        # A body cut in the middle of a character is still text.
        if error.start < len(body) - 4:
            return [f"({data_size(size)} of binary data)"]
        text = body[: error.start].decode()
    if "\x00" in text:
        return [f"({data_size(size)} of binary data)"]
    lines = [_printable(line) for line in text[:_BODY_CHARS].splitlines()]
    shown = "\n".join(lines[:_BODY_LINES])
    is_cut = len(lines) > _BODY_LINES or len(text) > _BODY_CHARS or size > len(body)
    return [*shown.split("\n"), f"... ({data_size(size)} in total)"] if is_cut else lines


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
