"""Links over names: of one node (a peer tries its addresses), of several (each has a peer)."""

from __future__ import annotations

import asyncio

import pytest

from squall.cluster.wire.errors import HandshakeFailed, NotSent
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.named_addresses import NamedAddresses
from squall.cluster.wire.links.peer import Peer
from squall.runtime.interfaces import Address
from tests.fakes.wire import Echo, FakeNetwork, Parcel, board, run

NAME = ("srv:_m1._tcp.example", 0)
OLD, NEW, OTHER = ("10.0.0.1", 7400), ("10.0.0.2", 7400), ("m1.example", 7400)


async def listening(
    network: FakeNetwork, *addresses: Address, node: str = "m1", boot: str = ""
) -> Endpoint:
    """One node that several addresses lead to."""
    handlers = [(Echo, lambda echo, _: echo), (Parcel, lambda parcel, _: parcel)]
    endpoint = Endpoint(board(network, node, boot=boot, handlers=handlers))
    for address in addresses:
        await endpoint.listen(address)
    return endpoint


def test_a_peer_tries_the_addresses_of_its_name_in_turn() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.names.publish(NAME, [OLD, NEW], ttl_s=300.0)
        endpoint = await listening(network, NEW)
        peer = Peer(board(network, "m2"), NAME)
        peer.start()
        await peer.connected(5.0)
        assert peer.dialled == NEW
        # The other link goes to the same node.
        assert (await peer.request(Echo("x", 100_000), 5.0)).text == "x"
        await peer.close()
        await endpoint.close()

    run(main())


def test_a_node_that_moved_is_found_when_its_name_says_so() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.names.publish(NAME, [OLD], ttl_s=300.0)
        first = await listening(network, OLD)
        peer = Peer(board(network, "m2"), NAME)
        peer.start()
        await peer.connected(5.0)
        await first.close()
        network.names.publish(NAME, [NEW], ttl_s=300.0)
        second = await listening(network, NEW)
        await asyncio.sleep(0.1)
        await peer.connected(30.0)
        assert peer.dialled == NEW
        await peer.close()
        await second.close()

    run(main())


def test_the_error_of_a_missing_name_is_one_line_without_repetition() -> None:
    async def main() -> None:
        network = FakeNetwork()
        peer = Peer(board(network, "m2"), NAME)
        peer.start()
        why = "srv:_m1._tcp.example: no such name; asked dns:53"
        with pytest.raises(HandshakeFailed) as failed:
            await peer.connected(1.0)
        assert str(failed.value) == why
        with pytest.raises(NotSent) as lost:
            await peer.request(Echo("x"), 60.0)
        assert str(lost.value) == why
        await peer.close()

    run(main())


def test_two_addresses_of_one_node_do_not_take_the_link_from_each_other() -> None:
    """A listener has one link of a kind for each process. The managers of a name have other
    addresses in their group's list: a host name there, an IP address here."""

    async def main() -> None:
        network = FakeNetwork()
        endpoint = await listening(network, NEW, OTHER)
        asking = board(network, "w1")
        by_name, by_address = Peer(asking, OTHER), Peer(asking, NEW)
        by_name.start()
        await by_name.connected(5.0)
        by_address.start()
        await by_address.connected(5.0)
        await asyncio.sleep(1.0)
        # Both links are those of one peer, or none could be asked for something large.
        for _ in range(3):
            await by_address.request(Parcel(b"large"), 60.0)
            with pytest.raises(NotSent):
                await by_name.request(Parcel(b"large"), 60.0)
        before = network.dials
        await asyncio.sleep(600.0)
        assert network.dials == before
        assert by_address.control.session is not None and by_name.control.session is None
        assert "the same process over another address" in str(by_name.last_error)
        # The first one is dialled again when the second one is gone.
        await by_address.close()
        await by_name.connected(30.0)
        await by_name.close()
        await endpoint.close()

    run(main())


def test_two_processes_with_one_name_have_all_their_links() -> None:
    """The managers of two datacenters may have one name: a gate has links to both."""

    async def main() -> None:
        network = FakeNetwork()
        eu = await listening(network, NEW, boot="eu")
        us = await listening(network, OTHER, boot="us")
        asking = board(network, "g1")
        peers = [Peer(asking, NEW), Peer(asking, OTHER)]
        for peer in peers:
            peer.start()
            assert (await peer.connected(5.0)).peer.node == "m1"
        for _ in range(3):
            for peer in peers:
                await peer.request(Parcel(b"large"), 60.0)
        await us.close()
        await asyncio.sleep(10.0)
        assert set(asking.newest) == {"eu"}, "a process that is gone is forgotten"
        for peer in peers:
            await peer.close()
        await eu.close()

    run(main())


def test_a_name_that_has_no_address_hides_no_other() -> None:
    async def main() -> None:
        network = FakeNetwork()
        missing = ("dns:missing.example", 7400)
        network.names.publish(NAME, [OLD, NEW], ttl_s=300.0)
        calls: list[int] = []
        asking = board(network, "w1")
        given = NamedAddresses(asking, [OTHER, NAME, missing], lambda: calls.append(1))
        given.look_up()
        given.look_up()
        await asyncio.sleep(1.0)
        assert given.plain == (OTHER,) and set(given.found) == {OLD, NEW} and calls == [1]
        assert list(given.errors) == ["dns:missing.example:7400"]
        assert network.names.lookups == {NAME: 1, missing: 1}
        network.names.publish(missing, [("10.0.0.9", 7400)], ttl_s=300.0)
        await asyncio.sleep(6.0)
        given.look_up()
        await asyncio.sleep(1.0)
        assert ("10.0.0.9", 7400) in given.found and not given.errors

    run(main())
