"""The session of a worker: leases, orders and tombstones, whatever is late or repeated."""

from __future__ import annotations

from math import inf

import pytest

from squall.cluster.protocol.messages import AdjustOrder
from squall.cluster.worker.effects import (
    AskNow,
    Begin,
    Change,
    Fetch,
    Forget,
    Halt,
    Kill,
    Register,
    SetLease,
)
from squall.engine.core_protocol import Adjust
from squall.engine.process.attempt_events import Refusal
from squall.engine.run_options import RunOptions
from tests.unit.cluster.worker.lab.sessions import (
    TIMERS,
    Lab,
    brief,
    go,
    key,
    only,
    preparation,
    stop,
)


def test_a_preparation_is_fetched_once_however_often_it_is_told() -> None:
    lab = Lab()
    assert len(only(lab.prepare(preparation()), Fetch)) == 1
    assert not only(lab.prepare(preparation()), Fetch)
    assert lab.phase(key()) == "preparing"


def test_a_lease_counts_from_the_send_in_both_clocks() -> None:
    lab = Lab()
    lab.prepare(preparation())
    lab.now, lab.boot_now = 200.0, 7000.0
    [lease] = only(lab.exchange(took_s=3.0, granted=[key()], lease_s=15.0), SetLease)
    assert (lease.until, lease.boot_until) == (215.0, 7015.0)


def test_a_lease_never_shrinks() -> None:
    lab = Lab()
    lab.prepare(preparation())
    assert not only(lab.exchange(granted=[key()], lease_s=1.0), SetLease)


def test_answers_below_what_was_seen_change_nothing() -> None:
    lab = Lab()
    lab.exchange(view=3)
    assert not lab.exchange(view=2, prepare=[preparation()], jobs=[brief()])
    assert not lab.exchange(view=3, committed=9, prepare=[preparation()], jobs=[brief()])
    assert only(lab.exchange(view=3, prepare=[preparation()], jobs=[brief()]), Fetch)
    assert only(lab.exchange(epoch=2, view=0, committed=0, granted=[key()]), SetLease)


def test_an_answer_counts_once_and_only_for_a_request_of_this_boot() -> None:
    lab = Lab()
    request = lab.session.request(lab.now, lab.boot_now)
    assert only(lab.answer(request.sequence, register=True), Register)
    assert not lab.answer(request.sequence, register=True)
    assert not lab.answer(99, register=True)


def test_go_begins_at_elapsed_and_half_the_round_trip() -> None:
    lab = Lab()
    lab.prepare(preparation())
    assert only(lab.session.on_ready(key()), AskNow)
    [begin] = only(lab.exchange(took_s=0.2, granted=[key()], go=[go(key(), 7.0)]), Begin)
    assert begin.elapsed_s == pytest.approx(7.1)
    assert lab.phase(key()) == "running"
    assert not only(lab.exchange(go=[go(key(), 8.0)]), Begin)


def test_a_worker_whose_answers_all_take_long_begins_its_share() -> None:
    lab = Lab()
    lab.exchange(took_s=0.62)
    lab.exchange(took_s=0.6, jobs=[brief()], prepare=[preparation()], granted=[key()])
    lab.session.on_ready(key())
    # Only the third says that the link is always slow.
    assert not only(lab.exchange(took_s=1.5, granted=[key()], go=[go(key(), 0.0)]), Begin)
    [begin] = only(lab.exchange(took_s=0.6, granted=[key()], go=[go(key(), -1.0)]), Begin)
    assert begin.elapsed_s == pytest.approx(-0.7)


def test_a_slow_answer_starts_nothing_and_is_asked_again() -> None:
    lab = Lab()
    lab.prepare(preparation())
    lab.session.on_ready(key())
    effects = lab.exchange(took_s=0.6, granted=[key()], go=[go(key())])
    assert not only(effects, Begin) and only(effects, AskNow)


def test_go_needs_a_valid_lease() -> None:
    lab = Lab()
    lab.prepare(preparation())
    lab.session.on_ready(key())
    lab.now += 20.0
    assert not only(lab.exchange(go=[go(key())]), Begin)
    assert only(lab.exchange(granted=[key()], go=[go(key())]), Begin)


def test_go_before_ready_waits() -> None:
    lab = Lab()
    lab.prepare(preparation())
    assert not only(lab.exchange(granted=[key()], go=[go(key())]), Begin)


