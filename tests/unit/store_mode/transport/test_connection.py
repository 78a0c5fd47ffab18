"""Connections over a store: opened, in order, once, closed, reset."""

from __future__ import annotations

import random

import pytest

from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.interface import Append
from squall.store_mode.transport.connection import WINDOW_BYTES
from squall.store_mode.transport.envelope import PartKind, StreamPart
from squall.store_mode.transport.network import LEADER, mailbox_name
from tests.fakes.store_network import LAYOUTS, RECORDS, STREAMS, Lab, Recorder, rest, until
from tests.fakes.wire import run, turns

CONTENT = random.Random(3).randbytes(3 * 1024 * 1024 + 77)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@every_layout
def test_bytes_arrive_whole_and_in_order_both_ways(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        _, _, near, far = await lab.pair()
        for begin in range(0, len(CONTENT), 70_001):
            near.end.send(CONTENT[begin : begin + 70_001])
            far.end.send(CONTENT[begin : begin + 70_001])
        await until(lambda: len(near.data) == len(far.data) == len(CONTENT))
        assert near.data == far.data == CONTENT
        assert near.end.unsent == far.end.unsent == 0
        await lab.close()

    run(main())


def test_a_mailbox_without_a_listener_refuses() -> None:
    async def main() -> None:
        lab = Lab()
        a, b = lab.process("a"), lab.process("b")
        await b.listen()
        await a.dial("b")
        with pytest.raises(ConnectionRefusedError, match="there is no listener at a"):
            await b.dial("a")
        await lab.close()

    run(main())


@every_layout
def test_a_dial_that_is_not_answered_has_called_nobody_and_is_taken_back(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        a, b = lab.process("a"), lab.process("b")
        handler = Recorder()
        with pytest.raises(TimeoutError, match="b did not answer in 2 s"):
            await a.network.dial(("b", 0), handler, timeout_s=2.0)
        await turns()
        assert handler.connection is None
        assert not handler.closed
        assert a.network.open_count == 0
        await b.listen()
        await until(lambda: bool(b.accepted) and bool(b.accepted[0].closed))
        assert isinstance(b.accepted[0].closed[0], ConnectionResetError)
        assert b.network.open_count == 1
        await lab.close()

    run(main())


def test_the_leader_is_resolved_at_every_dial() -> None:
    async def main() -> None:
        lab = Lab()
        a, b, c = (lab.process(name) for name in "abc")
        await b.listen()
        await c.listen()
        with pytest.raises(ConnectionError, match="nobody leads"):
            await a.dial(LEADER)
        lab.leader = "b"
        first = await a.dial(LEADER)
        lab.leader = "c"
        second = await a.dial(LEADER)
        assert (first.end.peer, second.end.peer) == (("b", 0), ("c", 0))
        await lab.close()

    run(main())


def test_a_dial_that_cannot_even_be_tried_is_an_error_of_the_network() -> None:
    async def main() -> None:
        lab = Lab()
        a = lab.process("a")

        async def away(name: str) -> str:
            raise StoreUnavailableError("no answer")

        a.network._resolve = away
        with pytest.raises(ConnectionError, match="the leader cannot be found: no answer"):
            await a.dial(LEADER)
        with pytest.raises(OSError, match="not the name of a mailbox"):
            await a.dial("no/name")
        assert a.network.open_count == 0
        await lab.close()

    run(main())


def test_only_the_own_mailbox_can_be_listened_at_and_only_once() -> None:
    async def main() -> None:
        lab = Lab()
        a = lab.process("a")
        with pytest.raises(OSError, match="not the mailbox of this process"):
            await a.network.listen(("b", 0), Recorder)
        listener = await a.network.listen(("a", 0), Recorder)
        with pytest.raises(OSError, match="already"):
            await a.network.listen(("a", 0), Recorder)
        await listener.close()
        await (await a.network.listen(("a", 0), Recorder)).close()
        with pytest.raises(OSError, match="no datagrams"):
            await a.network.bind_datagrams(("a", 0), None)  # type: ignore[arg-type]
        await lab.close()

    run(main())


@every_layout
def test_a_close_sends_what_is_queued_and_tells_both_once(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        a, b, near, far = await lab.pair()
        near.end.send(CONTENT)
        near.end.close()
        near.end.send(b"too late")
        await until(lambda: bool(near.closed and far.closed))
        assert far.data == CONTENT
        assert near.closed == far.closed == [None]
        assert (a.network.open_count, b.network.open_count) == (0, 1)
        await lab.close()

    run(main())


def test_nothing_is_told_from_inside_a_call() -> None:
    async def main() -> None:
        lab = Lab()
        _, _, near, far = await lab.pair()
        near.end.abort()
        assert not near.closed
        await turns()
        assert near.closed == [None]
        await until(lambda: bool(far.closed))
        assert isinstance(far.closed[0], ConnectionResetError)
        await lab.close()

    run(main())


@every_layout
def test_a_reader_that_pauses_holds_one_window_and_loses_nothing(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        a, _, near, far = await lab.pair()
        far.end.pause_reading()
        content = CONTENT * 4
        near.end.send(content)
        await rest(30.0)
        assert not far.data
        assert near.end.unsent == len(content) - WINDOW_BYTES
        other = await a.dial("b")
        other.end.send(b"not paused")
        await until(lambda: bool(lab.processes[1].accepted[1].data))
        far.end.resume_reading()
        await until(lambda: len(far.data) == len(content))
        assert far.data == content
        assert near.end.unsent == 0
        await lab.close()

    run(main())


def test_a_reader_may_pause_after_every_chunk() -> None:
    async def main() -> None:
        lab = Lab()
        _, b, near, far = await lab.pair()

        def pause(recorder: Recorder, data: bytes) -> None:
            recorder.end.pause_reading()

        b.on_data = pause
        other = await lab.processes[0].dial("b")
        await until(lambda: len(b.accepted) == 2)
        slow = b.accepted[1]
        for number in range(5):
            other.end.send(bytes([number]) * 1000)
            await rest(0.1)
        other.end.close()
        for chunk in range(1, 6):
            await rest(0.1)
            assert slow.chunks == chunk
            assert not slow.closed
            slow.end.resume_reading()
        await until(lambda: bool(slow.closed))
        assert slow.closed == [None]
        assert not near.closed and not far.closed
        await lab.close()

    run(main())


def test_bulk_does_not_delay_another_connection() -> None:
    async def main() -> None:
        lab = Lab(flush_s=1.0)
        a, b, near, far = await lab.pair()
        other = await a.dial("b")
        await until(lambda: len(b.accepted) == 2)
        near.end.send(CONTENT)
        other.end.send(b"urgent")
        await until(lambda: bool(b.accepted[1].data))
        assert len(far.data) < len(CONTENT)
        await lab.close()

    run(main())


def test_a_process_speaks_to_itself_without_the_store() -> None:
    async def main() -> None:
        lab = Lab(flush_s=1000.0)
        a = lab.process("a")
        await a.listen()
        lab.leader = "a"
        a.faults.down = True
        near = await a.dial(LEADER)
        near.end.send(CONTENT)
        await until(lambda: bool(a.accepted) and len(a.accepted[0].data) == len(CONTENT))
        a.accepted[0].end.send(b"answer")
        await until(lambda: near.data == b"answer")
        await rest(30.0)
        assert not near.closed
        near.end.close()
        await until(lambda: bool(a.accepted[0].closed))
        assert a.accepted[0].closed == near.closed == [None]
        assert a.network.counters.envelopes_out == 0
        await lab.close()

    run(main())


def test_abandon_resets_what_was_dialled_to_one_mailbox_only() -> None:
    async def main() -> None:
        lab = Lab()
        a, b, near, far = await lab.pair()
        await a.listen()
        back = await b.dial("a")
        c = lab.process("c")
        await c.listen()
        kept = await a.dial("c")
        assert a.network.abandon("b") == 1
        assert a.network.abandon("nobody") == 0
        await until(lambda: bool(near.closed and far.closed))
        assert isinstance(near.closed[0], ConnectionResetError)
        assert isinstance(far.closed[0], ConnectionResetError)
        assert not kept.closed
        assert not back.closed
        back.end.send(b"still here")
        await until(lambda: a.accepted[0].data == b"still here")
        await lab.close()

    run(main())


def test_an_abandoned_dial_fails_at_once() -> None:
    async def main() -> None:
        lab = Lab()
        a = lab.process("a")
        lab.process("b")
        loop_time = a.clock.now
        begun = loop_time()

        async def give_up() -> None:
            await rest(0.5)
            a.network.abandon("b")

        token = a.tasks.start("give up", give_up())
        with pytest.raises(ConnectionResetError):
            await a.dial("b", timeout_s=20.0)
        assert loop_time() - begun < 1.0
        await a.tasks.stopped(token)
        await lab.close()

    run(main())


def test_a_handler_that_raises_loses_its_connection_and_nothing_else() -> None:
    async def main() -> None:
        import asyncio

        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        lab = Lab()
        a, b, near, far = await lab.pair()

        def fail(recorder: Recorder, data: bytes) -> None:
            raise ValueError("a bug")

        b.on_data = fail
        bad = await a.dial("b")
        bad.end.send(b"x")
        await until(lambda: bool(bad.closed))
        assert isinstance(bad.closed[0], ConnectionResetError)
        assert len(told) == 1
        near.end.send(b"still here")
        await until(lambda: far.data == b"still here")
        await lab.close()

    run(main())


def test_the_end_of_a_network_is_sent_to_its_peers() -> None:
    async def main() -> None:
        lab = Lab()
        _, b, near, far = await lab.pair()
        await b.network.close()
        await until(lambda: bool(near.closed and far.closed))
        assert isinstance(near.closed[0], ConnectionResetError)
        with pytest.raises(ConnectionAbortedError):
            await b.dial("a")
        await lab.close()

    run(main())


def test_strange_letters_change_nothing() -> None:
    async def main() -> None:
        lab = Lab()
        a, b, near, far = await lab.pair()
        near.end.send(b"one")
        await until(lambda: far.data == b"one")
        # The same parcels again, a greeting that was seen, a peer with no name.
        await lab.put_letter("b", "a", [StreamPart(1, 0, PartKind.OPEN)], "again")
        await lab.put_letter("b", "a", [StreamPart(1, 1, PartKind.DATA, b"one")], "repeat")
        await lab.put_letter("b", "../x", [StreamPart(1, 0, PartKind.OPEN)], "nameless")
        await lab.put_letter("b", "c", [StreamPart(-5, 0, PartKind.RESET)], "stray")
        await lab.put_letter("b", "c", [StreamPart(1, 7, PartKind.CREDIT)], "credit")
        await lab.store.write(Append("mail/b", "junk", b"\xc1 no letter", ttl_s=60.0))
        near.end.send(b"two")
        await until(lambda: far.data == b"onetwo")
        assert len(b.accepted) == 1
        assert not near.closed and not far.closed
        assert not a.failures and not b.failures
        await lab.close()

    run(main())


def test_data_of_an_unknown_connection_is_answered_with_a_reset() -> None:
    async def main() -> None:
        lab = Lab()
        _, _, near, far = await lab.pair()
        # b has forgotten the connection and a has not: as after an outage on one side.
        far.end.fail(None, notify_peer=False)  # type: ignore[attr-defined]
        near.end.send(b"anybody there?")
        await until(lambda: bool(near.closed))
        assert isinstance(near.closed[0], ConnectionResetError)
        await lab.close()

    run(main())


def test_what_leaves_close_together_goes_in_one_letter() -> None:
    async def main() -> None:
        lab = Lab(flush_s=0.5)
        a, _, near, far = await lab.pair()
        before = a.network.counters.envelopes_out
        for _ in range(100):
            near.end.send(b"x")
            await rest(0.01)
        await until(lambda: len(far.data) == 100)
        assert a.network.counters.envelopes_out - before <= 4
        await lab.close()

    run(main())


def test_names_of_mailboxes_are_unique_per_boot_and_fit_every_store() -> None:
    names = {mailbox_name(node, boot) for node in ("a", "ä/ö", "n" * 300) for boot in ("1", "2")}
    assert len(names) == 6
    assert all(len(name) <= 96 and name.replace("-", "a").isalnum() for name in names)
    assert all(name.isascii() for name in names)


def test_a_mailbox_cannot_be_called_leader() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="mailbox_name"):
            Lab().process(LEADER)

    run(main())


@pytest.mark.parametrize("layout", [STREAMS, RECORDS])
def test_read_letters_are_removed(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        _, _, near, far = await lab.pair()
        for _ in range(50):
            near.end.send(b"x" * 100)
            await rest(0.02)
        await until(lambda: len(far.data) == 5000)
        await rest(2.0)
        if layout == STREAMS:
            assert (await lab.store.depth("mail/b")).items == 0
        else:
            assert not (await lab.store.list("mail.b")).entries
        await lab.close()

    run(main())
