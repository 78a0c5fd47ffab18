"""What operators ask of a group of managers: how it is, hand over, change the members.

Every manager answers how the group is, also without a quorum, from what it heard. The
rest is done by the one that leads; the others say who that is. A change of members is
done when the new epoch's primary committed something: only then may anybody be switched
off. It must never propose members whose disks it did not hear of.
"""

from __future__ import annotations

from collections.abc import Callable

from squall.api.errors import SquallError
from squall.ledger.interface import NotPrimary
from squall.ledger.replica.ledger import GroupLedger
from squall.ledger.replica.types import Member
from squall.ledger.single import OneMemberLedger
from squall.nodes.group_messages import (
    AskGroup,
    ChangeMembers,
    GroupView,
    HandedOver,
    HandOver,
    MemberNote,
    MembersChanged,
)
from squall.nodes.manager.clients import Committer
from squall.nodes.manager.group_plan import (
    ChangeRefused,
    NoSuchMember,
    Step,
    after,
    steps_of,
)
from squall.nodes.manager.group_views import group_view, own_note
from squall.nodes.manager.group_watch import GroupWatch, address_in
from squall.nodes.manager.log import ManagerLog
from squall.nodes.messages import NodeView
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.wire.dispatch import Handlers, Incoming
from squall.wire.errors import RemoteError
from squall.wire.messages import ErrorCode

LOOK_S = 0.5
"""How often a manager tells the others how it is."""
LOOK_AT_HAND_OVER_S = 0.005
HAND_OVER_S = 5.0
JOIN_S = 10.0
"""How long a change waits for those who shall join."""
LEADS_AGAIN_S = 5.0
ACTIVATE_AGAIN_S = 5.0
RETRY_S = 0.3
ALONE = (
    "this manager was started alone: start it again with all managers in --members, then "
    "squall group add"
)


IN_A_STORE = (
    "the log of these managers lies in a store: whoever is elected there leads, there are no "
    "members to change"
)


