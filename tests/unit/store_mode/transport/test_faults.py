"""Connections over a store that fails: lost replies, lost envelopes, outages, dead peers."""

from __future__ import annotations

import random

import pytest

from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.interface import ANY, Delete, Fence, Remove, Write, make_key
from squall.store_mode.transport.tuning import S3_TUNING
from tests.fakes.store_network import LAYOUTS, RECORDS, STREAMS, Lab, Process, rest, until
from tests.fakes.wire import run

CONTENT = random.Random(4).randbytes(700_003)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


async def lose_mail_of(lab: Lab, owner: str) -> int:
    """Takes every letter out of an inbox, unread."""
    if lab.layout == STREAMS:
        stream = make_key("mail", owner)
        items = await lab.store.read(stream)
        for item in items:
            await lab.store.write(Remove(stream, item.cursor))
        return len(items)
    page = await lab.store.list(f"mail.{owner}")
    for entry in page.entries:
        await lab.store.write(Delete(entry.key, ANY))
    return len(page.entries)


@every_layout
def test_lost_requests_and_replies_change_nothing(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout, give_up_s=1000.0)
        a, b, near, far = await lab.pair()
        for process in (a, b):
            process.faults.lost_requests = 0.3
            process.faults.lost_replies = 0.3
        for begin in range(0, len(CONTENT), 20_001):
            near.end.send(CONTENT[begin : begin + 20_001])
            far.end.send(CONTENT[begin : begin + 20_001])
            await rest(0.2)
        near.end.close()
        await until(lambda: bool(near.closed and far.closed), 600.0)
        assert far.data == CONTENT
        assert near.closed == far.closed == [None]
        assert a.store.failed > 10
        assert b.network.counters.envelopes_in == a.network.counters.envelopes_out
        await lab.close()

    run(main())


