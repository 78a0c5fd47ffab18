"""View change: the members elect the next primary and choose its log.

A candidate first asks whether a quorum would vote for it (pre-vote, which changes nothing). It
then promises the smallest higher view that belongs to it, stores the promise, and asks for
votes. A voter stores the promise before it answers (R11). It refuses while it hears its primary,
unless that primary asked for a hand-over. The log with the highest last-normal (epoch, view)
wins, then the longest. The candidate fetches that log if it is not its own, stores it as the log
of the new view, and only then sends StartView. It keeps uncommitted entries: they may be
committed without its knowledge.

Disks may be slower than the timers. A member whose promise is not durable yet asks for no other
view; its wait starts when the disk is done. A voter reports at once that its disk is writing the
vote, and the candidate waits for it, up to twice sync_limit_s.

Each view belongs to one member. A member never acts again in a view that it led before a
restart; it takes a higher one (R2).
"""

from __future__ import annotations

from squall.cluster.ledger.interface import Fence
from squall.cluster.ledger.replica.catch_up import Target, Transfer
from squall.cluster.ledger.replica.effects import ClockTaken
from squall.cluster.ledger.replica.group_clock import continued_from
from squall.cluster.ledger.replica.heartbeat_rounds import Rounds
from squall.cluster.ledger.replica.messages import (
    AskView,
    Heartbeat,
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
from squall.cluster.ledger.replica.normal_operation import Normal
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.replica.types import Member, Status
from squall.runtime.interfaces import BootId

NO_BOOT = BootId("")


class ViewChanges:
    """Stands for views, votes for other candidates, and installs the log of a new view."""

    def __init__(self, core: Core, normal: Normal, rounds: Rounds, transfer: Transfer) -> None:
        self._core = core
        self._normal = normal
        self._rounds = rounds
        self._transfer = transfer
        # The view that the present pre-vote asks for; 0 if there is none.
        self._wanted = 0
        # Number of the last pre-vote of this boot. An agreement to an earlier one does not
        # count: the member that gave it may hear its primary again.
        self._asks = 0
        # Members that agreed to pre-vote `_asks`, itself included.
        self._agreed: set[Member] = set()
        # As a candidate: the votes for `core.fence`, its own included.
        self._votes: dict[Member, Vote] = {}
        self._is_candidate = False
        # The former primary asked for this change, so voters agree while they still hear it.
        self._is_hand_over = False
        # When the candidate asks the members that have not voted again.
        self._resend_at = 0.0
        # Until then the candidate waits for voters whose disks are still writing the vote.
        self._vote_deadline = 0.0
        # A quorum has voted, and the chosen log is being fetched or installed.
        self._chosen = False

    # Time.

    def tick(self) -> None:
        """Called only while this member does not lead."""
        core = self._core
        if core.mending:
            return
        if core.now >= core.election_at and core.promise_is_durable():
            self.stand()
        elif self._is_candidate and not self._chosen and core.now >= self._resend_at:
            self._ask_for_votes()

    def stand(self) -> None:
        """Starts a pre-vote for the next view that belongs to this member."""
        core = self._core
        config = core.config
        if config is None or not core.is_member:
            return
        core.restart_election_timer()
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
        """Ends a pre-vote or candidacy because the fence changed."""
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
        # The primary came back while the pre-vote was out: the view may continue.
        if self._core.hears_primary():
            return
        self._agreed.add(packet.sender)
        if len(self._agreed) >= self._core.quorum:
            self._campaign()

    def take_over(self, packet: Packet, request: TakeOver) -> None:
        """Campaigns at the primary's request, if this log ends where the primary's does."""
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
        core.restart_election_timer()
        self._is_candidate = True
        self._is_hand_over = hand_over
        self._vote_deadline = core.now + 2.0 * core.timers.sync_limit_s
        self._ask_for_votes()
        self._votes[core.me] = self._own_vote()
        self._choose()

    def _ask_for_votes(self) -> None:
        core = self._core
        self._resend_at = core.now + core.timers.heartbeat_s
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
        """Extends the wait for a voter whose disk is slow. Asking for another view would only
        give that disk another promise to write."""
        core = self._core
        if not self._is_candidate or packet.fence != core.fence or self._chosen:
            return
        if core.counts(packet.sender) and core.now < self._vote_deadline:
            core.restart_election_timer()

    def _choose(self) -> None:
        core = self._core
        # The candidate's own vote counts only once its promise is durable (R11).
        if len(self._votes) < core.quorum or core.durable < self.promise_after():
            return
        self._chosen = True
        # Its log may have grown by committed entries since it voted.
        self._votes[core.me] = self._own_vote()
        best = max(self._votes, key=lambda member: (self.rank(member), member == core.me))
        vote = self._votes[best]
        commit = max(each.commit for each in self._votes.values())
        target = Target(core.fence, vote.op, vote.checksum, best.node, vote.commit, commit)
        self._transfer.adopt(target, self._lead)

    def rank(self, member: Member) -> tuple[Fence, int]:
        """Orders logs by their last-normal fence first, then by length. A longer log of an
        older view may lack committed entries."""
        vote = self._votes[member]
        return (vote.last_normal, vote.op)

    def _lead(self) -> None:
        """Starts to lead: the chosen log is installed as the log of the view."""
        core = self._core
        group_ms, all_restarted = self.clock_from(list(self._votes.values()))
        core.clock.observe(group_ms, core.now)
        core.effects.append(ClockTaken(core.clock.read(core.now), all_restarted))
        self.forget()
        self._normal.lead()
        core.send(core.others(), self._start_view(), after=core.promised)
        self._rounds.lead()

    def clock_from(self, votes: list[Vote]) -> tuple[int, bool]:
        return continued_from(votes)

    def _start_view(self, asked: BootId = NO_BOOT) -> StartView:
        core = self._core
        group_ms = core.clock.read(core.now)
        return StartView(core.log.last, core.log.end(), core.commit, group_ms, asked)

    def ask_view(self, packet: Packet) -> None:
        core = self._core
        if core.leading and packet.fence <= core.fence:
            core.send(packet.sender.node, self._start_view(packet.boot), after=core.promised)

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
            # A candidate that was cut off must not end a view that works (R2).
            if core.hears_primary() and not ask.hand_over:
                return
            self._transfer.cancel()
            self.forget()
            core.promise(packet.fence)
            core.restart_election_timer()
        elif packet.fence < core.fence:
            core.send(packet.sender.node, Newer())
            return
        if core.status is Status.VIEW_CHANGE:
            if not core.promise_is_durable():
                core.send(packet.sender.node, VoteComing())
            core.send(packet.sender.node, self._own_vote(), after=self.promise_after())

    def promise_after(self) -> int:
        """Returns the record to wait for: a vote leaves only when its promise is durable (R11)."""
        return self._core.promised

    def _may_vote(self, candidate: Member, view: int) -> bool:
        core = self._core
        # A member with a hole in its log could elect a log that lacks committed entries (R2).
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
        """Adopts the log of a new view, once; a late or repeated StartView changes nothing."""
        core = self._core
        if core.config is None or core.config.primary(packet.fence.view) != packet.sender:
            return
        if not core.is_member or not self.is_new(packet.fence):
            return
        if core.mending and packet.fence == core.fence and start.asked != core.boot:
            # This member may have acknowledged entries of this view that it has lost. Only a
            # StartView made after this boot asked is sure to name them (R2).
            return
        core.heard_primary(start.commit)
        core.clock.observe(start.group_ms, core.now)
        source, commit = packet.sender.node, start.commit
        target = Target(packet.fence, start.op, start.checksum, source, commit, commit)
        self._transfer.adopt(target, self._follow)

    def is_new(self, fence: Fence) -> bool:
        core = self._core
        return fence > core.fence or (fence == core.fence and core.status is Status.VIEW_CHANGE)

    def ask_for_view(self, packet: Packet, heartbeat: Heartbeat) -> None:
        """Asks for StartView after a heartbeat from the primary of a view it has not entered."""
        core = self._core
        if core.config is None or core.config.primary(packet.fence.view) != packet.sender:
            return
        core.heard_primary(heartbeat.commit)
        if not self._transfer.is_adopting(packet.fence):
            core.send(packet.sender.node, AskView())

    def _follow(self) -> None:
        core = self._core
        self.forget()
        core.heard_primary()
        self._normal.acknowledge_log()
