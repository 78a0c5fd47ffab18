"""Established links and everything that no honest peer sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.api.errors import ConfigError
from squall.cluster.wire.errors import HandshakeFailed, OutcomeUnknown
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.handshake import BUSY_FRAME
from squall.cluster.wire.links.link import Link
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import LinkTLS, Switchboard
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Connection
from tests.fakes.wire import (
    SECRET,
    Beat,
    Echo,
    FakeConnection,
    FakeNetwork,
    Parcel,
    board,
    run,
    turns,
)


class World:
    """A server that echoes, a client that is connected to it, and the stream between."""

    def __init__(self, **client: Any) -> None:
        self.network = FakeNetwork()
        self.server = board(self.network, "server", handlers=[(Echo, lambda echo, _: echo)])
        self.endpoint = Endpoint(self.server)
        self._client = client
        self.client: Switchboard
        self.peer: Peer

    async def __aenter__(self) -> World:
        await self.endpoint.listen(("server", 0))
        self.client = board(self.network, "client", **self._client)
        self.peer = Peer(self.client, self.endpoint.address)
        self.peer.start()
        await self.peer.connected(5.0)
        await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peer.close()
        await self.endpoint.close()
        await turns()
        assert self.endpoint.links == self.endpoint.unproven == 0
        assert self.server.budget.held == self.client.budget.held == 0
        assert not self.network.live

    @property
    def near(self) -> FakeConnection:
        """The client's end of the control link."""
        return next(c for c in self.network.live if c.local[0] == "dialler")

    def inject(self, data: bytes) -> None:
        """Bytes into the established stream, as if the client had sent them."""
        self.near.other.handler.on_data(data)


@pytest.mark.parametrize("piece_bytes", [1, 3, 64, 1 << 30])
def test_requests_are_answered_whatever_the_fragmentation(piece_bytes: int) -> None:
    async def main() -> None:
        world = World()
        world.network.piece_bytes = piece_bytes
        async with world:
            asked = [world.peer.request(Echo(f"n{n}"), 5.0) for n in range(20)]
            answers = await asyncio.gather(*asked)
            assert [answer.text for answer in answers] == [f"n{n}" for n in range(20)]

    run(main())


def test_a_large_first_message_right_behind_the_handshake_is_taken() -> None:
    async def main() -> None:
        world = World()
        await world.endpoint.listen(("server", 0))
        world.client = board(world.network, "client")
        world.peer = Peer(world.client, world.endpoint.address)
        world.peer.start()
        answer = await world.peer.request(Echo("x" * 200_000), 5.0)
        assert len(answer.text) == 200_000
        await world.__aexit__()

    run(main())


def test_the_frames_of_one_turn_leave_in_one_send() -> None:
    async def main() -> None:
        async with World() as world:
            sends: list[bytes] = []
            world.network.tamper = lambda data: sends.append(data) or data  # type: ignore[func-returns-value]
            await asyncio.gather(*(world.peer.request(Echo("x"), 5.0) for _ in range(50)))
            assert len(sends) == 2

    run(main())


def test_a_flipped_bit_closes_the_link_and_is_counted() -> None:
    async def main() -> None:
        async with World() as world:
            request = asyncio.ensure_future(world.peer.request(Echo("x"), 1.0))
            world.network.tamper = lambda data: data[:-1] + bytes([data[-1] ^ 1])
            with pytest.raises(OutcomeUnknown, match=r"link (closed|lost)"):
                await request
            assert world.server.counters.bad_seal == 1
            world.network.tamper = lambda data: data

    run(main())


def test_a_replayed_frame_closes_the_link_and_is_not_handled_twice() -> None:
    async def main() -> None:
        handled: list[str] = []
        world = World()
        world.server.handlers.on(Beat, lambda beat, _: handled.append(beat.number))
        async with world:
            before = len(world.near.sent)
            world.peer.send(Beat(7))
            await turns()
            frame = bytes(world.near.sent[before:])
            world.inject(frame)
            await turns()
            assert handled == [7]
            assert world.server.counters.replay == 1

    run(main())


