"""The election core by itself: what it asks for, and when it acts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from squall.coordination.election import messages as m
from squall.coordination.election.core import Role
from squall.coordination.records.schemas import LeaseRecord
from tests.unit.coordination.lab.elections import TIMING, leading, member, only, stand


def lease(worker: str = "a", *, epoch: int = 3, **fields: object) -> LeaseRecord:
    made = LeaseRecord(
        epoch=epoch,
        member_id=worker,
        boot=1,
        token=f"{worker}.1.1",
        elected_at=0.0,
        renewals=0,
        lease_ttl=TIMING.lease_ttl,
        term_ends_at=0.0,
    )
    return msgspec.structs.replace(made, **fields)


def seen(record: LeaseRecord, version: str = "v1") -> m.LeaseRead:
    return m.LeaseRead(m.SeenLease(version, record.epoch, record))


def none(kind: type, effects: Sequence[m.Effect]) -> bool:
    return not any(isinstance(effect, kind) for effect in effects)


def test_an_empty_store_is_taken_by_creating_the_record() -> None:
    write = stand(member(), 100.0)
    assert write.expect is None
    assert write.lease.epoch == 1


def test_a_lease_is_free_only_after_a_full_ttl_of_one_version() -> None:
    core = member()
    core.tick(100.0)
    assert none(m.WriteLease, core.handle(seen(lease()), 100.0))
    core.tick(114.0)
    renewed = core.handle(seen(lease(renewals=1), "v2"), 114.0)
    assert none(m.WriteLease, renewed)
    core.tick(128.9)
    assert none(m.WriteLease, core.handle(seen(lease(renewals=1), "v2"), 128.9))
    assert core.deadline() == pytest.approx(129.0)
    core.tick(129.0)
    core.handle(seen(lease(renewals=1), "v2"), 129.0)
    write = only(m.WriteLease, core.handle(m.RankKnown(0), 129.0))
    assert isinstance(write, m.WriteLease)
    assert (write.expect, write.lease.epoch) == ("v2", 4)


def test_a_released_lease_is_taken_at_once_and_by_the_named_successor_first() -> None:
    for name, waits_s in (("b", 0.0), ("c", 5.0 + TIMING.rank_delay)):
        core = member(name)
        core.tick(100.0)
        free = lease(released=True, successor="b", standbys=("b", "c"))
        effects = core.handle(seen(free), 100.0)
        if not waits_s:
            assert only(m.WriteLease, effects)
        else:
            assert none(m.WriteLease, effects)
            effects = core.tick(100.0 + waits_s)
            assert only(m.WriteLease, effects)


def test_a_holder_acts_for_four_fifths_of_the_lease_counted_from_the_send() -> None:
    core = member()
    write = stand(core, 100.0)
    core.handle(m.LeaseWritten(write, "w1"), 103.0)
    assert core.leads(111.9)
    assert not core.leads(112.0)
    assert m.Demote(1, "lease_lost") in core.tick(112.0)


def test_a_late_answer_does_not_revive_a_lease() -> None:
    core, _ = leading()
    renewal = only(m.WriteLease, core.tick(105.0))
    assert isinstance(renewal, m.WriteLease)
    effects = core.handle(m.LeaseWritten(renewal, "w2"), 112.5)
    assert m.Demote(1, "lease_lost") in effects
    assert not core.leads(112.5)


def test_a_win_whose_answer_comes_after_its_limit_is_renewed_before_it_is_used() -> None:
    core = member()
    write = stand(core, 100.0)
    effects = core.handle(m.LeaseWritten(write, "w1"), 120.0)
    assert none(m.Promote, effects)
    renewal = only(m.WriteLease, effects)
    assert isinstance(renewal, m.WriteLease)
    assert renewal.expect == "w1"
    assert only(m.Promote, core.handle(m.LeaseWritten(renewal, "w2"), 120.1))


def test_a_lost_reply_is_recognised_by_reading_the_record() -> None:
    core, _ = leading()
    first = only(m.WriteLease, core.tick(105.0))
    assert isinstance(first, m.WriteLease)
    core.handle(m.LeaseUnanswered(first), 106.0)
    second = only(m.WriteLease, core.tick(107.0))
    assert isinstance(second, m.WriteLease)
    assert only(m.ReadLease, core.handle(m.LeaseRefused(second), 107.1))
    effects = core.handle(m.LeaseRead(m.SeenLease("w2", 1, first.lease)), 107.2)
    assert none(m.Demote, effects)
    assert core.limit == pytest.approx(105.0 + TIMING.local_limit)


def test_another_member_in_the_record_ends_the_term() -> None:
    core, _ = leading()
    renewal = only(m.WriteLease, core.tick(105.0))
    assert isinstance(renewal, m.WriteLease)
    core.handle(m.LeaseRefused(renewal), 105.1)
    assert m.Demote(1, "superseded") in core.handle(seen(lease("z", epoch=2), "x"), 105.2)


def test_a_read_that_began_before_a_write_was_answered_says_nothing() -> None:
    core = member()
    core.tick(100.0)
    core.handle(m.LeaseRead(None), 100.0)
    write = only(m.WriteLease, core.handle(m.RankKnown(0), 100.0))
    assert isinstance(write, m.WriteLease)
    core.tick(104.5)
    core.handle(m.LeaseWritten(write, "w1"), 104.6)
    assert core.role is Role.LEADING
    core.handle(m.LeaseRead(None), 104.7)
    assert core.role is Role.LEADING


def test_a_release_waits_for_the_work_and_goes_on_renewing() -> None:
    core, _ = leading()
    effects = core.handle(m.Resign("stopped"), 101.0)
    assert m.Demote(1, "stopped") in effects
    renewal = only(m.WriteLease, core.tick(105.0))
    assert isinstance(renewal, m.WriteLease)
    assert renewal.purpose is m.Purpose.RENEW
    core.handle(m.WorkEnded(), 105.5)
    release = only(m.WriteLease, core.handle(m.LeaseWritten(renewal, "w2"), 105.6))
    assert isinstance(release, m.WriteLease)
    assert (release.purpose, release.expect) == (m.Purpose.RELEASE, "w2")
    assert release.lease.released
    core.handle(m.LeaseWritten(release, "w3"), 105.7)
    assert core.role is Role.FOLLOWING


def test_an_epoch_below_one_that_was_seen_is_deposed_and_no_member_leads_for_a_lease() -> None:
    core = member(highest_epoch=9)
    core.tick(100.0)
    assert none(m.Regressed, core.handle(seen(lease(epoch=2)), 100.0))
    effects = core.handle(seen(lease(epoch=2)), 100.1)
    assert m.Regressed(9, 2) in effects
    write = only(m.WriteLease, effects)
    assert isinstance(write, m.WriteLease)
    assert (write.purpose, write.lease.epoch, write.lease.member_id) == (m.Purpose.DEPOSE, 9, "")
    core.handle(m.LeaseWritten(write, "d"), 100.2)
    core.tick(115.2)
    core.handle(seen(write.lease, "d"), 115.2)
    stood = only(m.WriteLease, core.handle(m.RankKnown(0), 115.2))
    assert isinstance(stood, m.WriteLease)
    assert stood.lease.epoch == 10


def test_a_record_that_vanished_is_waited_for_as_long_as_a_lease() -> None:
    core = member(highest_epoch=4)
    core.tick(100.0)
    core.handle(m.LeaseRead(None), 100.0)
    assert none(m.WriteLease, core.handle(m.RankKnown(0), 100.0))
    core.tick(115.0)
    core.handle(m.LeaseRead(None), 115.0)
    write = only(m.WriteLease, core.handle(m.RankKnown(0), 115.0))
    assert isinstance(write, m.WriteLease)
    assert write.lease.epoch == 5


def test_one_that_is_not_eligible_never_stands() -> None:
    core = member(eligible=False)
    core.tick(100.0)
    core.handle(m.LeaseRead(None), 100.0)
    assert none(m.WriteLease, core.handle(m.RankKnown(0), 100.0))


def test_cold_start_goes_through_its_phases() -> None:
    core = member(skip_cold_start=False)
    phases: list[str] = []

    def note(effects: Sequence[m.Effect]) -> list[m.Effect]:
        phases.extend(effect.phase for effect in effects if isinstance(effect, m.PhaseChanged))
        return list(effects)

    core.tick(100.0)
    core.handle(m.LeaseRead(None), 100.0)
    core.tick(115.0)
    note(core.handle(m.LeaseRead(None), 115.0))
    write = only(m.WriteLease, core.handle(m.RankKnown(0), 115.0))
    assert isinstance(write, m.WriteLease)
    effects = note(core.handle(m.LeaseWritten(write, "w1"), 115.1))
    assert none(m.Promote, effects)
    assert none(m.Promote, core.tick(120.05))
    assert only(m.Promote, note(core.tick(120.1)))
    assert phases == ["election", "preparation", "ready"]


def test_a_lease_that_is_there_ends_the_observation_at_once() -> None:
    core = member(skip_cold_start=False)
    core.tick(100.0)
    effects = core.handle(seen(lease()), 100.2)
    assert [e.phase for e in effects if isinstance(e, m.PhaseChanged)] == ["ready"]


def test_a_term_is_renewed_in_its_last_fifth_and_keeps_its_epoch() -> None:
    core, _ = leading()
    now, version, renewed = 100.0, 1, []
    while now < 400.0:
        now += TIMING.heartbeat_interval
        effects = core.tick(now)
        renewed += [effect for effect in effects if isinstance(effect, m.TermRenewed)]
        for effect in effects:
            if isinstance(effect, m.WriteLease):
                version += 1
                core.handle(m.LeaseWritten(effect, f"w{version}"), now)
    assert core.leads(now)
    assert core.epoch == 1
    assert len(renewed) == 1


def test_what_a_member_wins_after_it_gave_up_is_released_at_once_and_nothing_is_done_under_it() -> (
    None
):
    core = member()
    write = stand(core, 100.0)
    assert core.handle(m.Resign("stopped"), 100.1) == []
    effects = core.handle(m.LeaseWritten(write, "w1"), 100.2)
    assert none(m.Promote, effects) and none(m.Demote, effects)
    released = only(m.WriteLease, effects)
    assert isinstance(released, m.WriteLease)
    assert released.purpose is m.Purpose.RELEASE and released.lease.released
    core.handle(m.LeaseWritten(released, "w2"), 100.3)
    assert core.role is Role.FOLLOWING
