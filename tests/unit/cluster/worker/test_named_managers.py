"""A worker whose managers are named by DNS: which one it asks, and when it looks them up again."""

from __future__ import annotations

import asyncio

from squall.cluster.wire.errors import NotSent
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.worker.manager_links import ManagerLinks
from squall.runtime.interfaces import Address
from tests.fakes.wire import FakeNetwork, board, run

NAME = ("dns:managers.example", 7400)
M1, M2, M3, M4 = (("10.0.0.1", 7400), ("10.0.0.2", 7400), ("10.0.0.3", 7400), ("10.0.0.4", 7400))
SILENT = [M2, M3]


async def manager(network: FakeNetwork, address: Address) -> Endpoint:
    endpoint = Endpoint(board(network, f"m-{address[0]}"))
    await endpoint.listen(address)
    return endpoint


async def ended(asking: Switchboard, links: ManagerLinks, *managers: Endpoint) -> None:
    await links.close()
    for each in managers:
        await each.close()
    await asking.tasks.shutdown(1.0)


async def tries(links: ManagerLinks, until: Address) -> None:
    """What a session does while its requests fail."""
    for _ in range(100):
        if links.current.address == until and links.current.control.session is not None:
            return
        await asyncio.sleep(links.failed(NotSent("no link")))
        await asyncio.sleep(0.1)
    raise AssertionError(f"{until} was never asked")


def test_the_first_manager_of_a_name_that_answers_is_asked() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.silent.update(SILENT)
        network.names.publish(NAME, [M1, *SILENT], ttl_s=30.0)
        lives = await manager(network, M1)
        asking = board(network, "w1")
        links = ManagerLinks(asking, [NAME])
        began = asking.runtime.clock.now()
        await links.reach_any()
        assert links.shown == "10.0.0.1:7400"
        assert asking.runtime.clock.now() - began < 0.5
        await ended(asking, links, lives)

    run(main())


def test_plain_addresses_are_dialled_while_the_dns_server_is_down() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.names.is_down = True
        lives = await manager(network, M1)
        asking = board(network, "w1")
        links = ManagerLinks(asking, [NAME, M1])
        began = asking.runtime.clock.now()
        await links.reach_any()
        assert links.shown == "10.0.0.1:7400"
        assert asking.runtime.clock.now() - began < 0.5
        await ended(asking, links, lives)

    run(main())


def test_the_reason_why_a_name_has_no_address_is_among_the_errors() -> None:
    async def main() -> None:
        network = FakeNetwork()
        asking = board(network, "w1")
        links = ManagerLinks(asking, [NAME])
        errors = await links.reach_any()
        why = "dns:managers.example:7400: no such name; asked dns:53"
        assert {name: str(error) for name, error in errors.items()} == {
            "dns:managers.example:7400": why
        }
        # It appears: the name's own peer is given up for those of the managers.
        network.names.publish(NAME, [M1], ttl_s=30.0)
        lives = await manager(network, M1)
        assert links.current.address == NAME
        await tries(links, until=M1)
        assert set(links._peers) == {M1}
        await ended(asking, links, lives)

    run(main())


def test_managers_that_were_all_replaced_are_found_by_their_name() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.names.publish(NAME, [M1], ttl_s=300.0)
        old = await manager(network, M1)
        asking = board(network, "w1")
        links = ManagerLinks(asking, [NAME])
        await links.reach_any()
        # The group names its managers; then all of them are replaced while the worker is cut off.
        await links.learn([M1, M2])
        network.silent.add(M2)
        await old.close()
        new = await manager(network, M4)
        network.names.publish(NAME, [M4], ttl_s=300.0)
        await asyncio.sleep(10.0)
        await tries(links, until=M4)
        # From then on its list is the group's again.
        await links.learn([M4])
        assert set(links._peers) == {M4}
        await ended(asking, links, new)

    run(main())


def test_a_name_is_not_looked_up_while_another_manager_answers() -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.names.publish(NAME, [M1], ttl_s=1.0)
        first, second = await manager(network, M1), await manager(network, M2)
        asking = board(network, "w1")
        links = ManagerLinks(asking, [NAME])
        await links.reach_any()
        await links.learn([M1, M2])
        assert network.names.lookups == {NAME: 1}
        for _ in range(5):
            await asyncio.sleep(5.0)
            await first.close()
            await tries(links, until=M2)
            links.worked()
            first = await manager(network, M1)
        assert network.names.lookups == {NAME: 1}
        await ended(asking, links, first, second)

    run(main())
