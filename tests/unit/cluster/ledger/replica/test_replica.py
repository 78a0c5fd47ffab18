"""The replica's core by itself: a few members, messages passed by hand, time by hand."""

from __future__ import annotations

import msgspec
import pytest

from squall.api.errors import UsageError
from squall.cluster.ledger.interface import Fence, GroupMs, OpNumber
from squall.cluster.ledger.replica.effects import (
    Confirmed,
    EnteredEpoch,
    MembersAnswer,
    Persist,
    Send,
    Serves,
    SteppedDown,
    Unconfirmed,
)
from squall.cluster.ledger.replica.messages import (
    Packet,
    PrepareOk,
    PreVote,
    PreVoteOk,
    StartView,
    Vote,
)
from squall.cluster.ledger.replica.replica import Replica
from squall.cluster.ledger.replica.types import (
    FAST,
    Base,
    Checksum,
    Config,
    GroupId,
    Kind,
    LogEntry,
    Member,
    Recovered,
    Status,
    StepRecord,
    StorageId,
    Timers,
    formed_config,
    make_entry,
)
from squall.runtime.interfaces import BootId, NodeId
from tests.unit.cluster.ledger.lab.replicas import Disk, Lab


def three() -> Lab:
    lab = Lab("a", "b", "c")
    lab.run(0.5)
    return lab


def test_three_form_a_group_and_commit_on_all() -> None:
    lab = three()
    assert lab.primary() == "a"
    lab.submit("a", b"one", b"two")
    lab.run(0.2)
    for name in "abc":
        assert lab.applied(name) == [b"one", b"two"]


def test_a_group_of_one_leads_a_higher_view_at_each_start() -> None:
    lab = Lab("a")
    lab.run(0.2)
    before = lab.members["a"].fence
    lab.submit("a", b"one")
    lab.start("a")
    lab.run(0.2)
    assert lab.members["a"].core.serving
    assert lab.members["a"].fence > before


def test_two_members_are_refused() -> None:
    with pytest.raises(UsageError, match="use 1, 3 or 5"):
        formed_config((Member(NodeId("a"), StorageId("1")), Member(NodeId("b"), StorageId("2"))))


def test_timers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="check_quorum_s"):
        Timers(0.1, 1.0, 0.9, 0.1, 0.1)


def test_a_group_does_not_form_without_all_its_members() -> None:
    lab = Lab("a", "b", peers=("a", "b", "c"))
    lab.run(1.0)
    assert all(each.core.status is Status.FORMING for each in lab.members.values())


def test_an_entry_is_committed_only_when_a_quorum_has_it_on_disk() -> None:
    lab = three()
    lab.stalled = {"a", "b"}
    lab.submit("a", b"one")
    assert lab.applied("a") == []
    lab.stalled = {"a"}
    effects, lab.unsynced["b"] = lab.unsynced["b"], []
    lab.take("b", [effect for effect in effects if isinstance(effect, Persist | Send)])
    lab.settle()
    assert lab.applied("a") == [b"one"]


def test_an_acknowledgment_waits_for_its_record() -> None:
    lab = three()
    lab.stalled = {"b"}
    lab.submit("a", b"one")
    held = [e for e in lab.unsynced["b"] if isinstance(e, Send) and e.after]
    assert any(isinstance(send.packet.body, PrepareOk) for send in held)


def test_what_was_committed_survives_the_primary() -> None:
    lab = three()
    lab.submit("a", b"one")
    lab.cut = {"a"}
    lab.run(1.5)
    new = lab.primary()
    assert new != "a"
    assert lab.members[new].fence > Fence(0, 0)
    lab.submit(new, b"two")
    lab.cut = set()
    lab.run(0.5)
    for name in "abc":
        assert lab.applied(name) == [b"one", b"two"]


def test_an_isolated_primary_steps_down_and_what_it_alone_stored_is_gone() -> None:
    lab = three()
    lab.cut = {"a"}
    lab.submit("a", b"lost")
    lab.run(1.5)
    assert isinstance(lab.last("a", SteppedDown), SteppedDown)
    lab.submit(lab.primary(), b"kept")
    lab.cut = set()
    lab.run(0.5)
    assert lab.applied("a") == [b"kept"]


