"""Light requests take the control link with others of their turn; a bulk link that idles is
asked for signs of life less often, and is watched as ever once it is used again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.cluster.wire.catalogue import LIGHT_MAX_BYTES, SizeClass
from squall.cluster.wire.errors import OutcomeUnknown
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Incoming
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.link import Link
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.negotiation import LinkKind
from tests.fakes.wire import EVERYBODY, TEST_CATALOGUE, Beat, FakeNetwork, Parcel, board, run, turns

ADDRESS = ("server", 700)


@TEST_CATALOGUE.message(
    190, MessageClass.TELEMETRY, size=SizeClass.BULK, senders=EVERYBODY, light=True
)
class Report(msgspec.Struct, frozen=True):
    data: bytes


class World:
    """A peer and its server, which notes over which link each request came."""

    def __init__(self) -> None:
        self.network = FakeNetwork()
        self.came: list[tuple[str, LinkKind]] = []
        self.answers_after_s = 0.0
        handlers = [(Report, self.note), (Beat, self.note), (Parcel, self.slowly)]
        self.endpoint = Endpoint(board(self.network, "server", handlers=handlers))
        self.peer = Peer(board(self.network, "client"), ADDRESS)

    def note(self, message: msgspec.Struct, incoming: Incoming) -> Beat:
        self.came.append((type(message).__name__, incoming.channel.session.link))
        return Beat(1)

    async def slowly(self, message: Parcel, incoming: Incoming) -> Beat:
        await asyncio.sleep(self.answers_after_s)
        return Beat(1)

    async def __aenter__(self) -> World:
        await self.endpoint.listen(ADDRESS)
        self.peer.start()
        await self.peer.connected(5.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.network.thaw()
        await self.peer.close()
        await self.endpoint.close()

    async def bulk(self) -> Link:
        while self.peer.bulk.link is None:
            await asyncio.sleep(0.01)
        return self.peer.bulk.link


@pytest.mark.parametrize(
    ("size", "kind"),
    [(100, LinkKind.CONTROL), (LIGHT_MAX_BYTES + 1, LinkKind.BULK)],
)
def test_the_size_of_a_light_request_chooses_its_link(size: int, kind: LinkKind) -> None:
    async def main() -> None:
        async with World() as world:
            await world.peer.request(Report(bytes(size)), 5.0)
            assert world.came == [("Report", kind)]

    run(main())


def test_without_a_control_link_a_light_request_takes_the_other() -> None:
    async def main() -> None:
        world = World()
        await world.endpoint.listen(ADDRESS)
        world.peer.start()
        await world.peer.request(Report(b"early"), 5.0)
        assert world.came == [("Report", LinkKind.BULK)]
        await world.peer.close()
        await world.endpoint.close()

    run(main())


def test_a_light_request_leaves_with_others_of_its_turn_in_one_send() -> None:
    async def main() -> None:
        async with World() as world:
            await world.peer.request(Report(b"the bulk link is made"), 5.0)
            await world.bulk()
            await turns()
            sends: list[int] = []

            def seen(data: bytes) -> bytes:
                sends.append(len(data))
                return data

            world.network.tamper = seen
            await asyncio.gather(
                world.peer.request(Report(b"x"), 5.0), world.peer.request(Beat(1), 5.0)
            )
            # One with both requests, one with both answers.
            assert len(sends) == 2
            assert world.came[1:] == [("Report", LinkKind.CONTROL), ("Beat", LinkKind.CONTROL)]

    run(main())


def test_a_bulk_link_that_idles_is_pinged_less_often_and_lives() -> None:
    async def main() -> None:
        async with World() as world:
            await world.peer.request(Parcel(b"x"), 5.0)
            control, bulk = world.peer.control.link, await world.bulk()
            assert control is not None
            assert control.session is not None
            assert bulk.session is not None
            before = control.session.seal.sent, bulk.session.seal.sent
            await asyncio.sleep(60.0)
            assert world.peer.bulk.link is bulk
            often = control.session.seal.sent - before[0]
            seldom = bulk.session.seal.sent - before[1]
            assert 0 < seldom <= often / 8

    run(main())


def test_silence_on_an_idle_bulk_link_counts_from_its_next_use() -> None:
    async def main() -> None:
        async with World() as world:
            await world.peer.request(Parcel(b"x"), 5.0)
            bulk = await world.bulk()
            world.answers_after_s = 3.0
            for idle_s in (7.3, 11.9, 31.7):
                await asyncio.sleep(idle_s)
                await world.peer.request(Parcel(b"x"), 20.0)
            assert world.peer.bulk.link is bulk

    run(main())


def test_a_silent_peer_on_a_bulk_link_is_noticed() -> None:
    async def main() -> None:
        async with World() as world:
            await world.peer.request(Parcel(b"x"), 5.0)
            await world.bulk()
            await asyncio.sleep(30.0)
            world.network.frozen = True
            began = asyncio.get_running_loop().time()
            with pytest.raises(OutcomeUnknown, match="link lost"):
                await world.peer.bulk.request(Parcel(b"x"), 100.0)
            assert asyncio.get_running_loop().time() - began < 12.0

    run(main())


def test_a_peer_that_falls_silent_during_a_long_poll_on_a_bulk_link_is_noticed() -> None:
    async def main() -> None:
        async with World() as world:
            await world.peer.request(Parcel(b"x"), 5.0)
            world.answers_after_s = 60.0
            asking = asyncio.ensure_future(world.peer.bulk.request(Parcel(b"x"), 100.0))
            # Signs of life come after the request: without it the link would idle by now.
            await asyncio.sleep(10.0)
            world.network.frozen = True
            began = asyncio.get_running_loop().time()
            with pytest.raises(OutcomeUnknown, match="link lost"):
                await asking
            assert asyncio.get_running_loop().time() - began < 8.0

    run(main())
