"""A register that a majority keeps, under one leader per term: the toy protocol's core.

It exists to prove the simulator: small enough to be read at once, real enough to have
the classic bugs, each of which can be switched on as a mutant.

State of a member: `term`, the highest it promised; `voted_for`, the candidate it
promised it to; `accepted`, the newest (term, version, value) it stored. All three are
durable before anything that reveals them leaves the node.

A candidate that persisted its new term asks all; a member that promises answers with
what it accepted. With a majority of distinct voters the candidate leads, takes the
newest accepted value, and stores it again in its own term. Every Store opens a round; a
round that a majority acknowledged confirms the leader and commits its version.

Invariants: one leader per term; one value per committed version; a member's term never
falls, not even by a restart.

Plain code: messages and wishes in, ordered effects out. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

MUTANTS = {
    "forget_vote": "a restarted member forgets for whom it voted",
    "vote_twice": "a member votes for every candidate of a term",
    "ack_before_sync": "votes and acknowledgments leave before they are durable",
    "count_duplicates": "a repeated answer counts as another member's",
    "stale_leader": "a member stores what a leader of an older term sends",
    "small_quorum": "half of the members count as a majority",
    "ignore_accepted": "a new leader takes its own value instead of the newest",
    "no_directory_sync": "the name of the vote file is never made durable",
}


class Accepted(NamedTuple):
    term: int
    version: int
    value: bytes


NOTHING = Accepted(0, 0, b"")


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """What a member must not forget."""

    term: int = 0
    voted_for: str = ""
    accepted: Accepted = NOTHING


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    term: int
    sender: str


class Vote(msgspec.Struct, frozen=True, tag="vote"):
    term: int
    sender: str
    accepted: Accepted


class Store(msgspec.Struct, frozen=True, tag="store"):
    term: int
    sender: str
    round: int
    version: int
    value: bytes


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    term: int
    sender: str
    round: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    term: int
    sender: str


Message = Ask | Vote | Store | Stored | Refused


@dataclass(frozen=True, slots=True)
class Persist:
    """Everything after this in the effects waits until it is durable."""

    saved: Saved


@dataclass(frozen=True, slots=True)
class Send:
    to: str
    message: Message
    at_once: bool = False
    """Reveals no promise, so it need not wait for anything to be durable."""


@dataclass(frozen=True, slots=True)
class Led:
    """This member leads `term` and starts from `accepted`."""

    term: int
    accepted: Accepted


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A majority acknowledged `round`, so `version` is committed."""

    term: int
    round: int
    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Followed:
    """A leader was heard."""

    leader: str


Effect = Persist | Send | Led | Confirmed | Followed