def test_a_missing_frame_closes_the_link() -> None:
    async def main() -> None:
        async with World() as world:
            world.network.tamper = lambda data: b""
            world.peer.send(Beat(1))
            await turns()
            world.network.tamper = lambda data: data
            world.peer.send(Beat(2))
            await turns()
            assert world.server.counters.bad_frame == 1

    run(main())


def test_an_oversized_frame_closes_the_link_without_an_answer() -> None:
    async def main() -> None:
        async with World() as world:
            sent = len(world.near.other.sent)
            far = world.near.other
            world.inject((300 * 1024).to_bytes(4, "big") + b"x" * 100)
            await turns()
            assert world.server.counters.oversized == 1
            assert len(far.sent) == sent
            assert far not in world.network.live

    run(main())


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x00", b"\x00\x00\x00\x05hello"])
def test_a_frame_too_short_for_a_header_closes_the_link(data: bytes) -> None:
    async def main() -> None:
        async with World() as world:
            world.inject(data)
            await turns()
            assert world.server.counters.bad_frame == 1

    run(main())


def test_half_a_frame_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        async with World() as world:
            far = world.near.other
            world.inject((200_000).to_bytes(4, "big") + b"x" * 10)
            assert world.server.budget.held == 14
            await asyncio.sleep(WireLimits().partial_frame_s + 2.0)
            assert world.server.counters.bad_frame == 1
            assert far not in world.network.live

    run(main())


def test_a_silent_peer_is_given_up_after_the_bound() -> None:
    async def main() -> None:
        async with World() as world:
            request = asyncio.ensure_future(world.peer.request(Echo("x"), 60.0))
            await turns()
            world.network.frozen = True
            request = asyncio.ensure_future(world.peer.request(Echo("y"), 60.0))
            await asyncio.sleep(WireLimits().dead_after_s + 1.5)
            assert world.server.counters.keepalive_lost == 1
            assert world.client.counters.keepalive_lost == 1
            with pytest.raises(OutcomeUnknown, match="nothing heard for 5 s"):
                await request
            world.network.frozen = False

    run(main())


def test_an_idle_link_stays_up_and_knows_its_round_trip() -> None:
    async def main() -> None:
        async with World() as world:
            await asyncio.sleep(60.0)
            assert world.network.dials == 1
            link = world.peer.control.link
            assert link is not None and link.round_trip_s is not None

    run(main())


def test_a_loop_that_stood_still_does_not_blame_its_peers() -> None:
    async def main() -> None:
        async with World() as world:
            loop: Any = asyncio.get_running_loop()
            loop._virtual_s += 100.0
            await asyncio.sleep(3.0)
            assert world.client.counters.keepalive_lost == 0
            assert world.server.counters.keepalive_lost == 0
            assert world.network.dials == 1

    run(main())


def test_a_peer_that_takes_no_bytes_is_given_up_after_the_bound() -> None:
    async def main() -> None:
        world = World()
        world.server.limits = WireLimits(dead_after_s=60.0)
        async with world:
            near = world.near
            near.other.pause_reading()
            for n in range(40):
                world.peer.send(Echo("x" * 50_000, n))
            await asyncio.sleep(WireLimits().stall_s + 1.0)
            assert world.client.counters.stalled == 1
            assert near not in world.network.live

    run(main())


def test_a_handler_for_arrivals_hears_of_the_peer_before_the_message_is_handled() -> None:
    async def main() -> None:
        order: list[str] = []
        world = World()
        world.server.on_heard = lambda peer: order.append(f"heard {peer.node}")
        world.server.handlers.on(Beat, lambda beat, _: order.append(f"beat {beat.number}"))
        async with world:
            order.clear()
            world.peer.send(Beat(1))
            world.peer.send(Beat(2))
            await turns()
            assert order == ["heard client", "beat 1", "beat 2"]

    run(main())


