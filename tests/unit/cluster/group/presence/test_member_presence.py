"""When a manager takes part in membership, under which address, and what its workers are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from squall.cluster.group.member_watch import GroupWatch, ReceivedNote
from squall.cluster.group.presence.member_presence import TOO_MANY, MemberPresence
from squall.cluster.membership.messages import MemberRole
from squall.cluster.protocol.group_messages import MemberNote
from squall.cluster.protocol.membership.order import OFF
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.runtime.interfaces import Address
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from squall.settings.shared_sections import MembershipSettings
from tests.fakes.wire import FakeNetwork, board, run

KEYS = (b"the newer key", b"the former key")
SOME = MembershipSettings(max_nodes=10)


class Manager:
    def __init__(
        self,
        *,
        settings: MembershipSettings = SOME,
        advertised: Address = ("managers.example", 7400),
        listens: str = "0.0.0.0",
        takes_part: bool = True,
    ) -> None:
        self.nodes = 3
        made = board(FakeNetwork(), "m1")
        self.sink = MemorySink()
        log = Log(self.sink, made.runtime.clock)
        self.watch = GroupWatch("m1", {"m1": advertised}, made.runtime.clock, log)
        endpoint = cast("Endpoint", SimpleNamespace(address=(listens, 7400)))
        made.handlers = Handlers(CATALOGUE)
        self.presence = MemberPresence(
            made,
            endpoint,
            self.watch,
            log,
            Registry(),
            role=MemberRole.MANAGER,
            settings=msgspec.structs.replace(Settings(), membership=settings),
            keys=KEYS,
            advertised=lambda: advertised,
            nodes=lambda: self.nodes,
            leads=lambda: True,
            takes_part=takes_part,
        )

    async def tick(self) -> None:
        await cast("Any", self.presence)._tick()

    def hears(self, node: str, host: str, port: int) -> None:
        note = MemberNote(address=f"{node}:7400", datagrams=port)
        self.watch.heard[node] = ReceivedNote(note, f"{node}-boot", 0.0, "", host)

    @property
    def seeds(self) -> tuple[Address, ...]:
        order = self.presence.order(0)
        assert order is not None and order.is_on
        return order.seeds


def test_it_begins_once_a_link_shows_its_address() -> None:
    async def main() -> None:
        manager = Manager()
        await manager.tick()
        assert not manager.presence.driver.is_on and manager.presence.order(0) is None
        manager.watch.own_host = "10.0.0.1"
        await manager.tick()
        assert manager.presence.driver.is_on
        assert manager.seeds == (("10.0.0.1", 7400),)
        await manager.presence.driver.close()

    run(main())


@pytest.mark.parametrize(
    ("advertised", "listens", "host"),
    [
        (("10.0.0.5", 7400), "0.0.0.0", "10.0.0.5"),
        (("managers.example", 7400), "10.0.0.6", "10.0.0.6"),
        (("dns:managers.example", 7400), "::", "10.0.0.7"),
    ],
)
def test_its_address_is_a_number_that_others_reach(
    advertised: Address, listens: str, host: str
) -> None:
    async def main() -> None:
        manager = Manager(advertised=advertised, listens=listens)
        manager.watch.own_host = "10.0.0.7"
        await manager.tick()
        assert manager.presence.driver.identity.address == (host, 7400)
        await manager.presence.driver.close()

    run(main())


def test_workers_learn_the_managers_that_take_part_and_hear_of_changes_only() -> None:
    async def main() -> None:
        manager = Manager(advertised=("10.0.0.1", 7400))
        manager.hears("m2", "10.0.0.2", 7400)
        manager.hears("m3", "10.0.0.3", 0)
        await manager.tick()
        assert manager.seeds == (("10.0.0.1", 7400), ("10.0.0.2", 7400))
        order = manager.presence.order(0)
        assert order is not None and manager.presence.order(order.version) is None
        assert manager.presence.order(-1) is None
        manager.hears("m3", "10.0.0.3", 7400)
        await manager.tick()
        newer = manager.presence.order(order.version)
        assert newer is not None and len(newer.seeds) == 3
        await manager.presence.driver.close()

    run(main())


def test_above_max_nodes_it_is_off_until_there_are_clearly_fewer() -> None:
    async def main() -> None:
        manager = Manager(advertised=("10.0.0.1", 7400))
        await manager.tick()
        assert manager.presence.driver.is_on
        manager.nodes = 11
        await manager.tick()
        await manager.tick()
        assert not manager.presence.driver.is_on and manager.presence.off == TOO_MANY
        assert manager.presence.order(0) == OFF
        assert manager.sink.events().count("membership_off") == 1
        manager.nodes = 10
        await manager.tick()
        assert not manager.presence.driver.is_on
        manager.nodes = 9
        await manager.tick()
        assert manager.presence.driver.is_on and manager.presence.off == ""
        await manager.presence.driver.close()

    run(main())


@pytest.mark.parametrize(
    "off", [{"settings": MembershipSettings(max_nodes=0)}, {"takes_part": False}]
)
def test_switched_off_it_binds_nothing_and_orders_workers_to_end(off: dict[str, Any]) -> None:
    async def main() -> None:
        manager = Manager(advertised=("10.0.0.1", 7400), **off)
        await manager.tick()
        assert manager.presence.port == 0 and manager.presence.off
        assert manager.presence.order(0) == OFF and manager.presence.order(OFF.version) is None
        assert manager.sink.events() == []

    run(main())
