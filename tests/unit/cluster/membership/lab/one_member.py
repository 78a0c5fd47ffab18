"""A core under test. The test writes the messages of its peers and reads its effects."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import (
    Cause,
    Effect,
    Event,
    OwnIdentity,
    PeerChanged,
    PeerView,
    Received,
    Seed,
    SendDatagram,
    State,
)
from squall.cluster.membership.messages import (
    Ack,
    Gossip,
    MemberRole,
    Message,
    Nack,
    PeerRecord,
    PeerStatus,
    Ping,
    PingReq,
)
from squall.cluster.membership.parameters import LAN, Parameters
from squall.runtime.interfaces import Address, BootId, NodeId

M = TypeVar("M")
OWN = "me"
Step = tuple[str, State | None, State, Cause]


def address_of(name: str) -> Address:
    return f"10.1.0.{sum(name.encode()) % 250 + 1}", 7400


def record(
    name: str,
    status: PeerStatus = PeerStatus.ALIVE,
    incarnation: int = 0,
    *by: str,
    boot: str = "1",
    role: MemberRole = MemberRole.MANAGER,
) -> PeerRecord:
    return PeerRecord(
        NodeId(name),
        BootId(f"{name}-{boot}"),
        incarnation,
        status,
        role,
        address_of(name),
        tuple(NodeId(node) for node in by),
    )


class OneMember:
    """The core of the member "me", at a time that the test moves."""

    def __init__(
        self,
        *,
        parameters: Parameters = LAN,
        seeds: tuple[Seed, ...] = (),
        embedded: bytes = b"",
        seed: int = 1,
    ) -> None:
        self.now = 100.0
        identity = OwnIdentity(NodeId(OWN), BootId(f"{OWN}-1"), MemberRole.MANAGER, address_of(OWN))
        self.core = MembershipCore(
            identity, parameters, Random(seed), self.now, seeds=seeds, embedded=embedded
        )
        self.effects: list[Effect] = []
        self.answering: set[str] = set()
        """Peers that answer every ping at once."""
        self._sequences = 1_000_000

    def handle(self, event: Event) -> list[Effect]:
        return self._took(self.core.handle(event, self.now))

    def receive(self, message: Message) -> list[Effect]:
        return self.handle(Received(message))

    def hear(self, *records: PeerRecord, by: str = "gossip") -> list[Effect]:
        """Records in a message from a peer."""
        return self.receive(Gossip(record(by), records))

    def ping(self, sender: PeerRecord, *gossip: PeerRecord, **fields: object) -> Ack:
        """A ping from a peer; the value is what it gets back."""
        self._sequences += 1
        effects = self.receive(
            Ping(self._sequences, sender, NodeId(OWN), gossip=gossip, **fields)  # pyright: ignore[reportArgumentType]
        )
        (ack,) = [ack for ack in sent(effects, Ack) if ack.seq == self._sequences]
        return ack

    def confirm(self, *names: str, role: MemberRole = MemberRole.MANAGER) -> None:
        """Lets peers appear and answer the ping that they get; they go on answering."""
        for name in names:
            self.answering.add(name)
            self.receive(Ping(1, record(name, role=role), NodeId(OWN)))
            assert self.state(name) is State.ALIVE

    def run(self, seconds: float) -> list[Effect]:
        """Ticks whenever the core wants to."""
        end, began = self.now + seconds, len(self.effects)
        while self.core.deadline() <= end:
            self.now = max(self.now, self.core.deadline())
            self._took(self.core.tick(self.now))
        self.now = end
        return self.effects[began:]

    def stand_still(self, seconds: float) -> list[Effect]:
        """The process is stopped, then its timers run."""
        self.now += seconds
        return self._took(self.core.tick(self.now))

    def view(self, name: str) -> PeerView:
        found = self.core.member(NodeId(name), self.now)
        assert found is not None
        return found

    def state(self, name: str) -> State | None:
        found = self.core.member(NodeId(name), self.now)
        return None if found is None else found.state

    def steps(self, name: str) -> list[Step]:
        """All transitions of a peer so far."""
        return [
            (str(effect.member.boot), effect.before, effect.after, effect.cause)
            for effect in self.effects
            if isinstance(effect, PeerChanged) and effect.member.node == name
        ]

    def _took(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        for effect in list(effects):
            if not isinstance(effect, SendDatagram) or not isinstance(effect.message, Ping):
                continue
            name = next((name for name in self.answering if address_of(name) == effect.to), "")
            if name:
                own = effect.message.gossip
                raised = [it.incarnation + 1 for it in own if it.node == name and it.status]
                answer = record(name, incarnation=max([*raised, self._incarnation(name)]))
                self._took(self.core.handle(Received(Ack(effect.message.seq, answer)), self.now))
        return effects

    def _incarnation(self, name: str) -> int:
        found = self.core.member(NodeId(name), self.now)
        return 0 if found is None else found.incarnation


def sent(effects: list[Effect], kind: type[M]) -> list[M]:
    """The messages of one kind."""
    return [
        effect.message
        for effect in effects
        if isinstance(effect, SendDatagram) and isinstance(effect.message, kind)
    ]


def pings_to(effects: list[Effect], name: str) -> list[Ping]:
    return [ping for ping in sent(effects, Ping) if ping.target == name]


def asked(effects: list[Effect]) -> list[PingReq]:
    return sent(effects, PingReq)


def nack(request: PingReq, proxy: str) -> Nack:
    return Nack(request.seq, record(proxy))