def test_a_forged_frame_is_no_sign_of_life() -> None:
    async def main() -> None:
        heard: list[str] = []
        async with World() as world:
            world.server.on_heard = lambda peer: heard.append(peer.node)
            before = len(world.near.sent)
            world.network.tamper = lambda data: b""
            world.peer.send(Beat(1))
            await turns()
            world.network.tamper = lambda data: data
            frame = bytearray(world.near.sent[before:])
            frame[-1] ^= 1
            world.inject(bytes(frame))
            assert heard == []
            assert world.server.counters.bad_seal == 1

    run(main())


# Handshakes that fail.


async def knock(world: World, data: bytes) -> tuple[list[bytes], list[float]]:
    """What an unauthenticated peer gets that sends `data`: the answers, and the time until the
    close."""
    answers: list[bytes] = []
    ended: list[float] = []
    loop = asyncio.get_running_loop()
    began = loop.time()

    class Stranger:
        def on_open(self, connection: Connection) -> None:
            connection.send(data)

        def on_data(self, data: bytes) -> None:
            answers.append(data)

        def on_closed(self, error: Exception | None) -> None:
            ended.append(loop.time() - began)

    await world.network.dial(world.endpoint.address, Stranger(), timeout_s=1.0)
    await asyncio.sleep(30.0)
    return answers, ended


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x40" + b"\x01" * 64,
        b"\xff" * 10_000,
        b"\x00\x00\x00\x00",
    ],
)
def test_a_stranger_gets_no_answer_and_is_closed_after_a_second(data: bytes) -> None:
    async def main() -> None:
        async with World() as world:
            answers, ended = await knock(world, data)
            assert answers == []
            assert ended == [pytest.approx(1.0)]
            assert world.server.counters.handshake_failed == 1
            assert world.endpoint.unproven == 0

    run(main())


def test_a_stranger_that_says_nothing_is_closed_after_the_handshake_timeout() -> None:
    async def main() -> None:
        async with World() as world:
            answers, ended = await knock(world, b"\x00\x00")
            assert answers == []
            limits = WireLimits()
            assert ended == [pytest.approx(limits.handshake_timeout_s + limits.failed_close_s)]

    run(main())


def test_a_dialler_with_the_wrong_secret_is_told_what_it_may_be() -> None:
    async def main() -> None:
        async with World() as world:
            wrong = board(world.network, "stranger", secrets=Secrets.of_node(SECRET + "!"))
            peer = Peer(wrong, world.endpoint.address)
            peer.start()
            with pytest.raises(HandshakeFailed, match="wrong secret or not a Squall node"):
                await peer.connected(3.0)
            await peer.close()

    run(main())


def test_connections_that_never_prove_themselves_are_bounded_in_number() -> None:
    async def main() -> None:
        async with World() as world:
            world.server.limits = WireLimits(handshakes_max=3)
            results = [asyncio.ensure_future(knock(world, b"\x00")) for _ in range(5)]
            await asyncio.sleep(0.5)
            assert world.endpoint.unproven == 3
            await asyncio.gather(*results)
            assert world.endpoint.unproven == 0

    run(main())


@pytest.mark.parametrize(
    "limits", [WireLimits(handshakes_max=300), WireLimits(handshakes_per_address=300)]
)
def test_5000_idle_connections_do_not_keep_an_honest_peer_out(limits: WireLimits) -> None:
    """They come from the peer's own address, faster than they are closed."""

    async def main() -> None:
        async with World() as world:
            world.server.limits = limits
            flood = [asyncio.ensure_future(knock(world, b"\x00")) for _ in range(5_000)]
            await asyncio.sleep(0.3)
            assert world.endpoint.unproven == 300
            second = Peer(board(world.network, "second"), world.endpoint.address)
            second.start()
            await second.connected(0.1)
            assert (await second.request(Echo("x"), 1.0)).text == "x"
            await second.close()
            answers = await asyncio.gather(*flood)
            assert world.server.counters.handshake_evicted == 4_700 + 1
            assert {b"".join(each[0]) for each in answers} == {b"", BUSY_FRAME}

    run(main())


