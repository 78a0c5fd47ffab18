"""A worker's part in membership: it follows the orders that session answers bring.

The worker receives datagrams at a free port of the address that its link to a manager uses. The
other members learn it from the worker's own datagrams.
"""

from __future__ import annotations

from squall.cluster.membership.messages import MemberRole
from squall.cluster.presence.contacts import answer_contacts
from squall.cluster.presence.driver import MembershipDriver
from squall.cluster.presence.metrics import membership_metrics
from squall.cluster.protocol.membership.order import MembershipOrder
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.worker.manager_links import ManagerLinks
from squall.cluster.worker.session import WorkerSession
from squall.reporting.number_format import plural
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.runtime.metrics import Registry


class WorkerMembership:
    def __init__(
        self,
        runtime: Runtime,
        board: Switchboard,
        links: ManagerLinks,
        session: WorkerSession,
        log: Log,
        registry: Registry,
        cores: int,
    ) -> None:
        self._links = links
        self._cores = cores
        self._session = session
        self._host = ""
        self._driver = MembershipDriver(
            runtime,
            board.keyring,
            board.counters,
            board.handlers,
            log,
            role=MemberRole.WORKER,
            send_sync=links.send_to,
        )
        answer_contacts(board.handlers, self._driver)
        membership_metrics(registry, self._driver)
        # The managers send an order to those that ask for one.
        session.membership_version = 0

    async def follow(self, order: MembershipOrder) -> None:
        if order.is_on and not self._driver.port:
            link = self._links.current.control.link
            self._host = link.local_host if link is not None else ""
            if not self._host:
                return
            if not await self._driver.bind((self._host, 0)):
                self._session.membership_version = -1
                return
        self._driver.follow(order, self._host)
        self._session.membership_version = order.version

    async def answered(self, order: MembershipOrder | None) -> None:
        """Called with what each session answer says of membership."""
        if order is not None:
            await self.follow(order)
        self._driver.say(f"{plural(self._session.live, 'share')} on {plural(self._cores, 'core')}")

    def leave(self) -> None:
        self._driver.leave()

    async def close(self) -> None:
        await self._driver.close()
