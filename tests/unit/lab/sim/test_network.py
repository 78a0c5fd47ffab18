"""Streams and datagrams between simulated nodes, with the manners of TCP and UDP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lab.sim.network.links import LinkProfile
from lab.sim.network.streams import WINDOW_BYTES
from lab.sim.world import World
from squall.runtime.interfaces import Connection, Runtime
from tests.unit.lab.sim.worlds import Datagrams, Stream, act, connected, in_world, two_idle_nodes

QUIET = LinkProfile()


def between_two(
    scenario: Callable[[World, Stream, Stream], Awaitable[None]], seed: int = 1
) -> None:
    """Runs with a stream from node a to node b."""

    async def run(world: World) -> None:
        await scenario(world, *await connected(world))

    in_world(run, world=two_idle_nodes(seed))


def held(stream: Stream) -> Connection:
    assert stream.connection is not None
    return stream.connection


def test_bytes_arrive_in_order_and_in_any_pieces() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        world.shape(replace(QUIET, fragment=0.9, coalesce=0.5, jitter_s=0.01, loss=0.2))
        sent = b""
        for number in range(200):
            piece = bytes([number]) * (number + 1)
            sent += piece
            held(dialled).send(piece)
            await asyncio.sleep(0.001)
        await asyncio.sleep(30.0)
        assert accepted.data == sent
        assert len(accepted.pieces) != 200

    for seed in range(5):
        between_two(scenario, seed)


def test_a_dial_to_a_closed_port_is_refused_and_to_a_dead_host_times_out() -> None:
    async def scenario(world: World) -> None:
        async def dial(runtime: Runtime) -> None:
            await runtime.network.dial(("b", 81), Stream(), timeout_s=2.0)

        with pytest.raises(ConnectionRefusedError, match="b:81"):
            await act(world, "a", dial)
        world.crash("b")
        started = world.now
        with pytest.raises(TimeoutError, match="b:81"):
            await act(world, "a", dial)
        assert world.now - started == pytest.approx(2.0)

    in_world(scenario, world=two_idle_nodes())


def test_a_dial_through_a_cut_link_succeeds_when_it_is_mended_in_time() -> None:
    async def scenario(world: World) -> None:
        accepted, dialled = Stream(), Stream()
        world.cut("b", "a")

        async def listen(runtime: Runtime) -> None:
            await runtime.network.listen(("", 80), lambda: accepted)

        async def dial(runtime: Runtime) -> None:
            await runtime.network.dial(("b", 80), dialled, timeout_s=20.0)

        await act(world, "b", listen)
        world.loop.call_later(3.0, world.mend, "b", "a")
        await act(world, "a", dial)
        assert world.now > 3.0
        assert dialled.connection is not None

    in_world(scenario, world=two_idle_nodes())


def test_close_delivers_what_was_sent_and_ends_both_sides_once() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        held(dialled).send(b"last words")
        held(dialled).close()
        held(dialled).send(b"too late")
        assert dialled.closed == [], "no callback from inside of a call"
        await asyncio.sleep(1.0)
        assert accepted.data == b"last words"
        assert dialled.closed == [None]
        assert accepted.closed == [None]

    between_two(scenario)


def test_abort_resets_the_peer() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        held(accepted).abort()
        await asyncio.sleep(1.0)
        assert accepted.closed == [None]
        assert [type(error) for error in dialled.closed] == [ConnectionResetError]

    between_two(scenario)


def test_unsent_bytes_pile_up_when_the_peer_does_not_read() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        held(accepted).pause_reading()
        size = 4 * WINDOW_BYTES
        held(dialled).send(bytes(size))
        await asyncio.sleep(5.0)
        assert held(dialled).unsent == size - WINDOW_BYTES
        assert accepted.pieces == []
        held(accepted).resume_reading()
        await asyncio.sleep(5.0)
        assert held(dialled).unsent == 0
        assert len(accepted.data) == size

    between_two(scenario)


def test_a_cut_stalls_a_stream_which_goes_on_when_it_is_mended() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        mend = world.partition(["a"], ["b"])
        held(dialled).send(b"patience")
        await asyncio.sleep(5.0)
        assert accepted.data == b""
        mend()
        await asyncio.sleep(2.0)
        assert accepted.data == b"patience"
        assert not dialled.closed

    between_two(scenario)


def test_a_long_cut_breaks_the_sender_and_leaves_the_receiver_half_open() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        mend = world.partition(["a"], ["b"])
        held(dialled).send(b"lost")
        await asyncio.sleep(60.0)
        assert [type(error) for error in dialled.closed] == [TimeoutError]
        assert accepted.closed == []
        mend()
        await asyncio.sleep(60.0)
        assert accepted.closed == [], "an idle end does not notice"
        held(accepted).send(b"hello?")
        await asyncio.sleep(1.0)
        assert [type(error) for error in accepted.closed] == [ConnectionResetError]

    between_two(scenario)


def test_bytes_pass_a_one_way_cut_but_their_sender_gets_no_acknowledgment() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        world.cut("b", "a")
        held(dialled).send(b"one way")
        await asyncio.sleep(1.0)
        assert accepted.data == b"one way"
        await asyncio.sleep(60.0)
        assert [type(error) for error in dialled.closed] == [TimeoutError]

    between_two(scenario)


def test_a_killed_process_is_told_to_its_peer_by_its_kernel() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        world.kill("b")
        await asyncio.sleep(1.0)
        assert len(dialled.closed) == 1
        assert accepted.closed == [], "its own code runs no more"

    for seed in range(5):
        between_two(scenario, seed)


def test_a_host_without_power_is_noticed_only_by_sending() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        world.crash("b")
        await asyncio.sleep(600.0)
        assert dialled.closed == []
        held(dialled).send(b"anybody?")
        await asyncio.sleep(60.0)
        assert [type(error) for error in dialled.closed] == [TimeoutError]

    between_two(scenario)


def test_a_restarted_host_resets_the_streams_of_its_former_life() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        world.crash("b")
        held(dialled).send(b"anybody?")
        await asyncio.sleep(2.0)
        assert dialled.closed == []
        world.start("b")
        await asyncio.sleep(5.0)
        assert [type(error) for error in dialled.closed] == [ConnectionResetError]

    between_two(scenario)


def test_a_paused_process_gets_its_bytes_late() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        world.pause("b")
        held(dialled).send(b"1")
        await asyncio.sleep(5.0)
        held(dialled).send(b"2")
        await asyncio.sleep(5.0)
        assert accepted.data == b""
        world.resume("b")
        await asyncio.sleep(0.1)
        assert accepted.data == b"12"

    between_two(scenario)


def test_a_reset_fault_breaks_both_ends() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        assert world.network.reset_streams("a", "b") == 1
        await asyncio.sleep(0.1)
        for stream in (dialled, accepted):
            assert [type(error) for error in stream.closed] == [ConnectionResetError]

    between_two(scenario)


def sent_datagrams(profile: LinkProfile, count: int, *, cut: bool = False) -> list[bytes]:
    got = Datagrams()

    async def scenario(world: World) -> None:
        world.shape(profile)
        if cut:
            world.cut("a", "b")

        async def receive(runtime: Runtime) -> None:
            await runtime.network.bind_datagrams(("", 53), got)

        async def send(runtime: Runtime) -> None:
            socket = await runtime.network.bind_datagrams(("", 0), Datagrams())
            for number in range(count):
                socket.send(b"%d" % number, ("b", 53))
                await runtime.clock.sleep(0.001)
            socket.send(b"x", ("nobody", 1))

        await act(world, "b", receive)
        await act(world, "a", send)
        await asyncio.sleep(10.0)

    in_world(scenario, world=two_idle_nodes())
    return got.received


def test_datagrams_are_lost_repeated_and_reordered_as_the_link_has_it() -> None:
    numbers = [b"%d" % number for number in range(500)]
    assert sent_datagrams(replace(QUIET, jitter_s=0.0), 500) == numbers
    assert 300 < len(sent_datagrams(replace(QUIET, loss=0.2), 500)) < 500
    assert 600 < len(sent_datagrams(replace(QUIET, duplicate=0.5), 500)) < 900
    reordered = sent_datagrams(replace(QUIET, reorder=0.3), 500)
    assert reordered != numbers
    assert sorted(reordered) == sorted(numbers)
    assert sent_datagrams(QUIET, 10, cut=True) == []


def test_a_clogged_link_holds_a_few_datagrams_and_lets_them_go() -> None:
    async def scenario(world: World) -> None:
        got = Datagrams()

        async def receive(runtime: Runtime) -> None:
            await runtime.network.bind_datagrams(("", 53), got)

        async def send(runtime: Runtime) -> None:
            socket = await runtime.network.bind_datagrams(("", 0), Datagrams())
            for _ in range(100):
                socket.send(b"x", ("b", 53))

        await act(world, "b", receive)
        world.links.clog("a", "b")
        await act(world, "a", send)
        await asyncio.sleep(1.0)
        assert got.received == []
        world.links.unclog("a", "b")
        await asyncio.sleep(1.0)
        assert 0 < len(got.received) < 100
        assert got.senders[0][0] == "a"

    in_world(scenario, world=two_idle_nodes())


def test_bandwidth_makes_many_bytes_take_long() -> None:
    async def scenario(world: World, dialled: Stream, accepted: Stream) -> None:
        world.shape(replace(QUIET, bandwidth_bytes_s=10_000.0))
        held(dialled).send(bytes(100_000))
        await asyncio.sleep(5.0)
        assert len(accepted.data) < 100_000
        await asyncio.sleep(10.0)
        assert len(accepted.data) == 100_000

    between_two(scenario)


def test_an_address_can_be_bound_once_and_only_by_its_own_host() -> None:
    async def scenario(world: World) -> None:
        async def listen(runtime: Runtime) -> None:
            listener = await runtime.network.listen(("", 80), Stream)
            with pytest.raises(OSError, match="in use"):
                await runtime.network.listen(("a", 80), Stream)
            with pytest.raises(OSError, match="not an address"):
                await runtime.network.listen(("b", 80), Stream)
            await listener.close()
            again = await runtime.network.listen(("a", 80), Stream)
            assert again.address == ("a", 80)

        await act(world, "a", listen)

    in_world(scenario, world=two_idle_nodes())


def test_a_dial_that_times_out_as_it_succeeds_calls_nobody() -> None:
    async def scenario(world: World) -> None:
        accepted = Stream()

        async def listen(runtime: Runtime) -> None:
            await runtime.network.listen(("", 80), lambda: accepted)

        async def dial(runtime: Runtime) -> bool:
            dialled = Stream()
            timeout_s = runtime.random.uniform(0.0005, 0.002)
            try:
                await runtime.network.dial(("b", 80), dialled, timeout_s=timeout_s)
            except TimeoutError:
                await runtime.clock.sleep(1.0)
                assert dialled.connection is None
                assert dialled.closed == []
                return False
            return True

        await act(world, "b", listen)
        assert len({await act(world, "a", dial) for _ in range(50)}) == 2

    in_world(scenario, world=two_idle_nodes())
