"""A change of the leader on request.

The leader ends its work and releases the lease, and the next one wins it under a new epoch, as in
every change. Another member asks for it by a signed signal, which only the leader handles. Nothing
here writes to the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from squall.coordination import events
from squall.coordination.election.leadership import Leadership
from squall.coordination.election.term import Term, Work
from squall.coordination.errors import ConfigurationError, NotRunningError, SignalDeliveryError
from squall.coordination.member_parts import MemberParts
from squall.coordination.plugin import PluginHost
from squall.coordination.records import keys
from squall.coordination.signals.member_signals import Delivery

ELECT = "coord.elect"
POLLS_PER_BEAT = 10.0


class ElectableMember(PluginHost, Protocol):
    """The part of `Coordinator` that a handover uses."""

    @property
    def leadership(self) -> Leadership | None: ...
    @property
    def protected_for(self) -> float: ...
    async def hand_over(self, to: str | None = None, *, allow_early: bool = False) -> None: ...


class Handover:
    """Asks the leader to hand over, and handles such requests while this member leads."""

    def __init__(self, member: ElectableMember, parts: MemberParts) -> None:
        self._member = member
        self._parts = parts
        self._remove_handlers: list[Callable[[], None]] = []
        self._running: asyncio.Task[None] | None = None

    async def led(self, desired: str | None) -> str:
        """Waits until a member leads, or the desired one; returns its id."""
        while True:
            found = self._member.current_coordinator
            if found is not None and desired in (None, found):
                return found
            await self._pause()

    async def force(self, desired: str | None, *, allow_early: bool) -> None:
        """Asks the present leader to hand over; returns when its term has ended."""
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
        is_sent = False
        while member.current_epoch == epoch and member.current_coordinator == leader:
            if is_sent:
                await self._pause()
                continue
            try:
                await member.signals.send_signal_with_retry(leader, ELECT, payload=payload)
                is_sent = True
            except SignalDeliveryError:
                # The store is slow, or the leader is being replaced. The caller limits the time.
                continue

    async def resign(
        self,
        leadership: Leadership,
        desired: str | None,
        *,
        allow_early: bool,
        requested_by: str = "",
    ) -> None:
        """Ends the term of this member. `requested_by` is the member that asked for it, if it was
        another one."""
        member = self._member
        if not leadership.leads:
            raise NotRunningError(f"{member.member_id} does not lead: only the leader hands over")
        await self._check(desired)
        self._check_age(allow_early=allow_early)
        self._parts.bus.emit(
            events.ForcedElection(
                requested_by=requested_by or member.member_id, desired=desired or ""
            )
        )
        await leadership.resign("forced", desired or "")

    def work(self) -> Work:
        """Handles requests while this member leads."""
        return Work("elections", become=self._listen, stop=self._stop)

    async def _listen(self, term: Term) -> None:
        self._remove_handlers.append(self._member.signals.on_signal(ELECT, self._on_request))

    async def _stop(self, term: Term) -> None:
        while self._remove_handlers:
            self._remove_handlers.pop()()

    async def _on_request(self, delivery: Delivery) -> None:
        order = delivery.signal.payload
        if order.get("epoch", self._member.current_epoch) != self._member.current_epoch:
            # The request was for a term that has ended.
            return
        if self._running is not None and not self._running.done():
            return
        leadership = self._member.leadership
        if leadership is None:
            return
        handover = self.resign(
            leadership,
            order["desired"] or None,
            allow_early=order["allow_early"],
            requested_by=delivery.signal.sender_id,
        )
        self._running = self._parts.tasks.start("hand over", handover).task

    def _check_age(self, *, allow_early: bool) -> None:
        left_s = self._member.protected_for
        if left_s > 0.0 and not allow_early:
            raise ConfigurationError(
                f"allow_early is False: the leader was elected a moment ago and does not hand over"
                f" for {left_s:.0f} s more (min_epoch_duration); wait, or use allow_early=True"
            )

    async def _check(self, desired: str | None) -> None:
        if desired is not None and not await self._may_lead(desired):
            raise ConfigurationError(
                f"desired_coordinator is {desired!r}: it must be live and eligible; use one of"
                " `active_workers()`"
            )

    async def _may_lead(self, member_id: str) -> bool:
        if member_id not in await self._member.active_workers():
            return False
        (beat,) = await self._parts.patient.get(keys.heartbeat(member_id))
        record = self._parts.read_heartbeat(beat)
        return record is not None and record.eligible

    async def _pause(self) -> None:
        """Raises `NotRunningError` once the member has stopped."""
        await self._parts.clock.sleep(self._member.timing.heartbeat_interval / POLLS_PER_BEAT)
