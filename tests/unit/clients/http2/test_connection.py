"""One connection without a network; the package `h2` is the server, or its bytes are invented."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.clients.http.connection import Unanswered
from squall.clients.http2 import frames
from squall.clients.http2.header_blocks import request_block
from squall.clients.http2.stream import NOT_HTTP2, Refused
from tests.unit.clients.http2.lab.pair import OK, Pair, block, failed, request, run


def test_exchanges_with_the_oracle_as_server() -> None:
    async def body() -> None:
        pair = Pair()
        for number in range(5):
            _, future = pair.send("POST", b"x" * 100_000)
            stream_id = 2 * number + 1
            events = pair.events()
            assert isinstance(events[0], h2.events.RequestReceived)
            got = sum(len(e.data) for e in events if isinstance(e, h2.events.DataReceived))
            # The window of 65,535 bytes is used up before the whole body is sent.
            assert got == 65_535
            pair.server.acknowledge_received_data(got, stream_id)
            pair.deliver()
            events = pair.events()
            got += sum(len(e.data) for e in events if isinstance(e, h2.events.DataReceived))
            assert got == 100_000
            assert isinstance(events[-1], h2.events.StreamEnded)
            pair.server.acknowledge_received_data(got - 65_535, stream_id)
            pair.server.send_headers(stream_id, [(b":status", b"103"), (b"link", b"</x>")])
            pair.server.send_headers(stream_id, OK)
            pair.server.send_data(stream_id, b"ok", pad_length=17)
            pair.server.send_headers(stream_id, [(b"x-sum", b"7")], end_stream=True)
            pair.deliver()
            response = future.result()
            assert response.body == b"ok"
            assert response.headers["server"] == "h2"
            assert response.trailers["X-Sum"] == "7"
            assert response.head.version == "HTTP/2"
        assert not pair.conn.streams
        assert len(pair.conn.spare) == 1
        counters = pair.shared.counters_of("http2")
        assert (counters.sent, counters.answered, counters.failed) == (5, 5, 0)

    run(body)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 5))
def test_answers_in_any_packets(sizes: list[int], streams: int) -> None:
    async def body() -> None:
        pair = Pair()
        futures = [pair.send()[1] for _ in range(streams)]
        pair.events()
        for number in range(streams):
            pair.server.send_headers(2 * number + 1, OK)
        for number in reversed(range(streams)):
            pair.server.send_data(2 * number + 1, b"%02d" % number, end_stream=True)
        data = pair.server.data_to_send()
        for size in sizes:
            pair.conn.data_received(data[:size])
            data = data[size:]
        pair.conn.data_received(data)
        assert [future.result().body for future in futures] == [b"%02d" % n for n in range(streams)]

    run(body)


def test_a_block_over_several_frames_in_both_directions() -> None:
    async def body() -> None:
        pair = Pair()
        sent = request()
        long = request_block(sent) + block((b"x-long", bytes(range(33, 126)) * 500))
        _, future = pair.conn.send(sent, long, b"", 60.0, 0.0)
        events = pair.events()
        assert isinstance(events[0], h2.events.RequestReceived)
        answer = block(*OK[:1], (b"x-long", b"v" * 3000))
        pair.raw(
            frames.frame(frames.HEADERS, frames.END_STREAM, 1, answer[:10]),
            frames.frame(frames.CONTINUATION, 0, 1, answer[10:500]),
            frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, answer[500:]),
        )
        assert future.result().headers["x-long"] == "v" * 3000

    run(body)


def test_the_peer_changes_its_windows_and_tables_while_streams_are_open() -> None:
    async def body() -> None:
        pair = Pair()
        _, future = pair.send("POST", b"x" * 70_000)
        pair.events()
        pair.server.update_settings(
            {
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 66_000,
                h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: 20_000,
            }
        )
        pair.deliver()
        # The window of the connection has nothing left, the stream has 465 more bytes.
        assert not [e for e in pair.events() if isinstance(e, h2.events.DataReceived)]
        pair.server.increment_flow_control_window(10_000)
        pair.deliver()
        events = [e for e in pair.events() if isinstance(e, h2.events.DataReceived)]
        assert sum(len(e.data) for e in events) == 465
        pair.server.increment_flow_control_window(10_000, stream_id=1)
        pair.deliver()
        assert isinstance(pair.events()[-1], h2.events.StreamEnded)
        pair.server.send_headers(1, [(b":status", b"204")], end_stream=True)
        pair.deliver()
        assert future.result().status_code == 204
        # The next block says that our part of the table is empty; the oracle insists on it.
        pair.send()
        assert isinstance(pair.events()[0], h2.events.RequestReceived)

    run(body)


def test_a_window_may_become_negative() -> None:
    async def body() -> None:
        pair = Pair()
        pair.send("POST", b"x" * 70_000)
        pair.events()
        pair.server.increment_flow_control_window(100_000)
        pair.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        pair.deliver()
        pair.events()
        pair.server.increment_flow_control_window(64_000, stream_id=1)
        pair.deliver()
        assert not [e for e in pair.events() if isinstance(e, h2.events.DataReceived)]
        pair.server.increment_flow_control_window(1000, stream_id=1)
        pair.deliver()
        data = [e for e in pair.events() if isinstance(e, h2.events.DataReceived)]
        assert sum(len(e.data) for e in data) == 1000 - 535

    run(body)


def test_an_answer_before_the_whole_body_is_sent_ends_the_stream() -> None:
    async def body() -> None:
        pair = Pair()
        _, future = pair.send("POST", b"x" * 100_000)
        pair.events()
        pair.server.send_headers(1, [(b":status", b"413")], end_stream=True)
        pair.deliver()
        assert future.result().status_code == 413
        assert isinstance(pair.events()[-1], h2.events.StreamReset)
        assert not pair.conn.streams

    run(body)


def test_a_reset_fails_one_stream_and_a_refusal_may_be_repeated() -> None:
    async def body() -> None:
        pair = Pair()
        futures = [pair.send()[1] for _ in range(3)]
        pair.events()
        pair.server.reset_stream(1, 8)
        pair.server.reset_stream(3, 7)
        pair.server.send_headers(5, [(b":status", b"200")], end_stream=True)
        pair.deliver()
        assert failed(futures[0]).reason == "stream reset: CANCEL"
        assert isinstance(failed(futures[1]), Refused)
        assert futures[2].result().ok
        assert pair.shared.counters_of("http2").failed == 1
        assert not pair.conn.draining

    run(body)


def test_goodbye_of_the_peer() -> None:
    async def body() -> None:
        pair = Pair()
        futures = [pair.send()[1] for _ in range(3)]
        pair.events()
        pair.raw(frames.frame(frames.GOAWAY, 0, 0, frames.pack_id(3) + frames.pack_id(0)))
        assert pair.gone == [pair.conn]
        assert isinstance(failed(futures[2]), Refused)
        assert not futures[0].done()
        pair.raw(frames.frame(frames.HEADERS, 5, 1, b"\x88"))
        pair.raw(frames.frame(frames.HEADERS, 5, 3, b"\x88"))
        assert futures[0].result().ok
        assert futures[1].result().ok
        # After the last stream it closes by itself.
        assert pair.wire.closed

    run(body)


def test_the_end_of_the_connection() -> None:
    async def body() -> None:
        pair = Pair()
        futures = [pair.send()[1] for _ in range(2)]
        pair.events()
        pair.server.send_headers(1, OK)
        pair.deliver()
        pair.conn.connection_lost(None)
        assert failed(futures[0]).reason == "response cut off"
        assert isinstance(failed(futures[1]), Unanswered)
        assert failed(futures[1]).reason == "connection closed before a response"
        pair = Pair()
        future = pair.send()[1]
        pair.raw(frames.frame(frames.GOAWAY, 0, 0, frames.pack_id(1) + frames.pack_id(11)))
        pair.conn.connection_lost(None)
        assert failed(future).reason == "connection ended by the server: ENHANCE_YOUR_CALM"
        assert not pair.shared.live

    run(body)


def test_a_timeout_ends_the_stream_and_a_silent_connection() -> None:
    async def body() -> None:
        pair = Pair(timeout_s=1.0)
        stream, future = pair.send()
        stream.timeout_s = 1.0
        pair.shared.sweep(stream.started + 2.0)
        assert failed(future).reason == "timeout after 1 s"
        # Nothing arrived since the request was sent: the next call opens another connection.
        assert pair.gone == [pair.conn]
        assert pair.shared.counters_of("http2").failed == 1

        pair = Pair(timeout_s=1.0)
        stream, future = pair.send()
        pair.raw(frames.frame(frames.PING, 0, 0, b"12345678"))
        stream.timeout_s = 1.0
        pair.shared.sweep(stream.started + 2.0)
        assert failed(future).reason == "timeout after 1 s"
        assert not pair.gone
        assert isinstance(pair.events()[-1], h2.events.StreamReset)

    run(body)


def test_a_cancelled_call_leaves_its_stream() -> None:
    async def body() -> None:
        pair = Pair()
        stream, future = pair.send()
        pair.events()
        future.cancel()
        # The answer comes before the waiting task runs.
        pair.server.send_headers(1, OK)
        pair.server.send_data(1, b"ok", end_stream=True)
        pair.deliver()
        stream.abandon(future)
        counters = pair.shared.counters_of("http2")
        assert (counters.cancelled, counters.answered, counters.in_flight) == (1, 0, 0)
        assert not pair.conn.streams
        _, again = pair.send()
        pair.raw(frames.frame(frames.HEADERS, 5, 3, b"\x88"))
        assert again.result().ok

    run(body)


GOAWAY_OF = {
    "a frame larger than allowed": frames.frame(frames.PING, 0, 0, b"x" * 16_385),
    "PING of a wrong size": frames.frame(frames.PING, 0, 0, b"x"),
    "SETTINGS of a wrong size": frames.frame(frames.SETTINGS, 0, 0, b"x"),
    "WINDOW_UPDATE of a wrong size": frames.frame(frames.WINDOW_UPDATE, 0, 0, b"x"),
    "RST_STREAM of a wrong size": frames.frame(frames.RST_STREAM, 0, 1, b"x"),
    "GOAWAY of a wrong size": frames.frame(frames.GOAWAY, 0, 0, b"x"),
    "a window that is not allowed": frames.window_update(0, 0),
    "a window larger than allowed": frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 1 << 31}),
    "a frame size that is not allowed": frames.settings_frame({frames.MAX_FRAME_SIZE: 100}),
    "a frame that is not allowed here": frames.frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2\x82"),
    "more padding than frame": frames.frame(frames.DATA, frames.PADDED, 1, b"\x05abc"),
    "a frame of a stream that was never opened": frames.frame(frames.HEADERS, 5, 7, b"\x88"),
    "an entry that is not in the table": frames.frame(frames.HEADERS, 5, 1, b"\xff\x00"),
    "another frame inside a header block": frames.frame(frames.HEADERS, 1, 1, b"\x88")
    + frames.frame(frames.PING, 0, 0, b"12345678"),
    "a head over 256 KiB": frames.frame(frames.HEADERS, 1, 1, b"\x88" * 16_000)
    + frames.frame(frames.CONTINUATION, 0, 1, b"\x88" * 16_000) * 20,
}


@pytest.mark.parametrize("what", GOAWAY_OF)
def test_a_peer_that_breaks_the_protocol_loses_the_connection(what: str) -> None:
    async def body() -> None:
        pair = Pair()
        _, future = pair.send()
        pair.events()
        pair.raw(GOAWAY_OF[what])
        assert failed(future).reason.endswith(f": {what}")
        assert failed(future).reason.startswith("HTTP/2 ")
        assert pair.wire.closed
        assert pair.gone == [pair.conn]
        last = pair.wire.written[-17:]
        assert last[3] == frames.GOAWAY
        assert pair.shared.counters_of("http2").failed == 1

    run(body)


@pytest.mark.parametrize(
    "answer",
    [
        frames.frame(frames.HEADERS, 5, 1, b"\x82"),
        frames.frame(frames.DATA, 0, 1, b"early"),
        frames.frame(frames.HEADERS, 4, 1, b"\x88") + frames.frame(frames.HEADERS, 4, 1, b"\x88"),
        frames.frame(frames.HEADERS, 5, 1, block((b":status", b"100"))),
        frames.frame(frames.HEADERS, 4, 1, block((b":status", b"101"))),
        frames.frame(frames.HEADERS, 4, 1, block((b":status", b"200"), (b"content-length", b"3")))
        + frames.frame(frames.DATA, 1, 1, b"four"),
        # The last part alone has the length that the head speaks of.
        frames.frame(frames.HEADERS, 4, 1, block((b":status", b"200"), (b"content-length", b"3")))
        + frames.frame(frames.DATA, 0, 1, b"one")
        + frames.frame(frames.DATA, 1, 1, b"two"),
    ],
)
def test_a_malformed_answer_fails_its_stream_only(answer: bytes) -> None:
    async def body() -> None:
        pair = Pair()
        _, future = pair.send()
        pair.events()
        pair.raw(answer)
        assert failed(future).reason == "malformed response"
        assert not pair.conn.draining
        _, again = pair.send()
        pair.raw(frames.frame(frames.HEADERS, 5, 3, b"\x88"))
        assert again.result().ok

    run(body)


def test_lengths_that_speak_of_no_body() -> None:
    async def body() -> None:
        pair = Pair()
        _, future = pair.send("HEAD")
        pair.raw(
            frames.frame(
                frames.HEADERS, 5, 1, block((b":status", b"200"), (b"content-length", b"9"))
            )
        )
        assert future.result().headers["content-length"] == "9"

    run(body)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", NOT_HTTP2),
        (b"220 mail.test ESMTP\r\n", NOT_HTTP2),
        (b"\x15\x03\x01\x00\x02\x02\x46", "the port speaks TLS; write https://"),
        (frames.frame(frames.PING, 0, 0, b"12345678"), NOT_HTTP2),
    ],
)
def test_a_server_that_speaks_something_else(first: bytes, reason: str) -> None:
    async def body() -> None:
        pair = Pair(greets=False)
        _, future = pair.send()
        pair.raw(first)
        pair.conn.connection_lost(None)
        assert failed(future).reason == reason

    run(body)


def test_a_body_that_is_too_large() -> None:
    async def body() -> None:
        pair = Pair(most_bytes=1 << 20)
        _, future = pair.send()
        pair.raw(frames.frame(frames.HEADERS, 4, 1, b"\x88"))
        for _ in range(70):
            pair.raw(frames.frame(frames.DATA, 0, 1, b"x" * 16_000))
        assert failed(future).reason == "response larger than 1 MiB"

    run(body)


def test_the_window_of_the_connection_is_given_back() -> None:
    async def body() -> None:
        pair = Pair()
        pair.conn._consumed = 1 << 29  # pyright: ignore[reportPrivateUsage]
        pair.send()
        pair.events()
        pair.raw(
            frames.frame(frames.HEADERS, 4, 1, b"\x88"), frames.frame(frames.DATA, 0, 1, b"x" * 9)
        )
        pair.conn._flush()  # pyright: ignore[reportPrivateUsage]
        assert bytes(pair.wire.written) == frames.window_update(0, (1 << 29) + 9)

    run(body)


@settings(max_examples=300)
@given(st.data())
def test_invented_bytes_never_raise_and_leave_no_call_behind(data: st.DataObject) -> None:
    """Valid frames, their bytes changed at random, and plain noise; then the end of the
    connection. Every call must end, and every counter must add up."""

    async def body() -> None:
        pair = Pair(greets=data.draw(st.booleans()))
        futures = [pair.send("POST" if number % 2 else "GET", b"xy")[1] for number in range(3)]
        stream_ids = st.integers(0, 9)
        valid = st.one_of(
            st.builds(frames.frame, st.integers(0, 10), st.integers(0, 255), stream_ids, _PAYLOADS),
            st.just(frames.settings_frame({frames.MAX_CONCURRENT_STREAMS: 1})),
            st.binary(max_size=30),
        )
        noise = bytearray(b"".join(data.draw(st.lists(valid, max_size=12))))
        for place in data.draw(st.lists(st.integers(0, 1 << 20), max_size=3)):
            if noise:
                noise[place % len(noise)] ^= 1 << place % 8
        half = data.draw(st.integers(0, max(len(noise), 1)))
        for part in (noise[:half], noise[half:]):
            if pair.conn.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
                pair.conn.data_received(bytes(part))
        pair.conn.connection_lost(None)
        unanswered = 0
        for future in futures:
            assert future.done()
            unanswered += isinstance(future.exception(), Unanswered)
        counters = pair.shared.counters_of("http2")
        assert counters.sent == counters.answered + counters.failed + unanswered
        assert not pair.shared.live

    run(body)


_PAYLOADS = st.one_of(
    st.sampled_from([b"", b"\x88", b"\0\0\0\7", b"12345678", block(*OK)]), st.binary(max_size=40)
)