def test_a_peer_that_has_shown_the_secret_never_gives_its_place_away() -> None:
    """It waits for the listener's answer on a slow path while idle connections come in."""

    async def main() -> None:
        async with World() as world:
            world.server.limits = WireLimits(handshakes_max=2)
            slow = Peer(board(world.network, "slow"), world.endpoint.address)
            slow.start()
            await turns(3)
            world.network.frozen = True
            await asyncio.sleep(1.0)
            assert world.endpoint.unproven == 1
            flood = [asyncio.ensure_future(knock(world, b"\x00")) for _ in range(20)]
            await asyncio.sleep(1.0)
            world.network.thaw()
            await slow.connected(0.1)
            assert (await slow.request(Echo("x"), 1.0)).text == "x"
            # The server's world, this peer and the flood: it did not have to dial twice.
            assert world.network.dials == 1 + 1 + 20
            await slow.close()
            await asyncio.gather(*flood)

    run(main())


def test_a_busy_listener_is_not_called_a_wrong_secret() -> None:
    async def main() -> None:
        async with World() as world:
            world.server.limits = WireLimits(handshakes_max=0)
            late = Peer(board(world.network, "late"), world.endpoint.address)
            late.start()
            with pytest.raises(HandshakeFailed, match="too many connections wait") as refused:
                await late.connected(0.3)
            assert "secret" not in str(refused.value)
            world.server.limits = WireLimits()
            await late.connected(10.0)
            await late.close()

    run(main())


class FakeTLS:
    def reporting(self, refused: object) -> FakeTLS:
        return self


def test_a_certificate_without_the_claimed_role_is_not_let_in() -> None:
    async def main() -> None:
        world = World()
        world.server.tls = LinkTLS(FakeTLS(), FakeTLS())
        await world.endpoint.listen(("server", 0))
        world.client = board(world.network, "client")
        world.peer = Peer(world.client, world.endpoint.address)
        world.peer.start()
        with pytest.raises(HandshakeFailed, match="certificate claims no role"):
            await world.peer.connected(3.0)
        assert world.endpoint.links == 0
        assert world.server.counters.handshake_refused > 0
        await world.__aexit__()

    run(main())


def test_a_link_replaced_by_its_peers_newer_one_is_closed() -> None:
    async def main() -> None:
        async with World() as world:
            second = Peer(world.client, world.endpoint.address)
            second.start()
            await second.connected(5.0)
            await turns()
            assert world.endpoint.links == 1
            assert (await second.request(Echo("x"), 5.0)).text == "x"
            await world.peer.close()
            await second.close()

    run(main())


def test_a_bug_in_the_owners_code_costs_one_link_and_is_told() -> None:
    async def main() -> None:
        errors: list[Exception] = []
        world = World()
        world.server.on_error = errors.append

        def broken(peer: object) -> None:
            raise RuntimeError("a bug")

        async with world:
            world.server.on_heard = broken
            with pytest.raises(OutcomeUnknown):
                await world.peer.request(Echo("x"), 5.0)
            assert [str(error) for error in errors] == ["a bug"]
            world.server.on_heard = lambda peer: None
            await world.peer.connected(10.0)
            assert (await world.peer.request(Echo("again"), 5.0)).text == "again"

    run(main())


def test_keepalive_that_one_lost_ping_would_break_is_refused() -> None:
    with pytest.raises(ConfigError, match="dead_after_s = 1 must be at least twice"):
        WireLimits(ping_interval_s=1.0, dead_after_s=1.0)


def test_a_bulk_message_goes_over_its_own_link() -> None:
    async def main() -> None:
        world = World()
        world.server.handlers.on(Parcel, lambda parcel, _: parcel)
        async with world:
            assert world.network.dials == 1
            answer = await world.peer.request(Parcel(b"x" * 3_000_000), 5.0)
            assert len(answer.data) == 3_000_000
            assert world.network.dials == 2
            assert world.endpoint.links == 2

    run(main())


def test_a_closed_link_refuses_quietly() -> None:
    async def main() -> None:
        async with World() as world:
            link = world.peer.control.link
            assert isinstance(link, Link)
            link.close()
            link.close()
            link.post(0, 0, 1, 0, 0, b"late")
            await turns()
            assert world.client.counters.frames_sent == 0

    run(main())
