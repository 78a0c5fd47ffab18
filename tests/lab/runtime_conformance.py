"""What every runtime must do, real or simulated: one class of checks, run by both.

A subclass says how to play a check: `play(check)` makes a `Stage`, runs the coroutine
`check(stage)` on the runtime's own loop and tears everything down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from squall.runtime.interfaces import Address, Connection, Listener, Network, Runtime
from squall.runtime.tasks import TaskFailure, TaskRunner, TaskState


@dataclass
class Stage:
    """Two nodes that can reach each other."""

    server: Runtime
    client: Runtime
    host: str
    """Where the server listens."""
    client_host: str
    silent: Address
    """Takes a dial and never answers it."""


Check = Callable[[Stage], Awaitable[None]]


class Ear:
    """A stream handler that writes down what it was told."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.calls: list[str] = []
        self.received = b""
        self.connection: Connection | None = None
        self.error: Exception | None = None
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self._more = asyncio.Event()

    def on_open(self, connection: Connection) -> None:
        self.calls.append("open")
        self.connection = connection
        self.opened.set()

    def on_data(self, data: bytes) -> None:
        self.calls.append("data")
        assert type(data) is bytes
        assert data
        self.received += data
        self._more.set()
        if self.echo and self.connection is not None:
            self.connection.send(data)

    def on_closed(self, error: Exception | None) -> None:
        self.calls.append("closed")
        self.error = error
        self.closed.set()

    @property
    def line(self) -> Connection:
        assert self.connection is not None
        return self.connection

    async def has(self, size: int) -> None:
        while len(self.received) < size:
            self._more.clear()
            await self._more.wait()


class Post:
    """A datagram handler that keeps what came."""

    def __init__(self) -> None:
        self.received: list[tuple[bytes, Address]] = []
        self.arrived = asyncio.Event()

    def on_datagram(self, data: bytes, sender: Address) -> None:
        self.received.append((data, sender))
        self.arrived.set()


async def linked(stage: Stage, *, echo: bool = False) -> tuple[Ear, Ear, Listener]:
    """A handler on each side of a new connection: the dialler's first."""
    accepted: list[Ear] = []

    def accept() -> Ear:
        accepted.append(Ear(echo=echo))
        return accepted[-1]

    listener = await stage.server.network.listen((stage.host, 0), accept)
    near = Ear()
    await stage.client.network.dial(listener.address, near, timeout_s=5.0)
    while not accepted:
        await asyncio.sleep(0.001)
    far = accepted[0]
    await far.opened.wait()
    return near, far, listener


