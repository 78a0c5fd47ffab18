"""From a missed ping to a death, and everything that may stop it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from squall.cluster.membership.effects import Cause, ObserverIsolated, State
from squall.cluster.membership.messages import Ack, Gossip, Nack, PeerStatus, Ping, PingReq
from squall.cluster.membership.parameters import LAN
from squall.runtime.interfaces import NodeId
from tests.unit.cluster.membership.lab.one_member import (
    OWN,
    OneMember,
    address_of,
    asked,
    nack,
    pings_to,
    record,
    sent,
)

ALIVE, SUSPECT, DEAD, LEFT = PeerStatus
PEERS = ("a", "b", "c", "d", "e")
LONG = replace(LAN, suspicion_mult=5.0, verifiers=0)


def group(*, silent: str = "", **more: object) -> OneMember:
    """Five confirmed peers; one of them no longer answers."""
    member = OneMember(**more)  # pyright: ignore[reportArgumentType]
    member.confirm(*PEERS)
    member.answering.discard(silent)
    return member


def run_until(member: OneMember, name: str, state: State, within_s: float) -> float:
    """Lets proxies answer with nacks; the value is how long it took."""
    began = member.now
    while member.state(name) is not state:
        assert member.now - began < within_s, f"{name} is {member.state(name)}"
        for request in asked(member.run(0.05)):
            if request.target.node == name:
                for proxy in PEERS:
                    member.receive(nack(request, proxy))
    return member.now - began


def test_a_silent_peer_is_asked_directly_then_through_proxies_then_suspected_then_dead() -> None:
    member = group(silent="a")
    run_until(member, "a", State.DEAD, 60.0)
    wanted = [State.UNCONFIRMED, State.ALIVE, State.SUSPECT, State.DEAD]
    assert [after for _, _, after, _ in member.steps("a")] == wanted
    order = [
        type(effect.message).__name__
        for effect in member.effects
        if hasattr(effect, "message")
        and (
            (isinstance(effect.message, Ping) and effect.message.target == "a")
            or (isinstance(effect.message, PingReq) and effect.message.target.node == "a")
        )
    ]
    assert order[1:5] == ["Ping", "PingReq", "PingReq", "PingReq"]
    assert member.core.counters.deaths_declared == 1
    assert member.core.counters.deaths_heard == 0
    assert member.view("a").unheard_by


def test_no_answer_in_time_alone_never_ends_a_peer() -> None:
    member = group(silent="a")
    run_until(member, "a", State.SUSPECT, 20.0)
    took = run_until(member, "a", State.DEAD, 60.0)
    assert took >= LAN.suspicion_min_s(6) - 0.1


def test_an_answer_through_a_proxy_keeps_a_peer_alive() -> None:
    member = group(silent="a")
    for _ in range(600):
        for request in asked(member.run(0.05)):
            if request.target.node == "a":
                member.receive(Ack(request.seq, record("b"), reached=record("a")))
    assert member.state("a") is State.ALIVE
    assert member.core.counters.suspicions == 0
    seen = member.view("a")
    assert "b" in seen.heard_by
    assert OWN in seen.unheard_by


def test_an_unconfirmed_peer_is_never_suspected() -> None:
    member = OneMember()
    member.confirm("b")
    member.hear(record("ghost"), by="b")
    member.hear(record("ghost", SUSPECT, 0, "b"), by="b")
    member.run(60.0)
    assert {after for _, _, after, _ in member.steps("ghost")} == {State.UNCONFIRMED}


def test_confirmations_shorten_a_suspicion_and_never_postpone_it() -> None:
    took: list[float] = []
    for voters in range(4):
        member = group(silent="a", parameters=LONG)
        run_until(member, "a", State.SUSPECT, 20.0)
        began = member.now
        end = 0.0
        while member.state("a") is State.SUSPECT:
            # One confirmation every 50 ms, repeated by many: each suspector counts once.
            names = list(PEERS[1 : 1 + voters]) or [OWN]
            member.hear(record("a", SUSPECT, 0, *names), by="e")
            member.run(0.05)
            end = member.now - began
            assert end < 60.0
        took.append(end)
    shortest, longest = LONG.suspicion_min_s(6), LONG.suspicion_max_s(6)
    assert took[0] == pytest.approx(longest, abs=0.2)
    for votes, seconds in enumerate(took):
        share = math.log(votes + 1) / math.log(4)
        assert seconds == pytest.approx(longest - share * (longest - shortest), abs=0.2)


def test_a_suspicion_of_two_minutes_lasts_two_minutes() -> None:
    slow = replace(LAN, suspicion_mult=20.0)
    assert slow.suspicion_max_s(6) == 120.0
    member = group(silent="a", parameters=slow)
    run_until(member, "a", State.SUSPECT, 20.0)
    assert run_until(member, "a", State.DEAD, 200.0) == pytest.approx(120.0, abs=0.2)


def test_two_members_wait_the_shortest_time() -> None:
    member = OneMember()
    member.confirm("a")
    member.answering.clear()
    run_until(member, "a", State.SUSPECT, 20.0)
    assert run_until(member, "a", State.DEAD, 20.0) <= LAN.suspicion_min_s(2) + 0.2


def test_a_refutation_needs_a_higher_incarnation() -> None:
    member = group(silent="a")
    run_until(member, "a", State.SUSPECT, 20.0)
    member.hear(record("a", ALIVE, 0), by="b")
    assert member.state("a") is State.SUSPECT
    member.hear(record("a", ALIVE, 1), by="b")
    assert member.state("a") is State.ALIVE
    member.answering.add("a")
    member.run(60.0)
    assert member.core.counters.deaths_declared == 0


def test_a_suspect_that_answers_hears_of_it_and_refutes() -> None:
    member = group(silent="a")
    run_until(member, "a", State.SUSPECT, 20.0)
    told = pings_to(member.run(0.6), "a")
    assert told
    assert told[-1].gossip[0].status is SUSPECT
    member.answering.add("a")
    member.run(1.0)
    assert member.state("a") is State.ALIVE
    assert member.view("a").incarnation == 1


def test_a_member_that_only_heard_of_a_suspicion_looks_for_itself_first() -> None:
    slow = replace(LAN, verifiers=0, probe_interval_s=20.0)
    member = group(silent="a", parameters=slow)
    member.hear(record("a", SUSPECT, 0, "b", "c", "d", "e"), by="b")
    member.run(1.05 * slow.suspicion_min_s(6))
    assert member.core.counters.probes_failed == 0
    assert member.state("a") is State.SUSPECT, "it has no evidence of its own"
    member.run(120.0)
    assert member.state("a") is State.DEAD
    assert member.core.counters.probes_failed >= 1


def test_a_death_is_heard_once_and_replays_change_nothing() -> None:
    member = group()
    member.hear(record("a", DEAD, 0), by="b")
    for _ in range(100):
        member.hear(record("a", DEAD, 0), by="c")
        member.hear(record("a", SUSPECT, 0, "b"), by="c")
        member.hear(record("a", ALIVE, 0), by="c")
    ends = [cause for _, _, after, cause in member.steps("a") if after is State.DEAD]
    assert ends == [Cause.GOSSIP]
    assert member.core.counters.deaths_heard == 1
    assert member.core.counters.deaths_declared == 0


def test_an_older_death_has_no_effect() -> None:
    member = group()
    member.hear(record("a", ALIVE, 5), by="b")
    member.hear(record("a", DEAD, 4), by="b")
    assert member.state("a") is State.ALIVE


def test_a_member_that_stood_still_declares_nobody_dead() -> None:
    member = group(silent="a", parameters=LONG)
    run_until(member, "a", State.SUSPECT, 20.0)
    member.stand_still(60.0)
    assert member.state("a") is State.SUSPECT
    assert member.core.counters.gaps == 1
    assert member.core.health > 0
    member.answering.add("a")
    member.run(5.0)
    assert member.state("a") is State.ALIVE
    assert [name for name in PEERS if member.state(name) is not State.ALIVE] == []


def test_answers_that_were_lost_while_it_stood_still_are_no_evidence() -> None:
    member = group()
    member.answering.clear()
    member.run(1.05)
    assert member.core.counters.probes >= 1
    member.stand_still(30.0)
    member.answering.update(PEERS)
    member.run(30.0)
    assert member.core.counters.suspicions == 0


def test_the_score_counts_missing_nacks_and_nothing_else() -> None:
    fair = group(silent="a")
    run_until(fair, "a", State.DEAD, 60.0)
    assert fair.core.health == 0, "all proxies answered: the target is at fault"
    alone = group(silent="a")
    while alone.core.counters.probes_failed == 0:
        alone.run(0.05)
    assert alone.core.health >= 3, "no proxy answered: the network here is at fault"


def test_a_member_that_is_suspected_refutes_and_distrusts_itself() -> None:
    member = group()
    effects = member.hear(record(OWN, SUSPECT, 0, "b"), by="b")
    assert member.core.incarnation == 1
    assert member.core.health == 1
    assert member.core.counters.refutations == 1
    told = [gossip.sender.incarnation for gossip in sent(effects, Gossip)]
    assert told == [1]
    member.hear(record(OWN, SUSPECT, 0, "c"), by="c")
    assert member.core.incarnation == 1, "an old accusation is refuted already"
    member.hear(record(OWN, DEAD, 7), by="c")
    assert member.core.incarnation == 8


def test_when_more_than_half_fall_silent_deaths_are_held_back_for_a_while() -> None:
    member = group()
    member.answering.clear()
    effects = member.run(LAN.isolation_hold_s - 10.0)
    warnings = [effect for effect in effects if isinstance(effect, ObserverIsolated)]
    assert [warning.is_isolated for warning in warnings] == [True]
    assert member.core.counters.deaths_declared <= 2
    assert member.core.counters.deaths_held > 0
    member.run(LAN.isolation_hold_s + 30.0)
    assert {member.state(name) for name in PEERS} == {State.DEAD}


def test_a_proxy_answers_in_any_case() -> None:
    member = group(silent="a")
    request = PingReq(7, record("b"), record("a"), 0.3)
    first = member.receive(request)
    assert [ping.target for ping in sent(first, Ping)] == ["a"]
    assert [answer.seq for answer in sent(member.run(0.4), Nack)] == [7]
    member.answering.add("a")
    member.receive(PingReq(8, record("b"), record("a"), 0.3))
    relayed = [ack for ack in sent(member.effects, Ack) if ack.reached is not None]
    assert [(ack.seq, ack.reached.node) for ack in relayed if ack.reached] == [(8, "a")]


def test_an_answer_of_another_node_at_the_address_does_not_count() -> None:
    member = group(silent="a")
    member.core.tick(member.now)
    while not (pings := pings_to(member.run(0.1), "a")):
        pass
    member.receive(Ack(pings[-1].seq, record("stranger")))
    assert member.core.counters.probes_failed == 0
    member.run(2.5)
    assert member.state("a") is not State.ALIVE
    assert address_of("a") != address_of("stranger")
    assert NodeId("stranger") in {view.node for view in member.core.members(member.now)}