def test_a_restarted_primary_does_not_go_on_in_its_view() -> None:
    lab = three()
    lab.start("a")
    assert not lab.members["a"].core.leading
    lab.run(1.5)
    assert lab.members[lab.primary()].fence > Fence(0, 0)


def test_votes_are_refused_while_the_primary_is_heard() -> None:
    lab = three()
    before = len(lab.all_effects["c"])
    lab.members["b"].views.stand()
    lab.take("b", lab.members["b"].core.take())
    lab.settle()
    votes = [e for e in lab.all_effects["c"][before:] if isinstance(e, Send)]
    assert not any(isinstance(send.packet.body, Vote) for send in votes)
    assert lab.primary() == "a"


def test_a_confirmation_needs_a_round_of_a_quorum() -> None:
    lab = three()
    lab.take("a", lab.members["a"].confirm(7, lab.now))
    lab.settle()
    confirmed = lab.last("a", Confirmed)
    assert isinstance(confirmed, Confirmed)
    assert confirmed.tokens == (7,)
    lab.cut = {"a"}
    lab.take("a", lab.members["a"].confirm(8, lab.now))
    lab.run(1.0)
    assert isinstance(lab.last("a", Unconfirmed), Unconfirmed)


def test_a_hand_over_needs_no_timeout() -> None:
    lab = three()
    begun, effects = lab.members["a"].begin_hand_over(lab.now)
    lab.take("a", effects)
    lab.settle()
    assert begun
    assert lab.primary() == "b"


def test_a_hand_over_goes_to_one_that_lives() -> None:
    lab = three()
    lab.run(0.5)
    lab.cut = {"b"}
    lab.run(3.0)
    begun, effects = lab.members["a"].begin_hand_over(lab.now)
    lab.take("a", effects)
    lab.settle()
    assert begun
    assert lab.primary() == "c"


def test_a_late_start_view_does_not_shorten_the_log() -> None:
    lab = three()
    lab.cut = {"a"}
    lab.run(1.5)
    new = lab.primary()
    starts = [
        e.packet
        for e in lab.all_effects[new]
        if isinstance(e, Send) and isinstance(e.packet.body, StartView)
    ]
    lab.submit(new, b"one", b"two")
    other = next(name for name in "bc" if name != new)
    last = lab.members[other].core.log.last
    lab.take(other, lab.members[other].handle(starts[0], lab.now))
    assert lab.members[other].core.log.last == last


def test_an_empty_disk_learns_and_votes_only_after_its_replacement() -> None:
    lab = three()
    lab.submit("a", b"one")
    lab.disks["c"] = Disk("another disk")
    lab.start("c")
    lab.run(0.5)
    assert lab.members["c"].core.status is Status.LEARNER
    assert lab.applied("c")[-1:] == [b"one"]
    lab.cut = {"b"}
    lab.run(0.6)
    assert not any(each.core.serving for name, each in lab.members.items() if name != "b")
    lab.cut = set()
    lab.run(1.0)
    primary = lab.primary()
    members = tuple(each.core.me for each in lab.members.values())
    lab.take(primary, lab.members[primary].change_members(1, members, lab.now))
    lab.run(1.5)
    answer = lab.last(primary, MembersAnswer)
    assert isinstance(answer, MembersAnswer)
    assert answer.refusal == ""
    assert lab.members[lab.primary()].fence.epoch == 1
    assert lab.members["c"].core.status is Status.NORMAL


def test_one_member_becomes_three_in_one_command() -> None:
    lab = Lab("a", "b", "c", peers=("a",))
    lab.run(0.5)
    lab.submit("a", b"one")
    lab.run(0.3)
    members = tuple(each.core.me for each in lab.members.values())
    lab.take("a", lab.members["a"].change_members(1, members, lab.now))
    lab.run(1.0)
    assert isinstance(lab.last("b", EnteredEpoch), EnteredEpoch)
    lab.submit(lab.primary(), b"two")
    lab.run(0.3)
    for name in "abc":
        assert lab.applied(name) == [b"one", b"two"]


