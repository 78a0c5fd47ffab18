"""Lists the nodes of a datacenter for `squall nodes`, and says who hears the silent ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.clients.operator_api import OperatorApi
from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.group.presence.member_presence import MemberPresence
from squall.cluster.group.presence.members_api import MembersApi
from squall.cluster.manager.clients.job_views import node_views
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.protocol.membership.contacts import MemberRow
from squall.cluster.protocol.messages import NodeList, NodeView
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.interfaces import Runtime


class ManagerNodeLists:
    """What a manager says of its datacenter's nodes, from the log, sessions and membership."""

    def __init__(
        self,
        datacenter: str,
        machine: Datacenter,
        group: OperatorApi,
        presence: MemberPresence,
        watch: GroupWatch,
        runtime: Runtime,
    ) -> None:
        self._datacenter = datacenter
        self._machine = machine
        self._group = group
        self._presence = presence
        self._runtime = runtime
        self._api = MembersApi(
            presence, watch, runtime.clock, name=datacenter, apart=self._without_membership
        )

    def register(self, handlers: Handlers) -> None:
        self._api.register(handlers)

    async def nodes(self, datacenter: str, state: VolatileState | None) -> NodeList:
        here = self._datacenter
        if datacenter not in ("", here):
            text = f"no datacenter {datacenter} here: this is a manager of {here}"
            raise RemoteError(ErrorCode.NOT_FOUND, text)
        managers = self._group.members(self._runtime.boot)
        found = [*managers, *node_views(self._machine.tables, state)]
        asked = [each.name for each in found if self._is_doubtful(each)]
        lines = await self._api.explained(asked)
        return NodeList(
            here,
            [msgspec.structs.replace(each, membership=lines.get(each.name, "")) for each in found],
        )

    async def explained(self, workers: Sequence[str]) -> list[str]:
        """A line for each of these workers that membership knows, and for each it suspects."""
        return list((await self._api.explained(workers)).values())

    def _is_doubtful(self, node: NodeView) -> bool:
        is_suspect = self._presence.suspected_since(node.name, node.boot) is not None
        return node.state == "silent" or (is_suspect and node.state != "gone")

    def _without_membership(self) -> list[MemberRow]:
        return [
            MemberRow(name=worker.node, role="worker", boot=worker.boot, state="apart")
            for worker in self._machine.tables.workers.values()
            if not worker.gone
        ]
