"""Waits for changes of members: the core refuses a change, or its epoch begins.

A change is complete when the first entry of the new epoch is committed, not when the command
of the change is. Until then no member may be switched off (R2).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from squall.cluster.ledger.group_member.waiting import refuse, settle
from squall.cluster.ledger.interface import OutcomeUnknown, TryLater
from squall.cluster.ledger.replica.types import Kind, LogEntry, Member

if TYPE_CHECKING:
    from squall.cluster.ledger.group_member.group_ledger import GroupLedger

EPOCH_WITHIN_S = 30.0
"""After this time without the new epoch, the outcome of a change is unknown."""


class MemberChanges:
    """Proposes a change of members to the core and waits for the epoch that it begins."""

    def __init__(self, ledger: GroupLedger) -> None:
        self._ledger = ledger
        self._asked = 0
        # By token; the core's answer carries the same token.
        self._proposals: dict[int, asyncio.Future[str]] = {}
        # The epochs that callers wait for.
        self._epochs: list[tuple[int, asyncio.Future[None]]] = []

    async def change(self, members: tuple[Member, ...]) -> None:
        ledger, node = self._ledger, self._ledger.member.node
        loop = asyncio.get_running_loop()
        epoch = ledger.fence.epoch + 1
        self._asked += 1
        proposed = self._proposals[self._asked] = loop.create_future()
        ledger.perform(ledger.replica.change_members(self._asked, members, ledger.now()))
        refusal = await proposed
        if refusal:
            raise TryLater(node, refusal)
        if self._has_begun(epoch):
            return
        entered: asyncio.Future[None] = loop.create_future()
        self._epochs.append((epoch, entered))
        try:
            async with asyncio.timeout(EPOCH_WITHIN_S):
                await entered
        except TimeoutError:
            raise OutcomeUnknown(
                "the members may have changed; `squall group status` shows them"
            ) from None

    def answered(self, token: int, refusal: str) -> None:
        settle(self._proposals.pop(token, None), refusal)

    def applied(self, entries: tuple[LogEntry, ...]) -> None:
        if not self._epochs:
            return
        # A command that changes the members does not prove that the new epoch has begun.
        newest = max((e.fence.epoch for e in entries if e.kind is not Kind.MEMBERS), default=-1)
        for epoch, future in self._epochs:
            if epoch <= newest:
                settle(future, None)
        self._epochs = [each for each in self._epochs if not each[1].done()]

    def lost_role(self, reason: str) -> None:
        proposals, self._proposals = self._proposals, {}
        for future in proposals.values():
            refuse(future, OutcomeUnknown(f"the primary stopped: {reason}"))

    def taken_back(self, error: TryLater) -> None:
        """Fails the waiting callers: the full disk removed the change's command from the log."""
        epochs, self._epochs = self._epochs, []
        for _, future in epochs:
            refuse(future, error)

    def _has_begun(self, epoch: int) -> bool:
        core = self._ledger.replica.core
        if core.commit <= core.log.base_op:
            return False
        return core.log.entry(core.commit).fence.epoch >= epoch
