"""The dialling side: reconnects, queues while there is no link, and gives back what failed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from squall.cluster.wire.catalogue import MessageType
from squall.cluster.wire.errors import HandshakeFailed, NotSent, OutcomeUnknown
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.negotiation import LinkKind
from tests.fakes.wire import Beat, Echo, FakeNetwork, Sample, board, run, turns

ADDRESS = ("server", 700)


async def listening(network: FakeNetwork, boot: str = "") -> Endpoint:
    endpoint = Endpoint(
        board(network, "server", boot=boot, handlers=[(Echo, lambda echo, _: echo)])
    )
    await endpoint.listen(ADDRESS)
    return endpoint


def started(network: FakeNetwork, **settings: Any) -> Peer:
    peer = Peer(board(network, "client", **settings), ADDRESS)
    peer.start()
    return peer


def test_a_request_waits_for_the_first_link() -> None:
    async def main() -> None:
        network = FakeNetwork()
        endpoint = await listening(network)
        peer = started(network)
        assert (await peer.request(Echo("early"), 5.0)).text == "early"
        await peer.close()
        await endpoint.close()

    run(main())


def test_what_waits_when_a_dial_fails_was_not_sent() -> None:
    async def main() -> None:
        network = FakeNetwork()
        peer = started(network)
        with pytest.raises(NotSent, match=r"no link to server:700: .*refuses"):
            await peer.request(Echo("x"), 60.0)
        await peer.close()

    run(main())


def test_a_request_that_waits_past_its_deadline_was_not_sent() -> None:
    async def main() -> None:
        network = FakeNetwork()
        endpoint = await listening(network)
        network.frozen = True
        peer = started(network)
        with pytest.raises(NotSent, match="before it could be sent"):
            await peer.request(Echo("x"), 1.0)
        assert peer.control.waiting == 0
        network.thaw()
        await peer.close()
        await endpoint.close()

    run(main())


def test_a_peer_that_comes_back_is_reached_again() -> None:
    async def main() -> None:
        network = FakeNetwork()
        endpoint = await listening(network, "first")
        lost: list[LinkKind] = []
        peer = Peer(
            board(network, "client"), ADDRESS, on_disconnected=lambda kind, _: lost.append(kind)
        )
        peer.start()
        assert (await peer.connected(5.0)).peer.boot == "first"
        await endpoint.close()
        await asyncio.sleep(20.0)
        assert lost == [LinkKind.CONTROL]
        second = await listening(network, "second")
        assert (await peer.connected(20.0)).peer.boot == "second"
        assert (await peer.request(Echo("again"), 5.0)).text == "again"
        await peer.close()
        await second.close()

    run(main())


def test_attempts_are_spaced_by_a_growing_random_time_with_a_cap() -> None:
    async def main() -> None:
        network = FakeNetwork()
        limits = WireLimits(backoff_base_s=0.1, backoff_cap_s=5.0)
        peer = started(network, limits=limits)
        times: list[float] = []
        seen = 0
        loop = asyncio.get_running_loop()
        while loop.time() < 1_300.0:
            await asyncio.sleep(0.01)
            if network.dials > seen:
                seen = network.dials
                times.append(loop.time())
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert max(gaps) <= 5.0 + 0.02
        settled = gaps[10:]
        assert 1.5 < sum(settled) / len(settled) < 3.5
        assert len({round(gap, 2) for gap in settled}) > len(settled) // 2
        await peer.close()

    run(main())


def test_telemetry_that_waits_gives_way_and_the_rest_is_never_lost_silently() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.frozen = True
        endpoint = await listening(network)
        returned: list[tuple[str, object]] = []

        def undelivered(row: MessageType, message: object, reason: str) -> None:
            returned.append((row.name, message))

        limits = WireLimits(queue_messages=20, queue_overflow_messages=5)
        peer = started(network, limits=limits, on_undelivered=undelivered)
        for number in range(100):
            peer.send(Sample(number))
        waiting = peer.control.waiting
        assert waiting <= 25
        for number in range(25):
            peer.send(Echo("order", number))
        with pytest.raises(NotSent, match="queue to this peer is full") as caught:
            peer.send(Echo("one too many"))
        assert caught.value.retry_after_s == 0.5
        with pytest.raises(NotSent, match="queue to this peer is full"):
            await peer.request(Echo("one too many"), 1.0)
        await peer.close()
        assert returned == [("Echo", Echo("order", number)) for number in range(25)]
        await endpoint.close()

    run(main())


def test_a_full_queue_of_control_closes_the_link_because_it_is_re_derived() -> None:
    async def main() -> None:
        network = FakeNetwork()
        endpoint = await listening(network)
        peer = started(network, limits=WireLimits(control_queue_messages=10))
        await peer.connected(5.0)
        near = next(c for c in network.live if c.local[0] == "dialler")
        near.other.pause_reading()
        for number in range(14):
            peer.send(Echo("x" * 40_000, number))
        await turns()
        for number in range(10):
            peer.send(Beat(number))
        with pytest.raises(NotSent, match="queue of CONTROL"):
            peer.send(Beat(10))
        await turns()
        assert near not in network.live
        await peer.connected(20.0)
        assert (await peer.request(Echo("fresh"), 5.0)).text == "fresh"
        await peer.close()
        await endpoint.close()

    run(main())


def test_messages_that_waited_for_room_arrive_complete_and_in_order() -> None:
    async def main() -> None:
        network = FakeNetwork()
        got: list[int] = []
        server = board(network, "server", handlers=[(Echo, lambda e, _: got.append(e.size))])
        endpoint = Endpoint(server)
        await endpoint.listen(ADDRESS)
        peer = started(network)
        await peer.connected(5.0)
        near = next(c for c in network.live if c.local[0] == "dialler")
        near.other.pause_reading()
        for number in range(100):
            peer.send(Echo("x" * 40_000, number))
            if number % 10 == 0:
                await turns(2)
        assert peer.control.waiting > 50
        near.other.resume_reading()
        await asyncio.sleep(1.0)
        assert got == list(range(100))
        assert peer.control.waiting == 0
        await peer.close()
        await endpoint.close()

    run(main())


@pytest.mark.parametrize("takes_at_once", [False, True])
def test_a_burst_in_one_turn_larger_than_the_room_is_sent_whole(takes_at_once: bool) -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.takes_at_once = takes_at_once
        endpoint = await listening(network)
        peer = started(network)
        await peer.connected(5.0)
        asked = [peer.request(Echo("x" * 200_000, number), 5.0) for number in range(20)]
        answers = await asyncio.gather(*asked)
        assert [answer.size for answer in answers] == list(range(20))
        await peer.close()
        await endpoint.close()

    run(main())


def test_close_lets_what_was_asked_finish_within_its_deadline() -> None:
    async def slow(echo: Echo, incoming: object) -> Echo:
        await asyncio.sleep(echo.size)
        return echo

    async def main() -> None:
        network = FakeNetwork()
        endpoint = Endpoint(board(network, "server", handlers=[(Echo, slow)]))
        await endpoint.listen(ADDRESS)
        peer = started(network)
        await peer.connected(5.0)
        quick = asyncio.ensure_future(peer.request(Echo("quick", 1), 60.0))
        slower = asyncio.ensure_future(peer.request(Echo("slow", 50), 60.0))
        await turns()
        await peer.close(drain_s=3.0)
        assert (await quick).text == "quick"
        with pytest.raises(OutcomeUnknown, match="this peer was closed"):
            await slower
        with pytest.raises(NotSent, match="this peer was closed"):
            await peer.request(Echo("x"), 1.0)
        await endpoint.close()

    run(main())


def test_close_during_a_dial_leaves_nothing() -> None:
    async def main() -> None:
        network = FakeNetwork()
        peer = started(network)
        await asyncio.sleep(0)
        await peer.close()
        assert not network.live

    run(main())


def test_a_cancelled_request_that_waits_is_taken_back() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.frozen = True
        endpoint = await listening(network)
        peer = started(network)
        await turns()
        request = asyncio.ensure_future(peer.request(Echo("x"), 60.0))
        await turns()
        assert peer.control.waiting == 1
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (peer.control.waiting, peer.control.pending) == (0, 0)
        await peer.close()
        await endpoint.close()

    run(main())


def test_an_unreachable_peer_says_where_and_why() -> None:
    async def main() -> None:
        peer = started(FakeNetwork())
        with pytest.raises(HandshakeFailed, match=r"server:700: .*refuses"):
            await peer.connected(2.0)
        assert isinstance(peer.last_error, ConnectionRefusedError)
        await peer.close()

    run(main())