class GroupApi:
    def __init__(
        self,
        *,
        ledger: ManagerLog,
        watch: GroupWatch,
        committer: Committer,
        clock: Clock,
        log: Log,
        speaks: int,
        own: Callable[[], MemberNote],
    ) -> None:
        """`own` has what only the process knows: address, pid, version, disk."""
        self._ledger = ledger
        self._watch = watch
        self._committer = committer
        self._clock = clock
        self._log = log
        self._speaks = speaks
        self._own = own
        self._changing = False
        self._activated_at = float("-inf")

    def register(self, handlers: Handlers) -> None:
        handlers.on(MemberNote, self._watch.hear)
        handlers.on(AskGroup, self.status)
        handlers.on(HandOver, self.hand_over)
        handlers.on(ChangeMembers, self.change)

    # Looking.

    def look(self) -> None:
        """Twice a second: tell the others, note what changed, announce new versions."""
        self._watch.look(self._ledger.fence, self._ledger.primary)
        self._watch.tell(self.note())
        self._activate()

    def note(self) -> MemberNote:
        return own_note(self._own(), self._ledger, self._watch, self._speaks)

    def view(self) -> GroupView:
        return group_view(self._ledger, self._watch, self.note())

    def managers(self, boot: str) -> list[NodeView]:
        """For `squall nodes`."""
        return [
            NodeView(
                name=each.name,
                role="manager",
                address=each.address,
                pid=each.pid,
                state=each.state,
                boot=each.boot or (boot if each.name == self._watch.node else ""),
                heard_s=max(each.heard_s, 0.0),
                version=each.version,
            )
            for each in self.view().members
        ]

    def status(self, message: AskGroup, incoming: Incoming) -> GroupView:
        return self.view()

    # Upgrades.

    def _activate(self) -> None:
        """Commands of a version are allowed once every member can apply them."""
        ledger = self._ledger
        if not isinstance(ledger, GroupLedger) or not ledger.is_primary:
            return
        replica = ledger.replica
        others = [replica.normal.progress.get(node) for node in replica.core.others()]
        spoken = min([self._speaks, *(each.version if each else 0 for each in others)])
        now = self._clock.now()
        if spoken <= ledger.active_version or now - self._activated_at < ACTIVATE_AGAIN_S:
            return
        self._activated_at = now
        try:
            ledger.activate(spoken)
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
            raise RemoteError(ErrorCode.CONFLICT, "there is no other manager to hand over to")
        began = self._clock.now()
        await self._leave(ledger)
        took_ms = (self._clock.now() - began) * 1000.0
        self._log.info("handed_over", leader=ledger.primary, took_ms=round(took_ms, 1))
        return HandedOver(leader=str(ledger.primary), took_ms=took_ms)

    async def _leave(self, ledger: GroupLedger) -> None:
        """Returns when another one leads."""
        until = self._clock.now() + HAND_OVER_S
        while True:
            primary = ledger.primary
            if primary is not None and primary != ledger.member.node:
                return
            if self._clock.now() >= until:
                raise RemoteError(
                    ErrorCode.RETRY_LATER, "no other manager took over", retry_after_s=RETRY_S
                )
            if ledger.is_primary and not ledger.replica.hand_over.is_under_way:
                ledger.hand_over()
            await self._clock.sleep(LOOK_AT_HAND_OVER_S)

    # Members.

    async def change(self, message: ChangeMembers, incoming: Incoming) -> MembersChanged:
        ledger = self._group()
        self._check_leads()
        if self._changing:
            raise RemoteError(
                ErrorCode.RETRY_LATER,
                "another change of members is under way",
                retry_after_s=RETRY_S,
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
        # What cannot be is refused before anybody is waited for.
        steps_of(_members(ledger), message.gone, message.added, {})
        await self._hear_all(message.added)
        steps = steps_of(
            _members(ledger), message.gone, message.added, self._watch.storages(JOIN_S)
        )
        # Whoever leads cannot leave: all else first, then another one leads and does it.
        for step in sorted(steps, key=lambda step: ledger.member.node in step.gone):
            if ledger.member.node in step.gone:
                if not ledger.replica.core.others():
                    raise ChangeRefused("the only manager cannot leave: squall group add two first")
                await self._leave(ledger)
                raise NotPrimary(ledger.primary)
            await self._step(ledger, step, message.added)
        config = ledger.replica.core.config
        return MembersChanged(
            epoch=config.epoch if config is not None else 0,
            members=[str(member.node) for member in _members(ledger)],
            repeated=not steps,
        )

    async def _step(self, ledger: GroupLedger, step: Step, added: dict[str, str]) -> None:
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
            await self._clock.sleep(LOOK_AT_HAND_OVER_S)

    async def _hear_all(self, added: dict[str, str]) -> None:
        """Who shall join says first which disk it has."""
        for name, shown in added.items():
            address = address_in(shown)
            if address is None:
                raise ChangeRefused(f"{name}={shown}: write NAME=HOST:PORT")
            if name != self._watch.node:
                self._watch.reach(name, address)
        # Only what is said from now on: a disk may have been wiped a moment ago.
        began = self._clock.now()
        until = began + JOIN_S
        missing = set(added) - {self._watch.node}
        while missing := missing - self._watch.heard_since(began):
            if self._clock.now() >= until:
                name = min(missing)
                raise ChangeRefused(
                    f"{name} does not answer at {added[name]}: start it there with "
                    f"squall manager --name {name} ... --join"
                )
            await self._clock.sleep(LOOK_S / 5)

    async def _joining(
        self, ledger: GroupLedger, step: Step, added: dict[str, str]
    ) -> dict[str, Member]:
        """Those who hold the state, or soon do, and wait to be admitted."""
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
            await self._clock.sleep(LOOK_S / 5)

    def _group(self) -> GroupLedger:
        if not isinstance(self._ledger, GroupLedger):
            alone = isinstance(self._ledger, OneMemberLedger)
            raise RemoteError(ErrorCode.CONFLICT, ALONE if alone else IN_A_STORE)
        return self._ledger

    def _check_leads(self) -> None:
        if not self._ledger.is_primary:
            raise self._committer.answer(NotPrimary(self._ledger.primary))


def _members(ledger: GroupLedger) -> tuple[Member, ...]:
    config = ledger.replica.core.config
    return config.members if config is not None else ()
