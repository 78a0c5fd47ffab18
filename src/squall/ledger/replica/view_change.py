"""View change: who leads next, and with which log.

A candidate first asks whether a quorum would vote (pre-vote, changes nothing), promises
the smallest higher view that is its own, persists that, and asks for votes. A voter
persists the promise before it answers, and refuses while it hears its primary, unless the
primary itself asked for the hand-over. The log with the highest last-normal (epoch, view)
wins, then the longest; the candidate fetches it if it is not its own, stores it as the
log of the new view, and only then sends StartView. Nothing is dropped for being
uncommitted.

Disks may be slower than the timers. A member whose promise is not durable yet asks for no
other view; its wait begins when the disk is done. A voter says at once that its vote is
being written, and the candidate waits for it, up to twice sync_limit.

A view belongs to one member, and a member never acts again in a view that it led before
a restart: it takes a higher one.
"""

from __future__ import annotations

from squall.ledger.interface import Fence, GroupMs
from squall.ledger.replica.clock import continued_from
from squall.ledger.replica.effects import ClockTaken
from squall.ledger.replica.messages import (
    AskView,
    Newer,
    Packet,
    PreVote,
    PreVoteOk,
    StartView,
    TakeOver,
    ViewChange,
    Vote,
    VoteComing,
)
from squall.ledger.replica.normal import Normal
from squall.ledger.replica.reads import Rounds
from squall.ledger.replica.state import Core
from squall.ledger.replica.transfer import Target, Transfer
from squall.ledger.replica.types import Member, Status


