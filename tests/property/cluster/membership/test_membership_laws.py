"""Laws of membership that hold for all inputs."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.scenarios.membership.checks import ObserverChecks
from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import (
    Effect,
    OwnIdentity,
    PeerChanged,
    Received,
    SendDatagram,
    State,
)
from squall.cluster.membership.messages import (
    EMBEDDED_MAX,
    Ack,
    Gossip,
    MemberRole,
    Message,
    PeerRecord,
    PeerStatus,
    Ping,
    PingReq,
)
from squall.cluster.membership.parameters import LAN
from squall.cluster.wire.catalogue import CATALOGUE
from squall.runtime.interfaces import BootId, NodeId

NAMES = ("a", "b", "c", "d")
ALIVE, SUSPECT, DEAD, LEFT = PeerStatus


def record(
    name: str, status: PeerStatus, incarnation: int, boot: str = "1", by: tuple[str, ...] = ()
) -> PeerRecord:
    return PeerRecord(
        NodeId(name),
        BootId(boot),
        incarnation,
        status,
        MemberRole.MANAGER,
        (name, 7400),
        tuple(NodeId(node) for node in by) if status is SUSPECT else (),
    )


def core_of(seed: int = 1, name: str = "me", embedded: bytes = b"") -> MembershipCore:
    identity = OwnIdentity(NodeId(name), BootId("1"), MemberRole.MANAGER, (name, 7400))
    return MembershipCore(identity, LAN, Random(seed), 0.0, embedded=embedded)


def pings(effects: list[Effect]) -> list[Ping]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, SendDatagram) and isinstance(effect.message, Ping)
    ]


def confirm(core: MembershipCore, *names: str) -> None:
    for name in names:
        alive = record(name, ALIVE, 0)
        effects = core.handle(Received(Gossip(alive, ())), 0.0)
        for ping in pings(effects):
            core.handle(Received(Ack(ping.seq, alive)), 0.0)


records = st.builds(
    record,
    st.sampled_from(NAMES),
    st.sampled_from(PeerStatus),
    st.integers(0, 3),
    st.just("1"),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(records, max_size=12), st.randoms(use_true_random=False))
def test_the_order_and_repetition_of_records_do_not_matter(
    heard: list[PeerRecord], order: Random
) -> None:
    """Two members that heard the same records, in any order, hold the same."""
    views: list[dict[str, tuple[int, bool]]] = []
    for _ in range(2):
        core = core_of()
        confirm(core, *NAMES)
        for found in heard:
            core.handle(Received(Gossip(record("z", ALIVE, 0), (found,))), 0.0)
        held = {str(view.node): view for view in core.members(0.0)}
        views.append(
            {name: (held[name].incarnation, held[name].state.is_present) for name in NAMES}
        )
        heard = [*heard, *heard]
        order.shuffle(heard)
    assert views[0] == views[1]


steps = st.one_of(
    st.tuples(st.just("hear"), records, st.sampled_from(NAMES)),
    st.tuples(st.just("boot"), records, st.sampled_from(["1", "2", "3"])),
    st.tuples(st.just("answer"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("run"), st.floats(0.01, 4.0), st.none()),
    st.tuples(st.just("stop"), st.floats(0.3, 30.0), st.none()),
)


class Played:
    """A core between peers that do anything at all, under the checks of the simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        self.core = core_of(embedded=b"s" * EMBEDDED_MAX)
        self.checks = ObserverChecks("me", lambda node, boot: False)
        self.asked: list[Ping] = []

    def take(self, effects: list[Effect]) -> None:
        self.checks.stepped(self.core)
        for effect in effects:
            if isinstance(effect, PeerChanged):
                self.checks.changed(effect)
            elif isinstance(effect, SendDatagram):
                CATALOGUE.encode(effect.message)  # raises if it does not fit
                if isinstance(effect.message, Ping):
                    self.asked.append(effect.message)

    def receive(self, message: Message) -> None:
        self.take(self.core.handle(Received(message), self.now))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.core.deadline() <= end:
            self.now = max(self.now, self.core.deadline())
            self.take(self.core.tick(self.now))
        self.now = end

    def play(self, step: tuple[object, ...]) -> None:
        match step:
            case ("hear", PeerRecord() as found, str(by)):
                self.receive(Gossip(record(by, ALIVE, 0), (found,)))
            case ("boot", PeerRecord() as found, str(boot)):
                sender = msgspec.structs.replace(found, boot=BootId(boot))
                self.receive(Ping(1, sender, NodeId("me")))
            case ("answer", int(incarnation), bool(first)) if self.asked:
                ping = self.asked[0 if first else -1]
                if ping.target:
                    self.receive(Ack(ping.seq, record(ping.target, ALIVE, incarnation)))
            case ("run", float(seconds), None):
                self.run(seconds)
            case ("stop", float(seconds), None):
                self.now += seconds
                self.take(self.core.tick(self.now))
            case _:
                pass


OUTRANKS_IN_TURN = [
    ("hear", record("a", ALIVE, 0), "a"),
    ("answer", 0, False),
    ("boot", record("a", ALIVE, 1), "2"),
    ("hear", record("a", ALIVE, 2), "a"),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=30))
@example(OUTRANKS_IN_TURN)
def test_whatever_peers_say_every_transition_follows_from_the_last(
    played: list[tuple[object, ...]],
) -> None:
    member = Played()
    for step in played:
        member.play(step)
    member.run(20.0)
    for view in member.core.members(member.now):
        last = member.checks.states.get((view.node, view.boot))
        assert last is None or last[0] is view.state
        assert view.state is not State.FORGOTTEN


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=128)


@settings(max_examples=60, deadline=None)
@given(st.lists(names.filter(lambda text: len(text.encode()) <= 128), min_size=12, max_size=12))
def test_every_message_fits_a_datagram_whatever_the_names(drawn: list[str]) -> None:
    identity = OwnIdentity(NodeId(drawn[0]), BootId(drawn[1]), MemberRole.GATE, (drawn[2], 65_535))
    core = MembershipCore(identity, LAN, Random(1), 0.0, embedded=b"x" * EMBEDDED_MAX)
    peers = [
        PeerRecord(
            NodeId(f"{name[:20]}{number}"),
            BootId(drawn[3]),
            2**53,
            ALIVE,
            MemberRole.GATE,
            (drawn[4], 65_535),
        )
        for number, name in enumerate(drawn)
    ]
    effects: list[Effect] = []
    for peer in peers:
        for ping in pings(core.handle(Received(Gossip(peer, tuple(peers))), 0.0)):
            effects += core.handle(Received(Ack(ping.seq, peer)), 0.0)
    suspectors = tuple(NodeId(name) for name in drawn[5:9])
    for peer in peers:
        suspect = msgspec.structs.replace(peer, status=SUSPECT, suspectors=suspectors)
        effects += core.handle(Received(Ping(9, peers[0], identity.node, gossip=(suspect,))), 0.0)
    effects += core.handle(Received(PingReq(5, peers[0], peers[1], 0.5)), 0.0)
    now = 0.0
    while now < 8.0:
        now = core.deadline()
        effects += core.tick(now)
    sizes = [
        len(CATALOGUE.encode(effect.message)[1])
        for effect in effects
        if isinstance(effect, SendDatagram)
    ]
    assert len(sizes) > 20
    assert max(sizes) <= 1_024
