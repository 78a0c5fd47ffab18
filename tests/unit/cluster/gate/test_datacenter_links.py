"""A gate finds the managers of a datacenter behind a name; then it follows the list they send."""

from __future__ import annotations

import asyncio

from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.cluster.protocol.gates.federation_messages import DatacenterState
from squall.cluster.wire.links.endpoint import Endpoint
from squall.runtime.interfaces import Address
from tests.fakes.wire import FakeNetwork, board, run

NAME = ("srv:_squall._tcp.eu.example", 0)
M1, M2 = ("10.0.0.1", 7400), ("10.0.0.2", 7400)
LISTED = ("m1.eu.example", 7400)
PROBE_S = 2.0


async def manager(network: FakeNetwork, *addresses: Address, node: str = "m1") -> Endpoint:
    endpoint = Endpoint(board(network, node))
    for address in addresses:
        await endpoint.listen(address)
    return endpoint


async def probes(links: DatacenterLinks, rounds: int = 5) -> list[Address]:
    """What a few rounds of probes do; the managers with a link."""
    for _ in range(rounds):
        links.peers("eu")
        await links.close_former()
        await asyncio.sleep(PROBE_S)
    return [peer.address for peer in links.linked("eu")]


def test_the_managers_behind_a_name_are_linked_and_then_those_of_their_own_list() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.silent.add(M2)
        network.names.publish(NAME, [M1, M2], ttl_s=30.0)
        lives = await manager(network, M1, LISTED)
        gate = board(network, "g1")
        known = KnownDatacenters({"eu": ["srv:_squall._tcp.eu.example"]}, RoutingSettings())
        links = DatacenterLinks(gate, known)
        assert await probes(links) == [M1]
        # The same manager under the address that its group uses: one link, no fight for it.
        state = DatacenterState(datacenter="eu", managers=["m1.eu.example:7400"])
        known["eu"].answered(state, 1.0, 0.0, 0.0)
        assert await probes(links) == [LISTED]
        assert set(links._peers) == {LISTED}
        # All of the list are gone: the name leads to the managers that replaced them.
        await lives.close()
        network.names.publish(NAME, [("10.0.0.9", 7400)], ttl_s=30.0)
        new = await manager(network, ("10.0.0.9", 7400), node="m9")
        assert await probes(links) == [("10.0.0.9", 7400)]
        await links.close()
        await new.close()
        await gate.tasks.shutdown(1.0)

    run(main())


def test_a_name_without_addresses_is_the_trouble_of_its_datacenter() -> None:
    async def main() -> None:
        network = FakeNetwork()
        gate = board(network, "g1")
        known = KnownDatacenters({"eu": ["srv:_squall._tcp.eu.example"]}, RoutingSettings())
        links = DatacenterLinks(gate, known)
        assert await probes(links) == []
        why = "srv:_squall._tcp.eu.example: no such name; asked dns:53"
        assert links.trouble("eu") == why
        await links.close()
        await gate.tasks.shutdown(1.0)

    run(main())