class ViewChanges:
    def __init__(self, core: Core, normal: Normal, rounds: Rounds, transfer: Transfer) -> None:
        self._core = core
        self._normal = normal
        self._rounds = rounds
        self._transfer = transfer
        self._wanted = 0
        """The view of a pre-vote under way; 0: none."""
        self._asks = 0
        """Pre-votes of this boot: who agreed to an earlier one may hear its primary again."""
        self._agreed: set[Member] = set()
        self._votes: dict[Member, Vote] = {}
        self._is_candidate = False
        self._is_hand_over = False
        self._again_at = 0.0
        self._patient_until = 0.0
        """So long a candidate waits for the disks of voters that say they write."""
        self._chosen = False

    # Time.

    def tick(self) -> None:
        """Of a member that does not lead."""
        core = self._core
        if core.mending:
            return
        if core.now >= core.election_at and core.promise_is_durable():
            self.stand()
        elif self._is_candidate and not self._chosen and core.now >= self._again_at:
            self._ask_for_votes()

    def stand(self) -> None:
        """Asks whether it would be voted for."""
        core = self._core
        config = core.config
        if config is None or not core.is_member:
            return
        core.wait_anew()
        self._is_candidate = False
        self._is_hand_over = False
        self._wanted = config.next_view(max(core.highest_view, core.fence.view), core.me)
        self._asks += 1
        self._agreed = {core.me}
        if len(self._agreed) >= core.quorum:
            self._campaign()
        else:
            core.send(core.others(), PreVote(self._wanted, self._asks))

    def forget(self) -> None:
        """The fence changed: what was under way is over."""
        self._wanted = 0
        self._agreed.clear()
        self._votes.clear()
        self._is_candidate = False
        self._chosen = False

    # The candidate.

    def agreed(self, packet: Packet, answer: PreVoteOk) -> None:
        if answer.view != self._wanted or not self._core.counts(packet.sender):
            return
        if answer.ask != self._asks:
            return
        if self._core.hears_primary():
            return
        self._agreed.add(packet.sender)
        if len(self._agreed) >= self._core.quorum:
            self._campaign()

    def take_over(self, packet: Packet, request: TakeOver) -> None:
        """The primary wants this member to lead, now."""
        core = self._core
        config = core.config
        if config is None or not self._normal.accepts(packet):
            return
        if core.log.last != request.op or core.log.end() != request.checksum:
            return
        self._wanted = config.next_view(max(core.highest_view, core.fence.view), core.me)
        self._is_hand_over = True
        self._campaign()

    def _campaign(self) -> None:
        core = self._core
        hand_over = self._is_hand_over
        view = self._wanted
        self._transfer.cancel()
        self.forget()
        core.promise(Fence(core.fence.epoch, view))
        core.wait_anew()
        self._is_candidate = True
        self._is_hand_over = hand_over
        self._patient_until = core.now + 2.0 * core.timers.sync_limit_s
        self._ask_for_votes()
        self._votes[core.me] = self._own_vote()
        self._choose()

    def _ask_for_votes(self) -> None:
        core = self._core
        self._again_at = core.now + core.timers.heartbeat_s
        missing = tuple(
            member.node
            for member in (core.config.members if core.config else ())
            if member != core.me and member not in self._votes
        )
        core.send(missing, ViewChange(self._is_hand_over), after=self.promise_after())

    def voted(self, packet: Packet, vote: Vote) -> None:
        core = self._core
        if not self._is_candidate or packet.fence != core.fence or self._chosen:
            return
        if core.counts(packet.sender):
            self._votes[packet.sender] = vote
            self._choose()

    def own_promise_durable(self) -> None:
        if self._is_candidate and not self._chosen:
            self._choose()

    def vote_coming(self, packet: Packet) -> None:
        """A voter's disk takes longer than the timers have it: asking for yet another view
        would only give that disk another promise to write."""
        core = self._core
        if not self._is_candidate or packet.fence != core.fence or self._chosen:
            return
        if core.counts(packet.sender) and core.now < self._patient_until:
            core.wait_anew()

    def _choose(self) -> None:
        core = self._core
        if len(self._votes) < core.quorum or core.durable < self.promise_after():
            return
        self._chosen = True
        self._votes[core.me] = self._own_vote()
        best = max(self._votes, key=lambda member: (self.rank(member), member == core.me))
        vote = self._votes[best]
        commit = max(each.commit for each in self._votes.values())
        target = Target(core.fence, vote.op, vote.checksum, best.node, vote.commit, commit)
        self._transfer.adopt(target, self._lead)

    def rank(self, member: Member) -> tuple[Fence, int]:
        """Which log is that of the latest view; only then its length."""
        vote = self._votes[member]
        return (vote.last_normal, vote.op)

    def _lead(self) -> None:
        """The chosen log is installed here as that of the view."""
        core = self._core
        group_ms, all_restarted = self.clock_from(list(self._votes.values()))
        core.clock.hear(group_ms, core.now)
        core.effects.append(ClockTaken(GroupMs(core.clock.read(core.now)), all_restarted))
        self.forget()
        self._normal.lead()
        core.send(core.others(), self._start_view(), after=core.promised)
        self._rounds.lead()

    def clock_from(self, votes: list[Vote]) -> tuple[int, bool]:
        return continued_from(votes)

    def _start_view(self) -> StartView:
        core = self._core
        return StartView(core.log.last, core.log.end(), core.commit, core.clock.read(core.now))

    def ask_view(self, packet: Packet) -> None:
        core = self._core
        if core.leading and packet.fence <= core.fence:
            core.send(packet.sender.node, self._start_view(), after=core.promised)

    # The voter.

    def pre_vote(self, packet: Packet, ask: PreVote) -> None:
        core = self._core
        if not self._may_vote(packet.sender, ask.view):
            return
        if ask.view <= core.fence.view:
            core.send(packet.sender.node, Newer())
        elif not core.hears_primary():
            core.send(packet.sender.node, PreVoteOk(ask.view, ask.ask))

    def view_change(self, packet: Packet, ask: ViewChange) -> None:
        core = self._core
        view = packet.fence.view
        if not self._may_vote(packet.sender, view):
            return
        if packet.fence > core.fence:
            if core.hears_primary() and not ask.hand_over:
                return
            self._transfer.cancel()
            self.forget()
            core.promise(packet.fence)
            core.wait_anew()
        elif packet.fence < core.fence:
            core.send(packet.sender.node, Newer())
            return
        if core.status is Status.VIEW_CHANGE:
            if not core.promise_is_durable():
                core.send(packet.sender.node, VoteComing())
            core.send(packet.sender.node, self._own_vote(), after=self.promise_after())

    def promise_after(self) -> int:
        """A vote is shown only when the promise in it is durable."""
        return self._core.promised

    def _may_vote(self, candidate: Member, view: int) -> bool:
        core = self._core
        if core.config is None or not core.is_member or core.mending:
            return False
        return core.counts(candidate) and core.config.primary(view) == candidate

    def _own_vote(self) -> Vote:
        core = self._core
        return Vote(
            core.last_normal,
            core.log.last,
            core.log.end(),
            core.commit,
            core.clock.read(core.now),
            not core.clock.is_heard,
            core.clock.away_ms,
        )

    # A follower of the new view.

    def start_view(self, packet: Packet, start: StartView) -> None:
        """Once per view: a late or repeated one changes nothing."""
        core = self._core
        if core.config is None or core.config.primary(packet.fence.view) != packet.sender:
            return
        if not core.is_member or not self.is_new(packet.fence):
            return
        core.heard_primary()
        core.clock.hear(start.group_ms, core.now)
        source, commit = packet.sender.node, start.commit
        target = Target(packet.fence, start.op, start.checksum, source, commit, commit)
        self._transfer.adopt(target, self._follow)

    def is_new(self, fence: Fence) -> bool:
        core = self._core
        return fence > core.fence or (fence == core.fence and core.status is Status.VIEW_CHANGE)

    def ask_for_view(self, packet: Packet) -> None:
        """A primary of a view that this member is not in was heard."""
        core = self._core
        if core.config is None or core.config.primary(packet.fence.view) != packet.sender:
            return
        core.heard_primary()
        if not self._transfer.is_adopting(packet.fence):
            core.send(packet.sender.node, AskView())

    def _follow(self) -> None:
        core = self._core
        self.forget()
        core.heard_primary()
        self._normal.acknowledge_log()
