"""A preparation that will be late asks for longer, and asks again only if it moved on."""

from __future__ import annotations

from squall.cluster.protocol.messages import AttemptStatus, MoreTime
from squall.cluster.worker.session import ASK_EARLY_S
from tests.unit.cluster.worker.lab.sessions import Lab, key, preparation


def told(lab: Lab) -> AttemptStatus:
    (status,) = lab.session.request(lab.now, lab.boot_now).attempts
    return status


def late() -> Lab:
    lab = Lab()
    lab.prepare(preparation(ready_within_s=30.0))
    lab.ticks(30.0 - ASK_EARLY_S - 0.5)
    return lab


def test_it_asks_a_moment_before_it_would_be_given_up_and_not_earlier() -> None:
    lab = late()
    assert not told(lab).wants_more_s
    lab.ticks(1.0)
    assert told(lab).wants_more_s


def test_a_grant_moves_the_moment_on() -> None:
    lab = late()
    lab.ticks(1.0)
    lab.exchange(more_time=[MoreTime(key=key(), granted_s=15.0, left=4)])
    assert not told(lab).wants_more_s
    lab.ticks(15.0)
    assert told(lab).wants_more_s


def test_who_was_denied_asks_again_when_it_moved_on() -> None:
    lab = late()
    lab.ticks(1.0)
    lab.exchange(more_time=[MoreTime(key=key(), denial="no progress", left=4)])
    assert not told(lab).wants_more_s
    before = told(lab).work
    lab.session.on_step(key())
    assert told(lab).wants_more_s and told(lab).work == before + 1


def test_what_is_ready_or_has_no_limit_asks_for_nothing() -> None:
    lab = late()
    lab.ticks(3.0)
    lab.session.on_ready(key())
    assert not told(lab).wants_more_s
    other = Lab()
    other.prepare(preparation())
    other.ticks(500.0)
    assert not told(other).wants_more_s
