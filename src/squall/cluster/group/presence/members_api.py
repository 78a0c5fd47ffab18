"""Answers `squall members`, and explains nodes that are silent or suspected.

The answering member asks the others of its group whom they hear, and each asks some of the workers
that have a link to it. The list leaves out nodes that do not answer within half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.group.presence.member_presence import MemberPresence
from squall.cluster.membership.messages import MemberRole
from squall.cluster.presence.contacts import contacts_of, merged, own_row, who_hears
from squall.cluster.protocol.membership.contacts import (
    AskContacts,
    AskMembers,
    Contacts,
    MemberContacts,
    MemberList,
    MemberRow,
)
from squall.cluster.wire.errors import WireError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.runtime.interfaces import Clock, NodeId

ASK_S = 0.5
WORKERS_ASKED = 16
"""Enough to tell a dead worker from a cut link, and no load in a large datacenter."""
CACHED_S = 1.0
"""`squall why` and `nodes` in a loop must not ask all members each time."""


class MembersApi:
    def __init__(
        self,
        presence: MemberPresence,
        watch: GroupWatch,
        clock: Clock,
        *,
        name: str,
        apart: Callable[[], Sequence[MemberRow]] = tuple,
        far: Callable[[str], Awaitable[MemberList]] | None = None,
    ) -> None:
        """`name` is the datacenter, or "gates". `apart` returns all nodes that the group knows, to
        show those that take no part. `far` asks another datacenter, on gates."""
        self._presence = presence
        self._driver = presence.driver
        self._watch = watch
        self._clock = clock
        self._name = name
        self._apart = apart
        self._far = far
        self._cached: tuple[float, list[MemberContacts]] | None = None

    def register(self, handlers: Handlers) -> None:
        handlers.on(AskContacts, self.contacts)
        handlers.on(AskMembers, self.members)

    async def contacts(self, message: AskContacts, incoming: Incoming) -> Contacts:
        """Whom this member hears, with the answers of some of its workers."""
        if not self._driver.is_on:
            return Contacts()
        return Contacts([contacts_of(self._driver), *await self._asked(self._workers())])

    async def members(self, message: AskMembers, incoming: Incoming) -> MemberList:
        if message.datacenter and message.datacenter != self._name and self._far is not None:
            return await self._far(message.datacenter)
        rows, asked = await self._rows()
        known = {row.name for row in rows}
        rows += [row for row in self._apart() if row.name not in known]
        return MemberList(
            datacenter=self._name,
            reported_by=self._watch.node,
            off=self._presence.off,
            asked=asked,
            members=sorted(rows, key=lambda row: (row.role == "worker", row.name)),
        )

    async def explained(self, nodes: Sequence[str]) -> dict[str, str]:
        """By node: one line that says which members hear it. Empty while membership is off."""
        if not nodes or not self._driver.is_on:
            return {}
        rows, _ = await self._rows()
        return {row.name: who_hears(row) for row in rows if row.name in nodes}

    async def _rows(self) -> tuple[list[MemberRow], int]:
        if not self._driver.is_on:
            return [], 0
        answers = await self._answers()
        rows = merged(contacts_of(self._driver), answers, own_row(self._driver))
        return rows, 1 + len(answers)

    async def _answers(self) -> list[MemberContacts]:
        """The answers of the others, at most a second old."""
        now = self._clock.now()
        if self._cached is not None and now - self._cached[0] < CACHED_S:
            return self._cached[1]
        asks = self._workers()
        transport = self._watch.transport
        for node in self._watch.heard if transport is not None else ():
            if transport is not None and transport.is_linked(NodeId(node)):
                asks.append(transport.request(NodeId(node), AskContacts(), 2 * ASK_S))
        # A worker has links to several managers.
        found = list({each.node: each for each in await self._asked(asks)}.values())
        self._cached = (now, found)
        return found

    def _workers(self) -> list[Awaitable[Any]]:
        """The requests to the workers with a link to this member that it heard last. Not to other
        managers: they would ask this one again."""
        asks: list[Awaitable[Any]] = []
        workers = [view for view in self._driver.members() if view.role is MemberRole.WORKER]
        for view in sorted(workers, key=lambda view: view.heard_s or 0.0):
            channel = self._presence.channel_of(view.node, view.boot)
            if channel is not None and len(asks) < WORKERS_ASKED:
                asks.append(channel.request(AskContacts(), ASK_S))
        return asks

    async def _asked(self, asks: Sequence[Awaitable[Any]]) -> list[MemberContacts]:
        answers = await asyncio.gather(*asks, return_exceptions=True)
        unexpected = [
            each
            for each in answers
            if isinstance(each, BaseException) and not isinstance(each, WireError)
        ]
        if unexpected:
            raise unexpected[0]
        return [each for said in answers if isinstance(said, Contacts) for each in said.answers]
