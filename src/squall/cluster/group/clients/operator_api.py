"""Answers operators of a group: status, hand over, change the members.

Every member answers with the status of the group, also without a quorum, from what it
heard. The primary does the rest; the other members answer with its address. A change of
members is reported as done when the primary of the new epoch has committed something: only
then may a former member be switched off (R2). Members whose storage id is unknown are never
proposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from squall.api.errors import SquallError
from squall.cluster.group.change_plan import (
    ChangeRefused,
    MemberStep,
    NoSuchMember,
    after,
    steps_of,
)
from squall.cluster.group.committer import RETRY_AFTER_S, Committer
from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.group.views import group_view, own_note
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.interface import Ledger, NotPrimary
from squall.cluster.ledger.replica.types import Member
from squall.cluster.protocol.group_messages import (
    AskGroup,
    ChangeMembers,
    GroupView,
    HandedOver,
    HandOver,
    MemberNote,
    MembersChanged,
    NameInUse,
)
from squall.cluster.protocol.messages import NodeView
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.addresses import address_in
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log

NOTE_S = 0.5
"""How often a member sends its state to the others."""
HAND_OVER_POLL_S = 0.005
"""A hand over takes less than 200 ms, of which this must be a small part."""
HAND_OVER_S = 5.0
"""A hand over that takes longer is reported as failed; the client may try again."""
JOIN_S = 10.0
"""How long a change waits for the members that are to join."""
LEADS_AGAIN_S = 5.0
"""How long this member waits to lead the new epoch; a view change takes up to 3.9 s."""
ACTIVATE_AGAIN_S = 5.0
"""The interval between two announcements of a version that is not committed yet."""
IN_A_STORE = (
    "the log of these managers is in a store, which elects the leader: there are no members to "
    "change"
)


class OperatorApi:
    """Handles the requests of operators, and exchanges notes with the other members."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        watch: GroupWatch,
        committer: Committer[Any],
        clock: Clock,
        log: Log,
        role: Literal["manager", "gate"],
        speaks: int,
        is_unused: Callable[[], bool],
        own: Callable[[], MemberNote],
    ) -> None:
        """`is_unused`: no command of the state machine is in the log yet. `own` returns what only
        the process knows: address, pid, version, free disk space."""
        self._ledger = ledger
        self._watch = watch
        self._committer = committer
        self._clock = clock
        self._log = log
        self._role: Literal["manager", "gate"] = role
        self._speaks = speaks
        self._is_unused = is_unused
        self._own = own
        self._changing = False
        self._activated_at = float("-inf")

    def register(self, handlers: Handlers) -> None:
        handlers.on(MemberNote, self._watch.receive)
        handlers.on(NameInUse, self._watch.name_in_use)
        handlers.on(AskGroup, self.status)
        handlers.on(HandOver, self.hand_over)
        handlers.on(ChangeMembers, self.change)

    # Status.

    def tick(self) -> None:
        """Called twice a second: sends this member's note, records changes of the primary,
        announces new versions."""
        self._watch.log_view_change(self._ledger.fence, self._ledger.primary)
        self._watch.broadcast(self.note())
        self.activate()

    def note(self) -> MemberNote:
        return own_note(self._own(), self._ledger, self._watch, self._speaks)

    def view(self) -> GroupView:
        return group_view(self._ledger, self._watch, self.note(), self._role)

    def members(self, boot: str) -> list[NodeView]:
        """The rows of `squall nodes`."""
        return [
            NodeView(
                name=each.name,
                role=self._role,
                address=each.address,
                pid=each.pid,
                state=each.state,
                boot=each.boot or (boot if each.name == self._watch.node else ""),
                heard_s=max(each.heard_s, 0.0),
                version=each.version,
                clock_s=each.clock_s,
                region=each.region,
                same_name=self._watch.same_name(each.name),
            )
            for each in self.view().members
        ]

    def status(self, message: AskGroup, incoming: Incoming) -> GroupView:
        return self.view()

    # Upgrades.

    def activate(self) -> None:
        """Announces the highest version that every member can apply (R3)."""
        ledger = self._ledger
        if not isinstance(ledger, GroupLedger) or not ledger.is_primary:
            return
        spoken = self._speaks
        # A group that was never used begins with the version of its primary, and so does not wait
        # for a member that is away.
        is_first = self._is_unused()
        if not is_first:
            replica = ledger.replica
            others = [replica.normal.progress.get(node) for node in replica.core.others()]
            spoken = min([spoken, *(each.version if each else 0 for each in others)])
        now = self._clock.now()
        if spoken <= ledger.active_version or now - self._activated_at < ACTIVATE_AGAIN_S:
            return
        self._activated_at = now
        try:
            ledger.activate(spoken, is_first=is_first)
        except SquallError as error:
            self._log.info("version_waits", version=spoken, reason=str(error))
            return
        self._log.info("version_announced", version=spoken)

    # Handing over.

    async def hand_over(self, message: HandOver, incoming: Incoming) -> HandedOver:
        ledger = self._group()
        leader = ledger.primary
        if leader is not None and leader != message.leader:
            return HandedOver(leader=leader)
        self._check_leads()
        if not ledger.replica.core.others():
            raise RemoteError(ErrorCode.CONFLICT, f"there is no other {self._role} to hand over to")
        began = self._clock.now()
        await self._leave(ledger)
        took_ms = (self._clock.now() - began) * 1000.0
        self._log.info("handed_over", leader=ledger.primary, took_ms=round(took_ms, 1))
        return HandedOver(leader=str(ledger.primary), took_ms=took_ms)

    async def _leave(self, ledger: GroupLedger) -> None:
        """Hands over and returns when another member leads."""
        until = self._clock.now() + HAND_OVER_S
        while True:
            primary = ledger.primary
            if primary is not None and primary != ledger.member.node:
                return
            if self._clock.now() >= until:
                raise RemoteError(
                    ErrorCode.RETRY_LATER,
                    f"no other {self._role} took over",
                    retry_after_s=RETRY_AFTER_S,
                )
            if ledger.is_primary and not ledger.replica.hand_over.is_under_way:
                ledger.hand_over()
            await self._clock.sleep(HAND_OVER_POLL_S)

    # Members.

    async def change(self, message: ChangeMembers, incoming: Incoming) -> MembersChanged:
        ledger = self._group()
        self._check_leads()
        if self._changing:
            raise RemoteError(
                ErrorCode.RETRY_LATER,
                "another change of members is under way",
                retry_after_s=RETRY_AFTER_S,
            )
        self._changing = True
        try:
            return await self._change(ledger, message)
        except NoSuchMember as error:
            raise RemoteError(ErrorCode.NOT_FOUND, str(error)) from None
        except ChangeRefused as error:
            raise RemoteError(ErrorCode.CONFLICT, str(error)) from None
        except SquallError as error:
            raise self._committer.answer(error) from None
        finally:
            self._changing = False

    async def _change(self, ledger: GroupLedger, message: ChangeMembers) -> MembersChanged:
        await ledger.confirm()
        # An impossible change is refused before it waits for any member.
        steps_of(_members(ledger), message.gone, message.added, {}, self._role)
        await self._wait_for_notes(message.added)
        steps = steps_of(
            _members(ledger),
            message.gone,
            message.added,
            self._watch.storages(JOIN_S),
            self._role,
        )
        # The primary cannot remove itself: it does all other steps, hands over, and the client
        # repeats the request at the new primary.
        for step in sorted(steps, key=lambda step: ledger.member.node in step.gone):
            if ledger.member.node in step.gone:
                if not ledger.replica.core.others():
                    raise ChangeRefused(
                        f"the only {self._role} cannot leave: add two with squall group add"
                    )
                await self._leave(ledger)
                raise NotPrimary(ledger.primary)
            await self._step(ledger, step, message.added)
        config = ledger.replica.core.config
        return MembersChanged(
            epoch=config.epoch if config is not None else 0,
            members=[str(member.node) for member in _members(ledger)],
            repeated=not steps,
        )

    async def _step(self, ledger: GroupLedger, step: MemberStep, added: dict[str, str]) -> None:
        joining = await self._joining(ledger, step, added)
        members = after(_members(ledger), step, joining)
        nodes = ", ".join(member.node for member in members)
        self._log.info("members_change", members=nodes, epoch=ledger.fence.epoch + 1)
        await ledger.change_members(tuple(members))
        self._log.info("members_changed", members=nodes, epoch=ledger.fence.epoch)
        until = self._clock.now() + LEADS_AGAIN_S
        while not ledger.is_primary:
            if ledger.primary is not None or self._clock.now() >= until:
                raise NotPrimary(ledger.primary)
            await self._clock.sleep(HAND_OVER_POLL_S)

    async def _wait_for_notes(self, added: dict[str, str]) -> None:
        """Waits until every member that is to join has reported its storage id."""
        for name, shown in added.items():
            address = address_in(shown)
            if address is None:
                raise ChangeRefused(f"{name}={shown}: write NAME=HOST:PORT")
            if name != self._watch.node:
                self._watch.reach(name, address)
        # Only notes that arrive from now on: the disk may have been wiped a moment ago.
        began = self._clock.now()
        until = began + JOIN_S
        missing = set(added) - {self._watch.node}
        while missing := missing - self._watch.heard_since(began):
            if self._clock.now() >= until:
                name = min(missing)
                raise ChangeRefused(
                    f"{name} does not answer at {added[name]}: start it there with "
                    f"squall {self._role} --name {name} ... --join"
                )
            await self._clock.sleep(NOTE_S / 5)

    async def _joining(
        self, ledger: GroupLedger, step: MemberStep, added: dict[str, str]
    ) -> dict[str, Member]:
        """The learners of this step: they hold the state, or soon do, and wait to be admitted."""
        until = self._clock.now() + JOIN_S
        while True:
            learners = ledger.replica.members.learners
            found = {str(node): learner.member for node, learner in learners.items()}
            missing = [name for name in step.added if name not in found]
            if not missing:
                return found
            if self._clock.now() >= until:
                raise ChangeRefused(
                    f"{missing[0]} at {added[missing[0]]} runs, but does not wait to join this "
                    "group: its data directory must be empty"
                )
            if not ledger.is_primary:
                raise NotPrimary(ledger.primary)
            await self._clock.sleep(NOTE_S / 5)

    def _group(self) -> GroupLedger:
        if not isinstance(self._ledger, GroupLedger):
            raise RemoteError(ErrorCode.CONFLICT, IN_A_STORE)
        return self._ledger

    def _check_leads(self) -> None:
        if not self._ledger.is_primary:
            raise self._committer.answer(NotPrimary(self._ledger.primary))


def _members(ledger: GroupLedger) -> tuple[Member, ...]:
    config = ledger.replica.core.config
    return config.members if config is not None else ()