def test_absence_never_means_stop() -> None:
    lab = Lab()
    which = lab.running()
    assert not lab.exchange()
    assert lab.phase(which) == "running"


def test_a_stop_climbs_its_ladder() -> None:
    lab = Lab()
    which = lab.running()
    [halt] = only(lab.exchange(stop=[stop(which, why="cancelled")]), Halt)
    assert not halt.now and halt.cut == "cancelled"
    assert not lab.exchange(stop=[stop(which)])
    assert not only(lab.ticks(3.0 + TIMERS.stop_grace_s - 0.1), Kill)
    [kill] = only(lab.ticks(0.2), Kill)
    assert kill.cut == "cancelled"


def test_a_stop_may_become_stricter() -> None:
    lab = Lab()
    which = lab.running()
    lab.exchange(stop=[stop(which)])
    [halt] = only(lab.exchange(stop=[stop(which, now=True)]), Halt)
    assert halt.now
    assert only(lab.ticks(TIMERS.stop_grace_s), Kill)


def test_a_stopped_attempt_does_not_begin() -> None:
    lab = Lab()
    lab.prepare(preparation())
    lab.session.on_ready(key())
    lab.exchange(stop=[stop(key())])
    assert not only(lab.exchange(granted=[key()], go=[go(key())]), Begin)


def test_an_attempt_that_goes_on_after_its_lease_is_killed() -> None:
    lab = Lab()
    which = lab.running()
    assert not lab.ticks(15.5)
    assert only(lab.ticks(1.0), Kill) == [Kill(which, "lease ended")]


def test_a_worker_that_stood_still_reads_first_and_kills_later() -> None:
    lab = Lab()
    lab.running()
    lab.ticks(1.0)
    lab.now += 60.0
    assert not lab.session.tick(lab.now)
    assert not lab.ticks(0.5)
    assert only(lab.ticks(1.0), Kill)


def test_an_execution_has_a_longest_time() -> None:
    lab = Lab()
    lab.running(timeout_s=5.0)
    assert not lab.ticks(4.9)
    [halt] = only(lab.ticks(0.2), Halt)
    assert halt.now and "5 s" in halt.cut


def test_a_job_that_runs_on_without_its_manager_has_an_endless_lease() -> None:
    lab = Lab()
    effects = lab.prepare(preparation(), on_control_loss="continue")
    assert only(effects, SetLease) == [SetLease(key(), inf, inf)]
    lab.session.on_ready(key())
    lab.exchange(granted=[key()], go=[go(key())])
    assert not lab.ticks(14.0) and not lab.session.held[key()].overlaps
    assert not lab.ticks(10.0) and lab.session.held[key()].overlaps


def test_an_unknown_attempt_is_buried_before_it_is_told() -> None:
    lab = Lab()
    assert only(lab.exchange(stop=[stop(key(attempt=2))]), AskNow)
    assert lab.phase(key(attempt=2)) == "unknown"
    assert not only(lab.prepare(preparation(attempt=2)), Fetch)
    assert not only(lab.prepare(preparation(attempt=1)), Fetch)
    assert only(lab.prepare(preparation(attempt=3)), Fetch)


def test_unknown_is_told_until_an_answer_to_it_came() -> None:
    lab = Lab()
    lab.exchange(go=[go(key())])
    first = lab.session.request(lab.now, lab.boot_now)
    assert [status.phase for status in first.attempts] == ["unknown"]
    assert lab.phase(key()) == "unknown"
    lab.answer(first.sequence)
    assert lab.phase(key()) == ""


def test_a_grant_for_what_is_not_here_is_no_order() -> None:
    lab = Lab()
    assert not lab.exchange(granted=[key(3)])
    assert only(lab.prepare(preparation(3)), Fetch)


def test_a_record_is_held_until_it_is_freed_and_never_runs_again() -> None:
    lab = Lab()
    which = lab.running()
    assert only(lab.session.on_ended(which, "", "d" * 64, 123, 60.0), AskNow)
    status = lab.session.request(lab.now, lab.boot_now).attempts[0]
    assert (status.phase, status.record, status.record_size) == ("ended", "d" * 64, 123)
    assert only(lab.exchange(free=[which]), Forget) == [Forget(which)]
    assert lab.phase(which) == ""
    assert not only(lab.prepare(preparation()), Fetch)