@every_layout
def test_a_letter_that_the_store_lost_resets_the_connection(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        a, b, near, far = await lab.pair()
        near.end.send(b"first")
        await until(lambda: far.data == b"first")
        b.faults.down = True
        near.end.send(b"second")
        await until(lambda: near.end.unsent == 0)
        assert await lose_mail_of(lab, "b") >= 1
        b.faults.down = False
        near.end.send(b"third")
        await until(lambda: bool(near.closed and far.closed), 120.0)
        assert far.data == b"first"
        assert isinstance(far.closed[0], ConnectionResetError)
        assert "lost a part" in str(far.closed[0])
        assert isinstance(near.closed[0], ConnectionResetError)
        again = await a.dial("b")
        again.end.send(b"anew")
        await until(lambda: b.accepted[-1].data == b"anew")
        await lab.close()

    run(main())


@every_layout
def test_connections_outlive_a_short_outage_of_the_store(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        a, b, near, far = await lab.pair()
        a.faults.down = b.faults.down = True
        near.end.send(CONTENT)
        far.end.send(CONTENT)
        await rest(0.7 * lab.tuning.give_up_s)
        assert near.end.unsent == far.end.unsent == len(CONTENT)
        a.faults.down = b.faults.down = False
        await until(lambda: len(near.data) == len(far.data) == len(CONTENT))
        assert near.data == far.data == CONTENT
        assert not near.closed and not far.closed
        assert a.network.counters.outages == 1
        await lab.close()

    run(main())


@every_layout
def test_a_long_outage_ends_all_connections_and_the_network_returns(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        a, b, near, far = await lab.pair()
        a.faults.down = b.faults.down = True
        near.end.send(CONTENT)
        await rest(lab.tuning.give_up_s + 5.0 + 3.0)
        for closed in (near.closed, far.closed):
            assert isinstance(closed[0], ConnectionError)
            assert "the store did not answer for 10 s" in str(closed[0])
        assert a.network.open_count == 0
        with pytest.raises(ConnectionError, match="the store did not answer for 10 s"):
            await a.dial("b", timeout_s=10.0)
        a.faults.down = b.faults.down = False
        again = await a.dial("b", timeout_s=30.0)
        again.end.send(CONTENT)
        await until(lambda: len(b.accepted[-1].data) == len(CONTENT))
        assert far.data == b""
        await lab.close()

    run(main())


def test_a_network_that_cannot_write_but_can_read_gives_up_too() -> None:
    async def main() -> None:
        lab = Lab()
        a, _, near, _ = await lab.pair()

        async def refuse(writes: object) -> None:
            a.faults.down = True

        a.store._on_write = refuse  # type: ignore[attr-defined]
        reading = a.store.wait

        async def wait(*watches: object, timeout_s: float) -> object:
            a.faults.down = False
            return await reading(*watches, timeout_s=timeout_s)  # type: ignore[arg-type]

        a.store.wait = wait  # type: ignore[method-assign]
        near.end.send(b"never")
        await until(lambda: bool(near.closed), 60.0)
        assert isinstance(near.closed[0], ConnectionError)
        a.store._on_write = None  # type: ignore[attr-defined]
        a.faults.down = False
        await lab.close()

    run(main())


def test_a_mailbox_without_a_reader_fills_and_its_connections_end() -> None:
    async def main() -> None:
        lab = Lab(inbox_envelopes=5, envelope_bytes=1000)
        a, b, near, _ = await lab.pair()
        c = lab.process("c")
        await c.listen()
        other = await a.dial("c")
        b.die()
        near.end.send(CONTENT)
        await rest(1.0)
        unsent = near.end.unsent
        assert 0 < unsent < len(CONTENT)
        await rest(lab.tuning.full_s / 2)
        assert near.end.unsent == unsent
        await until(lambda: bool(near.closed))
        assert isinstance(near.closed[0], ConnectionResetError)
        assert "b has read nothing" in str(near.closed[0])
        other.end.send(b"unharmed")
        await until(lambda: c.accepted[0].data == b"unharmed")
        await lab.close()

    run(main())


def test_a_full_mailbox_is_waited_for() -> None:
    async def main() -> None:
        lab = Lab(inbox_envelopes=5, envelope_bytes=1000)
        _, b, near, far = await lab.pair()
        b.faults.down = True
        content = CONTENT[:50_000]
        near.end.send(content)
        await rest(lab.tuning.full_s / 2)
        b.faults.down = False
        await until(lambda: len(far.data) == len(content), 600.0)
        assert far.data == content
        await lab.close()

    run(main())


def test_a_close_that_the_peer_never_reads_ends_all_the_same() -> None:
    async def main() -> None:
        lab = Lab()
        _, _, near, far = await lab.pair()
        far.end.pause_reading()
        near.end.send(CONTENT * 8)
        near.end.close()
        await rest(lab.tuning.give_up_s / 2)
        assert not near.closed
        await until(lambda: bool(near.closed), lab.tuning.give_up_s)
        assert near.closed == [None]
        await until(lambda: bool(far.closed))
        assert isinstance(far.closed[0], ConnectionResetError)
        await lab.close()

    run(main())


@every_layout
def test_a_network_can_be_closed_while_the_store_is_away(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        a, b, near, far = await lab.pair()
        a.faults.down = True
        near.end.send(b"never arrives")
        begun = a.clock.now()
        await a.network.close()
        assert a.clock.now() - begun < lab.tuning.close_s + 2.0
        assert isinstance(near.closed[0], ConnectionAbortedError)
        assert not far.closed
        assert b.network.open_count == 2
        await lab.close()

    run(main())


def test_an_owner_that_never_looks_at_unsent_is_cut_off() -> None:
    async def main() -> None:
        lab = Lab()
        a, _, near, _ = await lab.pair()
        a.faults.down = True
        for _ in range(70):
            near.end.send(bytes(1024 * 1024))
        await until(lambda: bool(near.closed), 1.0)
        assert isinstance(near.closed[0], ConnectionAbortedError)
        assert near.end.unsent == 0
        await lab.close()

    run(main())


def test_a_letter_that_comes_again_after_it_was_deleted_is_deleted_again() -> None:
    """A PUT that a slow service did twice, the second time after the reader was done."""

    async def main() -> None:
        lab = Lab(RECORDS)
        a, _, near, far = await lab.pair()
        seen: list[object] = []

        async def note(writes: object) -> None:
            seen.append(writes)

        a.store._on_write = note  # type: ignore[attr-defined]
        near.end.send(b"once")
        await until(lambda: far.data == b"once")
        await rest(1.0)
        assert not (await lab.store.list("mail.b")).entries
        (put,) = seen[0]  # type: ignore[misc]
        await lab.store.write(put)
        await rest(2.0)
        assert not (await lab.store.list("mail.b")).entries
        near.end.send(b" more")
        await until(lambda: far.data == b"once more")
        assert not near.closed and not far.closed
        await lab.close()

    run(main())


def test_a_letter_that_was_given_up_and_came_does_not_block_the_next() -> None:
    async def main() -> None:
        lab = Lab(RECORDS)
        a, b, near, _ = await lab.pair()
        honest = a.store.write

        async def lost(*writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
            await honest(*writes, fence=fence)
            raise StoreUnavailableError("the reply was lost")

        a.store.write = lost  # type: ignore[method-assign]
        near.end.send(b"arrives, though nobody knows")
        await until(lambda: bool(near.closed), 60.0)
        assert "the store did not answer for 10 s" in str(near.closed[0])
        a.store.write = honest  # type: ignore[method-assign]
        again = await a.dial("b")
        again.end.send(b"next")
        await until(lambda: b.accepted[-1].data == b"next")
        await lab.close()

    run(main())


def test_the_mail_of_the_dead_is_deleted_by_the_living() -> None:
    async def main() -> None:
        lab = Lab(RECORDS)
        lab.tuning = S3_TUNING
        _, b, near, _ = await lab.pair()
        b.die()
        near.end.send(b"nobody will read it")
        await until(lambda: near.end.unsent == 0)
        near.end.abort()
        await rest(1.0)
        assert (await lab.store.list("mail.b")).entries
        await rest(lab.tuning.ttl_s + 2000.0)
        late: Process = lab.process("late")
        await late.listen()
        await rest(5.0)
        assert not (await lab.store.list("mail.b")).entries
        names = [entry.key for entry in (await lab.store.list("mailbox")).entries]
        assert sorted(names) == ["mailbox/a", "mailbox/late"]
        await lab.close()

    run(main())