def test_members_change_one_at_a_time() -> None:
    lab = three()
    config = lab.members["a"].core.config
    assert config is not None
    lab.take("a", lab.members["a"].change_members(1, config.members[:1], lab.now))
    answer = lab.last("a", MembersAnswer)
    assert isinstance(answer, MembersAnswer)
    assert "one at a time" in answer.refusal


def test_the_group_clock_goes_on_over_a_change_of_primary() -> None:
    lab = three()
    lab.run(1.0)
    before = lab.members["a"].group_ms(lab.now)
    lab.cut = {"a"}
    lab.run(2.0)
    after = lab.members[lab.primary()].group_ms(lab.now)
    assert 1_950 <= after - before <= 2_050


def test_a_lagging_member_takes_what_it_missed() -> None:
    lab = three()
    lab.cut = {"c"}
    for number in range(30):
        lab.submit("a", b"%d" % number)
    lab.cut = set()
    lab.run(1.0)
    assert lab.applied("c") == [b"%d" % number for number in range(30)]


def test_a_member_that_was_cut_off_for_long_ends_no_view_when_it_returns() -> None:
    lab = three()
    lab.cut = {"c"}
    lab.run(60.0)
    lab.submit("a", b"meanwhile")
    assert lab.members["c"].fence == Fence(0, 0), "it only asks whether it would be voted for"
    lab.cut = set()
    lab.run(2.0)
    assert {lab.members[name].fence for name in "abc"} == {Fence(0, 0)}
    assert lab.primary() == "a" and lab.applied("c") == [b"meanwhile"]


def test_an_agreement_to_an_earlier_question_does_not_count() -> None:
    lab = three()
    lab.cut = {"b"}
    lab.run(3.0)
    b, c = lab.members["b"], lab.members["c"].core
    asked = [
        effect.packet.body
        for effect in lab.all_effects["b"]
        if isinstance(effect, Send) and isinstance(effect.packet.body, PreVote)
    ]
    first, last = asked[0], asked[-1]
    assert first.view == last.view, "nothing happened meanwhile that b knows of"
    late = PreVoteOk(first.view, first.ask)
    b.handle(Packet(c.group, c.me, c.boot, c.fence, late), lab.now)
    assert b.fence == Fence(0, 0), "c may hear its primary again since"
    now = PreVoteOk(last.view, last.ask)
    b.handle(Packet(c.group, c.me, c.boot, c.fence, now), lab.now)
    assert b.fence == Fence(0, last.view)


def test_a_member_alone_never_leads() -> None:
    lab = three()
    lab.cut = {"a", "b"}
    lab.run(30.0)
    # No member reaches another one.
    assert not any(lab.members[name].core.serving for name in "abc")
    assert isinstance(lab.last("a", SteppedDown), SteppedDown)


def test_a_replica_with_a_hole_holds_everything_before_the_next_commit() -> None:
    lab = three()
    lab.submit("a", b"one")
    lab.cut = {"c"}
    lab.submit("a", b"two")
    lab.cut = {"a"}
    lab.run(3.0)
    assert lab.primary() in "bc"
    lab.submit(lab.primary(), b"three")
    lab.run(0.2)
    assert lab.applied("c") == [b"one", b"two", b"three"]
    lab.cut = {lab.primary()}
    lab.run(3.0)
    lab.submit(lab.primary(), b"four")
    lab.cut = set()
    lab.run(1.0)
    for name in "abc":
        assert lab.applied(name) == [b"one", b"two", b"three", b"four"]


