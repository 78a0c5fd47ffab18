"""Seeds, unconfirmed peers, the dead, restarts and leaving."""

from __future__ import annotations

from dataclasses import replace

import pytest

from squall.cluster.membership.effects import (
    Cause,
    LeaveRequested,
    NameTaken,
    Seed,
    SeedsChanged,
    SendDatagram,
    SendSync,
    Silent,
    State,
)
from squall.cluster.membership.messages import (
    Ack,
    Gossip,
    MemberRole,
    PeerStatus,
    Ping,
    Sync,
)
from squall.cluster.membership.parameters import CONFIRMATIONS, LAN
from squall.runtime.interfaces import BootId
from tests.unit.cluster.membership.lab.one_member import (
    OWN,
    OneMember,
    address_of,
    pings_to,
    record,
    sent,
)

ALIVE, SUSPECT, DEAD, LEFT = PeerStatus


def seed_pings(member: OneMember, seconds: float, name: str) -> list[Ping]:
    effects = member.run(seconds)
    return [
        effect.message
        for effect in effects
        if isinstance(effect, SendDatagram)
        and isinstance(effect.message, Ping)
        and effect.to == address_of(name)
    ]


def test_a_seed_is_probed_for_ever_and_reported_once() -> None:
    member = OneMember(seeds=(Seed(address_of("late")),))
    assert len(seed_pings(member, 65.0, "late")) >= 6
    silent = [effect for effect in member.effects if isinstance(effect, Silent)]
    assert [(warning.address, warning.is_heard) for warning in silent] == [
        (address_of("late"), False)
    ]
    pings = seed_pings(member, 3600.0, "late")
    assert len(pings) > 200
    assert member.core.members(member.now) == []
    member.receive(Ack(seed_pings(member, 12.0, "late")[-1].seq, record("late")))
    member.answering.add("late")
    member.run(12.0)
    assert member.steps("late")[-1][2] is State.ALIVE
    assert [effect for effect in member.effects if isinstance(effect, Silent)] == silent


def test_the_own_address_is_no_seed() -> None:
    member = OneMember(seeds=(Seed(address_of(OWN)),))
    assert sent(member.run(30.0), Ping) == []


def test_new_seeds_are_asked_at_the_next_look() -> None:
    member = OneMember()
    member.run(5.0)
    member.handle(SeedsChanged((Seed(address_of("a")),)))
    assert seed_pings(member, 1.1, "a")


def test_a_newcomer_compares_its_view_with_the_first_member_it_meets() -> None:
    member = OneMember()
    member.confirm("a")
    first = [effect for effect in member.effects if isinstance(effect, SendSync)]
    assert [effect.node for effect in first] == ["a"]
    assert first[0].message.records == ()


@pytest.mark.parametrize("role", MemberRole)
def test_a_peer_that_only_gossip_named_is_forgotten_without_a_suspicion(role: MemberRole) -> None:
    member = OneMember()
    member.confirm("b")
    member.hear(record("ghost", role=role), by="b")
    total = CONFIRMATIONS[role].total_s
    member.run(total - 2.0)
    assert member.state("ghost") is State.UNCONFIRMED
    member.run(4.0)
    assert member.state("ghost") is None
    assert [after for _, _, after, _ in member.steps("ghost")] == [
        State.UNCONFIRMED,
        State.FORGOTTEN,
    ]
    member.hear(record("ghost", role=role), by="b")
    assert member.state("ghost") is None, "gossip alone does not bring it back"
    member.receive(Ping(5, record("ghost", role=role), record(OWN).node))
    assert member.state("ghost") is State.UNCONFIRMED, "its own word does"


def test_a_peer_that_gossip_named_too_early_is_alive_as_soon_as_it_begins() -> None:
    member = OneMember()
    member.confirm("b")
    member.hear(record("late"), by="b")
    member.run(60.0)
    member.confirm("late")
    member.run(2 * CONFIRMATIONS[MemberRole.MANAGER].total_s)
    assert [after for _, _, after, _ in member.steps("late")] == [State.UNCONFIRMED, State.ALIVE]


