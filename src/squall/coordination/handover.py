"""A change of the coordinator that somebody asks for.

It takes the way that every change takes: the holder ends its work, gives the lease up, and
the next one wins it under a new epoch. Another member asks by a signed signal; only the
coordinator listens for it. Nothing here writes to the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from squall.coordination import events, keys
from squall.coordination.assembly import Assembly
from squall.coordination.errors import ConfigurationError, NotRunningError, SignalDeliveryError
from squall.coordination.leadership import Leadership
from squall.coordination.records import HeartbeatRecord
from squall.coordination.signals import Delivery
from squall.coordination.terms import Term, Work

if TYPE_CHECKING:
    from squall.coordination.coordinator import Coordinator

ELECT = "coord.elect"
LOOKS_PER_BEAT = 10.0


class HandOver:
    """Of one member."""

    def __init__(self, member: Coordinator, parts: Assembly) -> None:
        self._member = member
        self._parts = parts
        self._removes: list[Callable[[], None]] = []
        self._handing: asyncio.Task[None] | None = None

    async def led(self, desired: str | None) -> str:
        """Waits until somebody leads, the desired one if one is named."""
        while True:
            found = self._member.current_coordinator
            if found is not None and desired in (None, found):
                return found
            await self._pause()

    async def force(self, desired: str | None, *, allow_early: bool) -> None:
        """Returns when the term that was present has ended."""
        member = self._member
        leader, epoch = await self.led(None), member.current_epoch
        if desired == leader:
            return
        if leader == member.member_id:
            await member.hand_over(desired, allow_early=allow_early)
            return
        await self._check(desired)
        self._check_age(allow_early=allow_early)
        payload = {"desired": desired or "", "allow_early": allow_early, "epoch": epoch}
        told = False
        while member.current_epoch == epoch and member.current_coordinator == leader:
            if told:
                await self._pause()
                continue
            try:
                await member.signals.send_signal_with_retry(leader, ELECT, payload=payload)
                told = True
            except SignalDeliveryError:
                # A slow store, or it is about to be replaced: how long to try the caller says.
                continue

    async def resign(
        self,
        leadership: Leadership,
        desired: str | None,
        *,
        allow_early: bool,
        requested_by: str = "",
    ) -> None:
        """Of the coordinator; `requested_by` is another member that asked for it."""
        member = self._member
        if not leadership.leads:
            raise NotRunningError(
                f"{member.member_id} does not lead: only a coordinator hands over"
            )
        await self._check(desired)
        self._check_age(allow_early=allow_early)
        self._parts.bus.emit(
            events.ForcedElection(
                requested_by=requested_by or member.member_id, desired=desired or ""
            )
        )
        await leadership.resign("forced", desired or "")

    def work(self) -> Work:
        """Listens while leading."""
        return Work("elections", become=self._listen, stop=self._stop)

    async def _listen(self, term: Term) -> None:
        self._removes.append(self._member.signals.on_signal(ELECT, self._asked))

    async def _stop(self, term: Term) -> None:
        while self._removes:
            self._removes.pop()()

    async def _asked(self, delivery: Delivery) -> None:
        order = delivery.signal.payload
        if order.get("epoch", self._member.current_epoch) != self._member.current_epoch:
            # It was meant for a term that has ended.
            return
        if self._handing is not None and not self._handing.done():
            return
        leadership = self._member.leadership
        if leadership is None:
            return
        handing = self.resign(
            leadership,
            order["desired"] or None,
            allow_early=order["allow_early"],
            requested_by=delivery.signal.sender_id,
        )
        self._handing = self._parts.tasks.start("hand over", handing).task

    def _check_age(self, *, allow_early: bool) -> None:
        left_s = self._member.protected_for
        if left_s > 0.0 and not allow_early:
            raise ConfigurationError(
                f"allow_early is False: the coordinator was elected a moment ago and keeps the lead"
                f" for {left_s:.0f} s more (min_epoch_duration); allow_early=True is right"
            )

    async def _check(self, desired: str | None) -> None:
        if desired is not None and not await self._may_lead(desired):
            raise ConfigurationError(
                f"desired_coordinator is {desired!r}: it must be live and eligible;"
                " `active_workers()` has those that are"
            )

    async def _may_lead(self, member_id: str) -> bool:
        if member_id not in await self._member.active_workers():
            return False
        parts = self._parts
        (beat,) = await parts.patient.get(keys.heartbeat(member_id))
        signed = parts.signs_heartbeats
        record = (
            None
            if beat is None
            else parts.codec.read(HeartbeatRecord, beat.value, signed=signed, key=beat.key)
        )
        return record is not None and record.eligible

    async def _pause(self) -> None:
        """`NotRunningError` when the member has stopped."""
        await self._parts.clock.sleep(self._member.timing.heartbeat_interval / LOOKS_PER_BEAT)