def test_a_dropped_attempt_is_stopped_at_once_and_forgotten() -> None:
    lab = Lab()
    which = lab.running()
    [halt] = only(lab.exchange(stop=[stop(which, drop=True)]), Halt)
    assert halt.now
    assert not only(lab.exchange(granted=[which]), SetLease)
    assert only(lab.session.on_ended(which, "stopped", "d" * 64, 1, 1.0), Forget)


def test_a_later_attempt_ends_the_former_one_first() -> None:
    lab = Lab()
    which = lab.running()
    effects = lab.prepare(preparation(attempt=2))
    assert [type(effect) for effect in effects[:2]] == [Kill, Fetch]
    assert only(lab.session.on_ended(which, "superseded", "d" * 64, 1, 1.0), Forget)


def test_what_cannot_run_here_is_refused_for_another_worker() -> None:
    lab = Lab(cores=1)
    assert not only(lab.prepare(preparation(slot=1)), Fetch)
    status = lab.session.request(lab.now, lab.boot_now).attempts[0]
    assert status.phase == "refused" and status.retryable and "core 1" in status.text


def test_a_refusal_of_the_host_is_told() -> None:
    lab = Lab()
    lab.prepare(preparation())
    lab.session.on_refused(key(), Refusal(text="shop.py:3  no module", exit_code=107))
    status = lab.session.request(lab.now, lab.boot_now).attempts[0]
    assert (status.phase, status.text, status.exit_code) == ("refused", "shop.py:3  no module", 107)
    assert not status.retryable


def test_what_keeps_an_attempt_from_executing_is_told_while_it_lasts() -> None:
    lab = Lab()
    which = lab.running()
    told: list[str] = []
    for why in ("held by flow.py:7", "", "held by flow.py:9"):
        lab.session.on_held(which, why)
        told.append(lab.session.request(lab.now, lab.boot_now).attempts[0].text)
    assert told == ["held by flow.py:7", "", "held by flow.py:9"]
    lab.session.on_ended(which, "", "r" * 64, 10, 5.0)
    assert lab.session.request(lab.now, lab.boot_now).attempts[0].text == ""


def test_the_newest_wish_wins_and_is_told_back() -> None:
    lab = Lab()
    which = lab.running()

    def wish(number: int, rate: float) -> AdjustOrder:
        return AdjustOrder(job=which.job, workflow="Shop", adjust_seq=number, rate_per_s=rate)

    assert only(lab.exchange(adjust=[wish(2, 50.0)]), Change) == [
        Change(which, Adjust(rate_per_s=50.0))
    ]
    assert not lab.exchange(adjust=[wish(2, 50.0)])
    assert not lab.exchange(adjust=[wish(1, 10.0)])
    assert lab.session.request(lab.now, lab.boot_now).attempts[0].adjust_seq == 2


def test_a_boot_that_ends_stops_everything_once() -> None:
    lab = Lab()
    lab.running()
    assert len(only(lab.session.stop_all(lab.now, "worker stopped"), Halt)) == 1
    assert not lab.session.stop_all(lab.now, "worker stopped")


def test_a_record_of_a_former_boot_is_told_until_it_is_freed() -> None:
    lab = Lab()
    lab.session.adopt(key(), "d" * 64, 5)
    assert lab.phase(key()) == "ended"
    assert not only(lab.prepare(preparation()), Fetch)
    assert only(lab.exchange(free=[key()]), Forget)
    assert lab.phase(key()) == ""


def test_a_job_that_does_without_lost_machines_has_longer_leases_once_it_runs() -> None:
    lab = Lab()
    options = RunOptions(url="http://x", on_agent_loss="continue", outage_tolerance_s=300.0)
    [lease] = only(lab.prepare(preparation(), options=options), SetLease)
    assert lease.until == pytest.approx(100.0 + 15.0)
    which = key()
    lab.session.on_ready(which)
    # With the word to go already: it may be the last that comes for a while.
    for orders in ([go(which)], []):
        sent = lab.now
        *_, lease = only(lab.exchange(granted=[which], go=orders), SetLease)
        assert lease.until == pytest.approx(sent + 300.0)
    assert not only(lab.ticks(60.0), Kill)