def test_a_peer_that_is_heard_but_does_not_answer_stays_unconfirmed() -> None:
    member = OneMember()
    for _ in range(100):
        member.receive(Ping(5, record("deaf"), record(OWN).node))
        member.run(3.0)
    assert member.state("deaf") is State.UNCONFIRMED
    assert [effect.is_heard for effect in member.effects if isinstance(effect, Silent)] == [True]
    member.run(1.0)
    member.confirm("deaf")


def test_an_unconfirmed_peer_is_not_passed_on() -> None:
    member = OneMember()
    member.confirm("b")
    member.run(30.0)
    member.effects.clear()
    member.hear(record("ghost"), by="b")
    member.run(10.0)
    assert [
        gossip
        for message in (*sent(member.effects, Gossip), *sent(member.effects, Ping))
        for gossip in message.gossip
        if gossip.node == "ghost"
    ] == []


def test_a_death_of_an_unconfirmed_peer_leaves_a_tombstone() -> None:
    member = OneMember()
    member.hear(record("x"), by="b")
    member.hear(record("x", DEAD, 0), by="b")
    member.hear(record("x", ALIVE, 0), by="c")
    assert member.state("x") is State.DEAD
    member.hear(record("y", DEAD, 3), by="b")
    member.hear(record("y", ALIVE, 2), by="c")
    assert member.state("y") is State.DEAD
    assert member.steps("y") == [], "it was never here"


def test_the_dead_are_probed_again_and_come_back_with_a_refutation() -> None:
    member = OneMember()
    member.confirm("a", "b")
    member.answering.discard("a")
    member.hear(record("a", DEAD, 0), by="b")
    member.effects.clear()
    member.run(60.0)
    pings = pings_to(member.effects, "a")
    assert len(pings) >= 15, "at least every four seconds"
    assert pings[0].gossip[0].status is DEAD, "it hears what is said of it"
    member.answering.add("a")
    member.run(5.0)
    assert member.steps("a")[-1][1:3] == (State.DEAD, State.ALIVE)


def test_a_member_that_died_again_unnoticed_is_reported_once() -> None:
    member = OneMember()
    member.confirm("a", "b")
    member.answering.discard("a")
    for incarnation in range(3):
        member.hear(record("a", DEAD, incarnation), by="b")
    assert [after for _, _, after, _ in member.steps("a")][-2:] == [State.ALIVE, State.DEAD]
    member.hear(record("a", ALIVE, 2), by="b")
    assert member.state("a") is State.DEAD


def test_a_left_member_is_not_probed() -> None:
    member = OneMember()
    member.confirm("a", "b")
    member.ping(record("a", LEFT, 0))
    assert member.steps("a")[-1] == ("a-1", State.ALIVE, State.LEFT, Cause.LEAVE)
    assert member.core.counters.leaves == 1
    member.effects.clear()
    member.run(60.0)
    assert pings_to(member.effects, "a") == []


def test_tombstones_end() -> None:
    member = OneMember(parameters=replace(LAN, dead_kept_s=50.0))
    member.confirm("a", "b", "c")
    member.answering.discard("a")
    member.hear(record("a", DEAD, 0), record("b", LEFT, 0), by="c")
    member.run(49.0)
    assert (member.state("a"), member.state("b")) == (State.DEAD, State.LEFT)
    member.run(3.0)
    assert (member.state("a"), member.state("b")) == (None, None)


# Restarts.