class Replica:
    """One member."""

    def __init__(
        self, me: str, members: Sequence[str], saved: Saved, mutant: str | None = None
    ) -> None:
        self.me = me
        self.members = sorted(members)
        self.term = saved.term
        self.voted_for = saved.voted_for
        self.accepted = saved.accepted
        self.leads = False
        self.round = 0
        self._mutant = mutant
        self._quorum = len(self.members) // 2 + (mutant != "small_quorum")
        self._highest_seen = saved.term
        self._asking = False
        self._votes: list[Vote] = []
        self._proposal = NOTHING
        self._acks: dict[int, list[str]] = {}
        self._rounds: dict[int, Accepted] = {}
        self._effects: list[Effect] = []

    # Wishes of the node around it.

    def campaign(self) -> list[Effect]:
        """Tries to lead the next term."""
        self.leads = False
        self._asking = True
        self._votes.clear()
        self.term = max(self.term, self._highest_seen) + 1
        self.voted_for = self.me
        self._persist()
        self._broadcast(Ask(self.term, self.me))
        return self._taken()

    def ask_again(self) -> list[Effect]:
        """A candidate repeats its question to those that have not answered."""
        if self._asking:
            answered = {vote.sender for vote in self._votes}
            for member in self.members:
                if member not in answered:
                    self._send(member, Ask(self.term, self.me))
        return self._taken()

    def propose(self, value: bytes) -> list[Effect]:
        """Replaces the value; only a leader may."""
        if self.leads:
            version = self._proposal.version + 1
            self._proposal = Accepted(self.term, version, value)
            self._open_round()
        return self._taken()

    def open_round(self) -> list[Effect]:
        """Asks a majority to confirm the leader; `round` is its number."""
        if self.leads:
            self._open_round()
        return self._taken()

    def handle(self, message: Message) -> list[Effect]:
        self._highest_seen = max(self._highest_seen, message.term)
        match message:
            case Ask():
                self._asked(message)
            case Vote():
                self._voted(message)
            case Store():
                self._store(message)
            case Stored():
                self._stored(message)
            case Refused():
                if message.term > self.term:
                    self.leads = self._asking = False
        return self._taken()

    # As a member.

    def _asked(self, ask: Ask) -> None:
        if ask.term > self.term or (ask.term == self.term and not self.voted_for):
            self._follow(ask.term, ask.sender)
            self._persist()
        repeated = ask.term == self.term and self.voted_for == ask.sender
        if repeated or (self._mutant == "vote_twice" and ask.term == self.term):
            self._send(ask.sender, Vote(self.term, self.me, self.accepted))
        else:
            self._send(ask.sender, Refused(self.term, self.me))

    def _store(self, store: Store) -> None:
        if store.term < self.term and self._mutant != "stale_leader":
            self._send(store.sender, Refused(self.term, self.me))
            return
        if store.term > self.term:
            self._follow(store.term, store.sender)
            self._persist()
        newer = (store.term, store.version) > self.accepted[:2]
        if newer or store.term < self.accepted.term:
            self.accepted = Accepted(store.term, store.version, store.value)
            self._persist()
        if store.sender != self.me:
            self._asking = False
        self._effects.append(Followed(store.sender))
        self._send(store.sender, Stored(store.term, self.me, store.round))

    def _follow(self, term: int, candidate: str) -> None:
        self.term = term
        self.voted_for = candidate
        self.leads = self.leads and candidate == self.me
        self._asking = self._asking and candidate == self.me

    # As a candidate and leader.

    def _voted(self, vote: Vote) -> None:
        if not self._asking or vote.term != self.term:
            return
        known = any(other.sender == vote.sender for other in self._votes)
        if not known or self._mutant == "count_duplicates":
            self._votes.append(vote)
        if len(self._votes) < self._quorum:
            return
        newest = max(vote.accepted for vote in self._votes)
        if self._mutant == "ignore_accepted":
            newest = self.accepted
        self._asking = False
        self.leads = True
        self.round = 0
        self._acks.clear()
        self._rounds.clear()
        self._proposal = Accepted(self.term, newest.version, newest.value)
        self._effects.append(Led(self.term, self._proposal))
        self._open_round()

    def _open_round(self) -> None:
        self.round += 1
        self._rounds[self.round] = self._proposal
        self._acks[self.round] = []
        version, value = self._proposal.version, self._proposal.value
        self._broadcast(Store(self.term, self.me, self.round, version, value), at_once=True)

    def _stored(self, stored: Stored) -> None:
        acks = self._acks.get(stored.round)
        if not self.leads or stored.term != self.term or acks is None:
            return
        if stored.sender not in acks or self._mutant == "count_duplicates":
            acks.append(stored.sender)
        if len(acks) < self._quorum:
            return
        _, version, value = self._rounds[stored.round]
        for number in [number for number in self._acks if number <= stored.round]:
            del self._acks[number], self._rounds[number]
        self._effects.append(Confirmed(self.term, stored.round, version, value))

    # Effects.

    def _persist(self) -> None:
        self._effects.append(Persist(Saved(self.term, self.voted_for, self.accepted)))

    def _send(self, to: str, message: Message, *, at_once: bool = False) -> None:
        self._effects.append(Send(to, message, at_once))

    def _broadcast(self, message: Message, *, at_once: bool = False) -> None:
        for member in self.members:
            self._send(member, message, at_once=at_once)

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