def logged(lab: Lab, name: str, fence: Fence, *bodies: bytes, normal: Fence) -> None:
    """Puts entries that were proposed in `fence` on the disk of a member, and its promise."""
    log = lab.members[name].core.log
    previous, entries = log.end(), list[LogEntry]()
    for op, body in enumerate(bodies, log.last + 1):
        entry = make_entry(op, fence, 0, Kind.COMMAND, body, previous=previous, version=1)
        entries.append(entry)
        previous = entry.checksum
    promise = StepRecord(fence, normal, -1, tuple(entries), OpNumber(log.last), GroupMs(0))
    lab.disks[name].records.append(promise)


def test_the_log_of_the_latest_view_wins_and_not_the_longest() -> None:
    """One logs an op alone; another one leads and logs others alone; the first one's op is
    committed in a third view: the second one's longer log must not erase it."""
    lab = three()
    logged(lab, "a", Fence(0, 0), b"kept", normal=Fence(0, 0))
    logged(lab, "b", Fence(0, 1), *[b"erased"] * 9, normal=Fence(0, 1))
    logged(lab, "c", Fence(0, 1), normal=Fence(0, 0))
    lab.cut = {"b"}
    for name in "abc":
        lab.start(name)
    lab.run(3.0)
    assert lab.primary() in "ac"
    assert lab.applied("a") == lab.applied("c") == [b"kept"]
    assert lab.members["b"].core.log.last > lab.members["c"].core.log.last
    lab.cut = {"a"}
    lab.start("b")
    # The former primary does not lead again after a restart: these two vote.
    lab.start("c")
    lab.run(3.0)
    lab.submit(lab.primary(), b"after")
    lab.run(0.3)
    for name in "bc":
        assert lab.applied(name)[-2:] == [b"kept", b"after"]
        assert b"erased" not in lab.applied(name)


def test_a_newer_command_version_needs_every_member() -> None:
    lab = three()
    refusal, effects = lab.members["a"].activate(2, lab.now)
    lab.take("a", effects)
    assert "not supported" in refusal


def test_serving_is_told_once_per_view() -> None:
    lab = three()
    lab.run(1.0)
    told = [effect for effect in lab.all_effects["a"] if isinstance(effect, Serves)]
    assert [effect.fence for effect in told] == [Fence(0, 0)]


def test_a_start_never_stays_in_an_epoch_below_that_of_its_members() -> None:
    """It stopped between storing a checkpoint of epoch 2 and entering that epoch."""
    members = tuple(Member(NodeId(name), StorageId(f"disk of {name}")) for name in "abc")
    base = Base(OpNumber(9), Checksum(b"nine"), GroupMs(5), GroupId("g"), Config(2, members))
    recovered = Recovered(members[0].storage, base, Fence(1, 4), Fence(1, 4), commit=9)
    replica = Replica(
        node=NodeId("a"),
        boot=BootId("a.1"),
        timers=FAST,
        draw=lambda: 0.5,
        peers=tuple(member.node for member in members),
        recovered=recovered,
        version=1,
        now=100.0,
    )
    effects = replica.start(100.0)
    assert replica.fence == Fence(2, 0)
    assert replica.core.status is Status.VIEW_CHANGE
    assert [each.record.fence for each in effects if isinstance(each, Persist)] == [Fence(2, 0)]


def test_a_late_start_view_does_not_end_the_mending() -> None:
    lab = three()
    primary = lab.primary()
    hurt = next(name for name in "abc" if name != primary)
    core = lab.members[primary].core
    early = StartView(core.log.last, core.log.end(), core.commit, GroupMs(0))
    packet = Packet(core.group, core.me, core.boot, core.fence, early)
    lab.submit(primary, b"one", b"two")
    # The disk lost the two entries that it had acknowledged in this view.
    disk = lab.disks[hurt]
    disk.records = [
        msgspec.structs.replace(each, entries=each.entries[:1]) for each in disk.records
    ]
    disk.mending = "lost"
    lab.start(hurt)
    replica = lab.members[hurt]
    lab.take(hurt, replica.handle(packet, lab.now))
    assert replica.core.mending and replica.core.status is not Status.NORMAL
    lab.run(0.5)
    assert not replica.core.mending
    assert lab.applied(hurt)[-2:] == [b"one", b"two"]
