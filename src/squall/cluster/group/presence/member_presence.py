"""A manager's or gate's part in membership, and the order to its workers.

A member learns of its group's other members from their notes, and of workers from their datagrams.
The UDP port has the number of the TCP port that the node listens on. With more nodes than
`max_nodes`, membership is off on all of them: the tables grow with that number, and the limit is
the largest number that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.membership.messages import MemberRole, Sync
from squall.cluster.presence.driver import MembershipDriver
from squall.cluster.presence.metrics import membership_metrics
from squall.cluster.protocol.membership.order import OFF, MembershipOrder, order_of
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.errors import NotSent
from squall.cluster.wire.links.channel import Channel
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.negotiation import LinkKind
from squall.runtime.addresses import is_numeric
from squall.runtime.interfaces import Address, BootId, NodeId
from squall.runtime.log import Log
from squall.runtime.metrics import Registry
from squall.runtime.tasks import TaskRunner

ON_AGAIN = 0.9
"""The part of `max_nodes` at which it begins again: it must not end and begin with each worker."""
NOWHERE = ("", "0.0.0.0", "::")
TOO_MANY = "more nodes than max_nodes under [membership]"
SWITCHED_OFF = "max_nodes = 0 under [membership]"


class MemberPresence:
    """One boot of a manager or gate in membership."""

    def __init__(
        self,
        board: Switchboard,
        endpoint: Endpoint,
        watch: GroupWatch,
        log: Log,
        registry: Registry,
        *,
        role: MemberRole,
        settings: Settings,
        keys: tuple[bytes, ...],
        advertised: Callable[[], Address],
        nodes: Callable[[], int],
        leads: Callable[[], bool],
        takes_part: bool,
    ) -> None:
        """`keys` are the membership keys of the group. `nodes` returns how many nodes could take
        part; `takes_part`: this one may. `leads`: it leads its group now."""
        self._leads = leads
        self._board = board
        self._endpoint = endpoint
        self._watch = watch
        self._settings = settings
        self._keys = keys
        self._advertised = advertised
        self._nodes = nodes
        self._order = OFF
        # Why it is off; "" while it is on.
        self.off = "" if settings.membership.max_nodes and takes_part else SWITCHED_OFF
        self._is_possible = not self.off
        self.driver = MembershipDriver(
            board.runtime,
            board.keyring,
            board.counters,
            board.handlers,
            log,
            role=role,
            send_sync=self._send_sync,
        )
        membership_metrics(registry, self.driver)

    @property
    def port(self) -> int:
        """The UDP port, for the notes to the other members; 0: it takes no part."""
        return self.driver.port

    def start(self, tasks: TaskRunner, every_s: float) -> None:
        if self._is_possible:
            tasks.every("membership", every_s, self._tick, group="membership")

    async def _tick(self) -> None:
        """Starts once this node knows its own address, and follows the members of the group."""
        if not self._is_possible:
            return
        count, most = self._nodes(), self._settings.membership.max_nodes
        if count > (most * ON_AGAIN if self.off == TOO_MANY else most):
            self.off, self._order = TOO_MANY, OFF
            self.driver.stop(f"{count} nodes are more than max_nodes = {most}")
            return
        self.off = ""
        if not await self.driver.bind(self._endpoint.address) or self.driver.impossible:
            self.off, self._is_possible = self.driver.impossible, False
            return
        host = self._host()
        if not host:
            return
        others = [(each.host, each.note.datagrams) for each in self._watch.heard.values()]
        seeds = [(at, port) for at, port in others if at and port]
        self.driver.follow(self._order_for(seeds), host)
        self.driver.say("leads" if self._leads() else "follows")
        self._order = self._order_for([*seeds, (host, self.driver.port)])

    def _order_for(self, seeds: Sequence[Address]) -> MembershipOrder:
        settings = self._settings
        return order_of(settings.membership, settings.timers.profile, seeds, self._keys)

    def _host(self) -> str:
        """The address at which others reach this node: that of the flags if it is numeric, else the
        one that its links to other nodes show."""
        for host, _ in (self._advertised(), self._endpoint.address):
            if is_numeric(host) and host not in NOWHERE:
                return host
        return self._watch.own_host

    def order(self, version: int) -> MembershipOrder | None:
        """The order for a worker that has `version`; None if that is current or if the worker
        cannot take part."""
        if version < 0 or version == self._order.version:
            return None
        if self._order is OFF and not self.off:
            # It has not begun yet.
            return None
        return self._order

    def suspected_since(self, node: str, boot: str) -> float | None:
        return self.driver.suspected_since(node, boot)

    def channel_of(self, node: str, boot: str) -> Channel | None:
        """The control link that a worker made to this member."""
        found = self._endpoint.channel(NodeId(node), BootId(boot), LinkKind.CONTROL)
        return found if found is not None and found.session is not None else None

    def _send_sync(self, node: NodeId, message: Sync) -> None:
        transport = self._watch.transport
        if transport is not None and transport.is_linked(node):
            transport.tell(node, message)
            return
        core = self.driver.core
        member = core.member(node, self._board.runtime.clock.now()) if core is not None else None
        channel = self.channel_of(node, member.boot) if member is not None else None
        if channel is None:
            raise NotSent(f"there is no link to {node}")
        channel.send(message)