class RuntimeConformance:
    def play(self, check: Check) -> None:
        raise NotImplementedError

    # Streams.

    @pytest.mark.parametrize("sizes", [[1] * 50, [10, 1000, 3], [300_000], [1, 2_000_000, 1]])
    def test_bytes_come_back_whole_and_in_order_in_any_pieces(self, sizes: list[int]) -> None:
        async def check(stage: Stage) -> None:
            near, _, _ = await linked(stage, echo=True)
            sent = b""
            for number, size in enumerate(sizes):
                piece = bytes((number + offset) % 251 for offset in range(size))
                sent += piece
                near.line.send(piece)
            await near.has(len(sent))
            assert near.received == sent

        self.play(check)

    def test_a_dial_opens_its_handler_before_it_returns(self) -> None:
        async def check(stage: Stage) -> None:
            listener = await stage.server.network.listen((stage.host, 0), Ear)
            near = Ear()
            line = await stage.client.network.dial(listener.address, near, timeout_s=5.0)
            assert near.calls == ["open"]
            assert near.connection is line
            assert line.peer == listener.address
            assert list(line.peer_names) == []

        self.play(check)

    def test_both_ends_agree_on_their_addresses(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            assert near.line.local == far.line.peer
            assert near.line.peer == far.line.local

        self.play(check)

    def test_no_callback_comes_from_inside_a_call(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage, echo=True)
            near.line.send(b"x")
            near.line.pause_reading()
            near.line.resume_reading()
            near.line.close()
            near.line.abort()
            assert near.calls == ["open"]
            await near.closed.wait()
            await far.closed.wait()

        self.play(check)

    def test_a_close_delivers_what_was_sent_before_and_ends_both_sides(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            near.line.send(b"a" * 500_000)
            near.line.close()
            await far.closed.wait()
            await near.closed.wait()
            assert far.received == b"a" * 500_000
            assert far.error is None
            assert near.error is None
            assert near.calls == ["open", "closed"]
            assert far.calls[-1] == "closed"

        self.play(check)

    def test_the_last_words_arrive_at_a_peer_that_is_still_talking(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            near.line.send(b"b" * 1_000_000)
            await far.has(1)
            far.line.send(b"too long")
            far.line.close()
            near.line.send(b"c" * 1_000_000)
            await near.closed.wait()
            assert near.received == b"too long"

        self.play(check)

    def test_nothing_is_read_or_sent_after_a_close(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            near.line.close()
            near.line.send(b"late")
            far.line.send(b"later")
            await near.closed.wait()
            await far.closed.wait()
            assert near.received == b""
            assert far.received == b""

        self.play(check)

    def test_an_abort_ends_both_sides_and_is_no_error_of_ours(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            near.line.abort()
            await near.closed.wait()
            await far.closed.wait()
            assert near.error is None
            assert near.calls == ["open", "closed"]
            assert isinstance(far.error, ConnectionError)

        self.play(check)

    def test_closing_again_and_using_a_closed_connection_do_nothing(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            near.line.close()
            near.line.close()
            await near.closed.wait()
            await far.closed.wait()
            for line in (near.line, far.line):
                line.send(b"x")
                line.pause_reading()
                line.resume_reading()
                line.close()
                line.abort()
                assert line.unsent == 0
            await asyncio.sleep(0.01)
            assert near.calls.count("closed") == 1
            assert far.calls.count("closed") == 1

        self.play(check)

    def test_what_a_peer_does_not_read_is_counted_as_unsent(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            far.line.pause_reading()
            sent = 0
            while near.line.unsent < 1_000_000:
                near.line.send(b"d" * 500_000)
                sent += 500_000
                await asyncio.sleep(0.001)
            assert near.line.unsent <= sent
            far.line.resume_reading()
            await far.has(sent)
            assert len(far.received) == sent
            assert near.line.unsent == 0

        self.play(check)

    def test_a_paused_reader_hears_nothing_until_it_resumes(self) -> None:
        async def check(stage: Stage) -> None:
            near, far, _ = await linked(stage)
            far.line.pause_reading()
            near.line.send(b"e" * 100)
            await asyncio.sleep(0.05)
            assert far.received == b""
            far.line.resume_reading()
            await far.has(100)

        self.play(check)

    def test_a_closed_listener_refuses_and_keeps_its_connections(self) -> None:
        async def check(stage: Stage) -> None:
            near, _, listener = await linked(stage, echo=True)
            await listener.close()
            late = Ear()
            with pytest.raises(ConnectionError):
                await stage.client.network.dial(listener.address, late, timeout_s=5.0)
            assert late.calls == []
            near.line.send(b"still here")
            await near.has(10)

        self.play(check)

    def test_an_address_can_be_listened_on_again_but_not_twice(self) -> None:
        async def check(stage: Stage) -> None:
            network: Network = stage.server.network
            listener = await network.listen((stage.host, 0), Ear)
            with pytest.raises(OSError):
                await network.listen(listener.address, Ear)
            await listener.close()
            again = await network.listen(listener.address, Ear)
            assert again.address == listener.address

        self.play(check)

    def test_a_dial_that_nobody_answers_times_out_and_calls_nothing(self) -> None:
        async def check(stage: Stage) -> None:
            ear = Ear()
            with pytest.raises(TimeoutError):
                await stage.client.network.dial(stage.silent, ear, timeout_s=0.2)
            await asyncio.sleep(0.05)
            assert ear.calls == []

        self.play(check)

    def test_a_cancelled_dial_calls_nothing(self) -> None:
        async def check(stage: Stage) -> None:
            ear = Ear()
            dial = stage.client.network.dial(stage.silent, ear, timeout_s=60.0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await dial
            await asyncio.sleep(0.05)
            assert ear.calls == []

        self.play(check)

    # Datagrams.

    def test_datagrams_arrive_with_their_sender(self) -> None:
        async def check(stage: Stage) -> None:
            post, other = Post(), Post()
            server = await stage.server.network.bind_datagrams((stage.host, 0), post)
            client = await stage.client.network.bind_datagrams((stage.client_host, 0), other)
            while not post.received:
                client.send(b"ping", server.address)
                await asyncio.sleep(0.01)
            data, sender = post.received[0]
            assert data == b"ping"
            assert sender == client.address
            server.send(b"pong", sender)
            await other.arrived.wait()
            assert other.received[0] == (b"pong", server.address)

        self.play(check)

    def test_a_datagram_to_nobody_is_lost_in_silence(self) -> None:
        async def check(stage: Stage) -> None:
            post = Post()
            server = await stage.server.network.bind_datagrams((stage.host, 0), post)
            client = await stage.client.network.bind_datagrams((stage.client_host, 0), Post())
            server.close()
            for _ in range(3):
                client.send(b"x", server.address)
                await asyncio.sleep(0.001)
            client.close()
            client.send(b"x", server.address)
            client.close()
            assert post.received == []

        self.play(check)

    # Disk.

    def test_a_file_grows_by_appending_and_is_found_again(self) -> None:
        async def check(stage: Stage) -> None:
            disk = stage.server.disk
            file = await disk.open("wal", preallocate=1 << 16)
            assert file.size == 0
            await file.append(b"one")
            await file.append(b"two")
            await file.sync()
            assert file.size == 6
            assert await disk.read("wal") == b"onetwo"
            assert await disk.read("wal", 1, 3) == b"net"
            assert await disk.read("wal", 4, 100) == b"wo"
            assert await disk.read("wal", 100) == b""
            assert await disk.size("wal") == 6
            await file.close()
            again = await disk.open("wal")
            assert again.size == 6
            await again.append(b"three")
            assert await disk.read("wal") == b"onetwothree"
            await again.close()

        self.play(check)

    def test_zeros_ahead_are_behind_the_end_and_count_for_nothing(self) -> None:
        async def check(stage: Stage) -> None:
            disk = stage.server.disk
            file = await disk.open("wal", preallocate=100, ahead=40)
            ends = [(10, 50), (40, 50), (50, 90), (75, 90), (95, 100), (120, 120)]
            expected = b""
            for end, filled in ends:
                expected += bytes([end]) * (end - len(expected))
                await file.append_and_sync(expected[file.size :])
                assert file.size == end
                if await disk.size("wal") != end:
                    # Not every file system reserves blocks; without them there are no zeros.
                    assert await disk.read("wal") == expected + bytes(filled - end)
            await file.truncate(20)
            assert await disk.read("wal") == expected[:20]
            await file.append(b"x")
            await file.truncate(file.size)
            assert await disk.read("wal") == expected[:20] + b"x"
            await file.close()

        self.play(check)

    def test_appends_that_overlap_keep_their_order(self) -> None:
        async def check(stage: Stage) -> None:
            file = await stage.server.disk.open("log")
            parts = [bytes([65 + number]) * (1 + number % 5 * 1000) for number in range(26)]
            await asyncio.gather(*(file.append(part) for part in parts), file.sync())
            assert await stage.server.disk.read("log") == b"".join(parts)
            await file.close()

        self.play(check)

    def test_an_append_with_a_sync_keeps_its_place_among_the_others(self) -> None:
        async def check(stage: Stage) -> None:
            file = await stage.server.disk.open("log")
            await asyncio.gather(
                file.append(b"one"), file.append_and_sync(b"two"), file.append(b"three")
            )
            assert await stage.server.disk.read("log") == b"onetwothree"
            assert file.size == 11
            assert not file.poisoned
            await file.close()
            with pytest.raises(OSError):
                await file.append_and_sync(b"x")

        self.play(check)

    def test_an_open_file_keeps_its_content_under_a_new_name(self) -> None:
        async def check(stage: Stage) -> None:
            disk = stage.server.disk
            file = await disk.open("log.new")
            await file.append_and_sync(b"head")
            await disk.rename("log.new", "log")
            await disk.sync_directory()
            await file.append_and_sync(b"tail")
            assert await disk.read("log") == b"headtail"
            await file.close()

        self.play(check)

    def test_a_file_is_cut_and_grows_from_there(self) -> None:
        async def check(stage: Stage) -> None:
            file = await stage.server.disk.open("log")
            await file.append(b"abcdef")
            await file.truncate(2)
            assert file.size == 2
            await file.append(b"X")
            assert await stage.server.disk.read("log") == b"abX"
            with pytest.raises(OSError):
                await file.truncate(100)
            await file.close()

        self.play(check)

    def test_a_closed_file_takes_nothing_more(self) -> None:
        async def check(stage: Stage) -> None:
            file = await stage.server.disk.open("log")
            await file.close()
            await file.close()
            with pytest.raises(OSError):
                await file.append(b"x")
            with pytest.raises(OSError):
                await file.sync()

        self.play(check)

    def test_names_are_made_moved_listed_and_removed(self) -> None:
        async def check(stage: Stage) -> None:
            disk = stage.server.disk
            assert list(await disk.list("blobs")) == []
            await disk.make_directory("blobs/ab")
            await disk.make_directory("blobs/ab")
            await disk.write_atomic("blobs/ab/two", b"2")
            await disk.write_atomic("blobs/ab/one", b"1")
            assert list(await disk.list("blobs/ab")) == ["one", "two"]
            assert list(await disk.list("blobs")) == ["ab"]
            await disk.rename("blobs/ab/one", "blobs/ab/two")
            await disk.sync_directory("blobs/ab")
            assert list(await disk.list("blobs/ab")) == ["two"]
            assert await disk.read("blobs/ab/two") == b"1"
            await disk.remove("blobs/ab/two")
            assert list(await disk.list("blobs/ab")) == []

        self.play(check)

    def test_an_atomic_write_replaces_all_and_leaves_no_trace(self) -> None:
        async def check(stage: Stage) -> None:
            disk = stage.server.disk
            await disk.write_atomic("vote", b"a long first content")
            await disk.write_atomic("vote", b"short")
            assert await disk.read("vote") == b"short"
            await asyncio.gather(*(disk.write_atomic("vote", bytes([n]) * 9) for n in range(8)))
            content = await disk.read("vote")
            assert len(content) == 9
            assert len(set(content)) == 1
            assert list(await disk.list()) == ["vote"]

        self.play(check)

    def test_what_is_absent_is_not_found(self) -> None:
        async def check(stage: Stage) -> None:
            disk = stage.server.disk
            for asking in (
                disk.read("none"),
                disk.size("none"),
                disk.remove("none"),
                disk.rename("none", "other"),
                disk.open("none/file"),
                disk.write_atomic("none/file", b""),
                disk.sync_directory("none"),
            ):
                with pytest.raises(FileNotFoundError):
                    await asking

        self.play(check)

    @pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a//b", "..", "./x"])
    def test_a_path_outside_of_the_data_directory_is_refused(self, path: str) -> None:
        async def check(stage: Stage) -> None:
            with pytest.raises(OSError):
                await stage.server.disk.write_atomic(path, b"x")
            with pytest.raises(OSError):
                await stage.server.disk.open(path)
            assert list(await stage.server.disk.list()) == []

        self.play(check)

    def test_the_data_directory_has_one_owner(self) -> None:
        async def check(stage: Stage) -> None:
            lock = stage.server.disk.lock()
            with pytest.raises(BlockingIOError):
                stage.server.disk.lock()
            assert list(await stage.server.disk.list()) == []
            lock.release()
            lock.release()
            stage.server.disk.lock().release()

        self.play(check)

    # Clock, randomness, identity.

    def test_clocks_advance_and_sleep_lasts(self) -> None:
        async def check(stage: Stage) -> None:
            clock = stage.server.clock
            now, boot = clock.now(), clock.boot_time()
            await clock.sleep(0.02)
            assert clock.now() - now >= 0.01
            assert clock.boot_time() - boot >= 0.01
            assert clock.wall() > 1e9

        self.play(check)

    def test_entropy_has_its_size_and_differs(self) -> None:
        async def check(stage: Stage) -> None:
            assert len(stage.server.entropy(32)) == 32
            assert stage.server.entropy(16) != stage.server.entropy(16)
            assert stage.server.boot != stage.client.boot

        self.play(check)

    # Tasks.

    def test_tasks_end_are_counted_and_listed(self) -> None:
        async def check(stage: Stage) -> None:
            failures: list[TaskFailure] = []
            tasks = TaskRunner(stage.server.clock, stage.server.random, on_failure=failures.append)
            waiting = tasks.start("waiting", asyncio.Event().wait(), group="g")
            done = tasks.start("done", stage.server.clock.sleep(0.01))
            ticks: list[float] = []
            turning = tasks.every("turning", 0.01, lambda: ticks.append(0.0))
            assert [task.name for task in tasks.running] == ["waiting", "done", "turning"]
            assert await tasks.stopped(done) is TaskState.COMPLETED
            while len(ticks) < 3:
                await stage.server.clock.sleep(0.01)
            tasks.cancel(waiting)
            assert await tasks.stopped(waiting) is TaskState.CANCELLED
            assert await tasks.shutdown(5.0) == ()
            assert turning.state is TaskState.CANCELLED
            assert (tasks.counts.completed, tasks.counts.cancelled) == (1, 2)
            assert tasks.running == ()
            assert failures == []

        self.play(check)
