"""A worker follows the membership orders that its session answers bring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cluster.protocol.membership.order import OFF, order_of
from squall.cluster.protocol.timers import timers
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.cluster.worker.membership import WorkerMembership
from squall.cluster.worker.session import WorkerSession
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from squall.settings.shared_sections import MembershipSettings
from tests.fakes.wire import SECRET, FakeNetwork, board, run

KEYS = Secrets.of_node(SECRET).membership_keys("dc")
ORDER = order_of(MembershipSettings(), "lan", [("10.0.0.1", 7400)], KEYS)


class Worker:
    def __init__(self, *, name: str = "", network: FakeNetwork | None = None) -> None:
        secrets = Secrets.of_credential(worker_credential(SECRET, name))
        made = board(network or FakeNetwork(), "w1", secrets=secrets)
        made.handlers = Handlers(CATALOGUE)
        self.session = WorkerSession("w1", "b1", 1, timers("fast", 1))
        self.link: Any = SimpleNamespace(local_host="10.0.0.4")
        links = SimpleNamespace(
            send_to=None, current=SimpleNamespace(control=SimpleNamespace(link=None))
        )
        links.current.control.link = self.link
        self.links = links
        self.sink = MemorySink()
        self.membership = WorkerMembership(
            made.runtime,
            made,
            cast("Any", links),
            self.session,
            Log(self.sink, made.runtime.clock),
            Registry(),
            4,
        )

    @property
    def asked(self) -> int:
        """What its next session request says of membership."""
        return self.session.request(1.0, 1.0).membership

    @property
    def driver(self) -> Any:
        return cast("Any", self.membership)._driver


def test_a_session_without_membership_says_nothing_of_it() -> None:
    assert WorkerSession("w1", "b1", 1, timers("fast", 1)).request(1.0, 1.0).membership == -1


@pytest.mark.parametrize("bound_to", ["", "w1"])
def test_it_asks_follows_and_says_which_order_it_has(bound_to: str) -> None:
    async def main() -> None:
        worker = Worker(name=bound_to)
        assert worker.asked == 0
        await worker.membership.follow(ORDER)
        assert worker.asked == ORDER.version and worker.driver.is_on
        assert worker.driver.identity.address[0] == "10.0.0.4"
        await worker.membership.follow(OFF)
        assert worker.asked == OFF.version and not worker.driver.is_on
        await worker.membership.close()

    run(main())


def test_without_keys_it_stays_out_until_its_managers_send_some() -> None:
    async def main() -> None:
        worker = Worker()
        older = order_of(MembershipSettings(), "lan", ORDER.seeds, ())
        for _ in range(2):
            await worker.membership.follow(older)
        assert worker.asked == older.version and not worker.driver.is_on
        assert worker.sink.events() == ["membership_off"]
        await worker.membership.follow(ORDER)
        assert worker.asked == ORDER.version and worker.driver.is_on
        await worker.membership.close()

    run(main())


def test_without_a_link_it_asks_again() -> None:
    async def main() -> None:
        worker = Worker()
        worker.links.current.control.link = None
        await worker.membership.follow(ORDER)
        assert worker.asked == 0 and not worker.driver.is_on
        await worker.membership.close()

    run(main())


class NoDatagrams(FakeNetwork):
    async def bind_datagrams(self, address: Any, handler: Any) -> Any:
        raise OSError("not supported")


def test_one_that_cannot_take_part_asks_no_more() -> None:
    async def main() -> None:
        made = Worker(network=NoDatagrams())
        await made.membership.follow(ORDER)
        assert made.asked == -1 and not made.driver.is_on
        await made.membership.close()

    run(main())