def test_a_new_boot_learns_of_the_old_one_outranks_it_and_ends_it() -> None:
    member = OneMember()
    member.confirm("a", "b")
    member.hear(record("a", ALIVE, 4), by="b")
    member.answering.discard("a")
    new = record("a", ALIVE, 0, boot="2")
    answer = member.ping(new)
    assert answer.gossip[0].boot == "a-1", "the answer names the boot that outranks it"
    assert member.view("a").boot == "a-1"
    raised = record("a", ALIVE, answer.gossip[0].incarnation + 1, boot="2")
    member.ping(raised)
    assert member.steps("a")[-2:] == [
        ("a-1", State.ALIVE, State.DEAD, Cause.RESTART),
        ("a-2", None, State.UNCONFIRMED, Cause.RESTART),
    ]
    ping = pings_to(member.effects, "a")[-1]
    member.receive(Ack(ping.seq, raised))
    assert member.steps("a")[-1] == ("a-2", State.UNCONFIRMED, State.ALIVE, Cause.PROBE)
    member.hear(record("a", DEAD, 4), by="b")
    assert member.state("a") is State.ALIVE, "a late word on the old boot removes nothing"


def test_this_member_outranks_a_former_boot_of_its_own() -> None:
    member = OneMember()
    former = record(OWN, DEAD, 9, boot="0")
    answer = member.ping(record("a"), former)
    assert member.core.incarnation == 10
    assert answer.sender.incarnation == 10
    member.hear(former, by="a")
    assert member.core.incarnation == 10


@pytest.mark.parametrize(("other", "gives_way"), [("0", False), ("2", True)])
def test_of_two_processes_under_one_name_one_gives_way(other: str, gives_way: bool) -> None:
    member = OneMember()
    member.confirm("a")
    member.hear(record(OWN, ALIVE, 3, boot=other), by="a")
    member.hear(record(OWN, ALIVE, 5, boot=other), by="a")
    taken = [effect for effect in member.effects if isinstance(effect, NameTaken)]
    assert taken == [NameTaken(BootId(f"{OWN}-{other}"), gives_way)]
    assert (sent(member.run(5.0), Ping) == []) is gives_way


# Leaving and comparing.


def test_a_leaving_member_tells_others_at_once_and_refutes_nothing() -> None:
    member = OneMember()
    member.confirm("a", "b", "c")
    effects = member.handle(LeaveRequested())
    told = sent(effects, Gossip)
    assert len(told) == 3
    assert {message.sender.status for message in told} == {LEFT}
    incarnation = member.core.incarnation
    member.hear(record(OWN, LEFT, incarnation), by="a")
    assert member.core.incarnation == incarnation
    member.effects.clear()
    member.run(5.0)
    assert sent(member.effects, Ping) == [], "it probes nobody any more"


def test_equal_views_exchange_digests_only() -> None:
    one, other = OneMember(), OneMember()
    other.confirm("a")
    one.confirm("a")
    digest = next(effect.message.digest for effect in one.effects if isinstance(effect, SendSync))
    one.effects.clear()
    one.receive(Sync(record("a"), digest))
    assert [effect for effect in one.effects if isinstance(effect, SendSync)] == []
    one.receive(Sync(record("a"), digest + 1))
    (answer,) = [effect.message for effect in one.effects if isinstance(effect, SendSync)]
    assert {known.node for known in answer.records} == {"a"}
    assert answer.reply
    one.effects.clear()
    one.receive(Sync(record("a"), digest + 1, (record("z"),)))
    assert one.state("z") is State.UNCONFIRMED
    (last,) = [effect.message for effect in one.effects if isinstance(effect, SendSync)]
    assert not last.reply, "the exchange ends"


def test_old_tombstones_are_not_handed_on() -> None:
    member = OneMember(parameters=replace(LAN, dead_kept_s=100.0, reprobe_s=1000.0))
    member.confirm("a", "b")
    member.answering.discard("b")
    member.hear(record("b", DEAD, 0), by="a")

    def told() -> set[str]:
        member.effects.clear()
        member.receive(Sync(record("a"), 0))
        (answer,) = [it.message for it in member.effects if isinstance(it, SendSync)]
        return {str(known.node) for known in answer.records}

    assert told() == {"a", "b"}
    member.run(60.0)
    assert told() == {"a"}
