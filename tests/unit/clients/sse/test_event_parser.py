"""Event streams in any pieces, compared with a plain reading of the standard."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.sse import SSEEvent
from squall.clients.sse.event_parser import MOST_EVENT_BYTES, EventParser, EventTooLarge

LINES = st.sampled_from(
    [
        *("data: a", "data:b", "data", "data:  c", "event: add", "event", "id: 7", "id"),
        *("id: x\0y", "retry: 250", "retry: soon", ": comment", "", "", "unknown: z", "data: ü€"),
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def by_the_standard(text: str) -> tuple[list[tuple[str, str, str]], str, float | None]:
    """Line by line, as the HTML standard says it."""
    events: list[tuple[str, str, str]] = []
    data: list[str] = []
    kind, last_id, retry = "", "", None
    *lines, _ = re.split("\r\n|\r|\n", text.removeprefix("\ufeff"))
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ") if colon else ""
        if not line:
            if "\n".join(data):
                events.append((kind or "message", "\n".join(data), last_id))
            data, kind = [], ""
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value
        elif name == "retry" and value.isdigit():
            retry = int(value) / 1000
    return events, last_id, retry


@given(
    st.lists(st.tuples(LINES, ENDS), max_size=30),
    st.booleans(),
    st.lists(st.integers(1, 9), max_size=40),
)
def test_any_stream_in_any_pieces(
    plan: list[tuple[str, str]], marked: bool, sizes: list[int]
) -> None:
    text = ("\ufeff" if marked else "") + "".join(line + end for line, end in plan)
    # A block that is not ended by a blank line does not count; the end makes every id count.
    text += "\n\n"
    data = text.encode()
    parser, found = EventParser(), list[SSEEvent]()
    for size in sizes:
        found += parser.feed(data[:size], 1.0)
        data = data[size:]
    found += parser.feed(data, 1.0)
    events, last_id, retry = by_the_standard(text)
    assert [(event.event, event.data, event.id) for event in found] == events
    assert (parser.last_id, parser.retry_s) == (last_id, retry)


def test_an_event_that_never_ends() -> None:
    parser = EventParser()
    for _ in range(4):
        parser.feed(b"x" * (MOST_EVENT_BYTES // 4), 1.0)
    with pytest.raises(EventTooLarge):
        parser.feed(b"x", 1.0)


def test_a_new_connection_forgets_half_an_event_and_keeps_the_id() -> None:
    parser = EventParser()
    parser.feed(b"id: 5\ndata: a\n\ndata: half", 1.0)
    parser.begin()
    assert parser.feed(b"data: b\n\n", 2.0) == [SSEEvent("message", "b", "5", 2.0)]


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_invented_bytes_never_raise(pieces: list[bytes]) -> None:
    parser = EventParser()
    for piece in pieces:
        for event in parser.feed(piece, 1.0):
            assert event.data
