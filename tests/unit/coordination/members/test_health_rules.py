"""Warnings, deaths and grace, by themselves."""

from __future__ import annotations

import pytest

from squall.coordination.members.health_rules import (
    CHECKS_PER_INTERVAL,
    GracePeriod,
    SequenceViolation,
    StaleMember,
    continuity,
    next_warning,
)
from squall.coordination.records.schemas import WarningRecord
from squall.coordination.timing import PROFILES, Timing

TIMING = Timing()


def checks(timing: Timing, first_age_s: float, *, monitors: int = 1) -> list[tuple[float, int]]:
    """Ages at which a warning was added, and the count, for a member that never beats."""
    known: WarningRecord | None = None
    found: list[tuple[float, int]] = []
    pause_s = timing.monitor_interval * CHECKS_PER_INTERVAL
    moments = sorted(
        first_age_s + number * pause_s + each * pause_s / monitors
        for number in range(40)
        for each in range(monitors)
    )
    for age_s in moments:
        warning = next_warning(known, StaleMember("a", 1, 9, age_s), 1000.0 + age_s, timing)
        if warning is not None:
            known = warning
            found.append((age_s, warning.consecutive_warnings))
        if known is not None and known.health == "dead":
            return found
    raise AssertionError("never dead")


@pytest.mark.parametrize("profile", ["normal", "small", "large", "s3"])
@pytest.mark.parametrize("phase", [0.0, 0.13, 0.5, 0.77, 0.999])
@pytest.mark.parametrize("monitors", [1, 2, 3])
def test_dead_by_dead_after_and_one_warning_per_interval(
    profile: str, phase: float, monitors: int
) -> None:
    timing = PROFILES[profile]
    found = checks(timing, phase * timing.monitor_interval * CHECKS_PER_INTERVAL, monitors=monitors)
    assert [count for _, count in found] == [1, 2, 3]
    assert found[0][0] > timing.heartbeat_ttl
    assert found[-1][0] <= timing.dead_after
    for number, (age_s, _) in enumerate(found):
        low = timing.heartbeat_ttl + (number - 0.1) * timing.monitor_interval
        assert age_s >= low


def test_a_beat_in_between_starts_from_zero() -> None:
    first = next_warning(None, StaleMember("a", 1, 9, 95.0), 0.0, TIMING)
    assert first is not None
    second = next_warning(first, StaleMember("a", 1, 10, 91.0), 200.0, TIMING)
    assert second is not None
    assert (second.consecutive_warnings, second.health) == (1, "warning")
    other = next_warning(first, StaleMember("a", 2, 9, 101.0), 10.0, TIMING)
    assert other is not None
    assert other.consecutive_warnings == 1


def test_two_monitors_in_one_moment_count_once() -> None:
    first = next_warning(None, StaleMember("a", 1, 9, 500.0), 0.0, TIMING)
    assert first is not None
    assert next_warning(first, StaleMember("a", 1, 9, 501.0), 1.0, TIMING) is None
    later = next_warning(first, StaleMember("a", 1, 9, 509.0), 9.0, TIMING)
    assert later is not None
    assert later.health == "critical"


def test_a_fresh_member_is_never_warned_about() -> None:
    assert next_warning(None, StaleMember("a", 1, 9, 90.0), 0.0, TIMING) is None


def test_a_gap_of_the_store_gives_grace_to_all_members() -> None:
    grace = GracePeriod(TIMING, 0.0)
    assert not grace.may_warn(5.0)
    for moment in range(0, 100, 5):
        grace.reached(float(moment))
    assert grace.may_warn(96.0)
    grace.reached(130.0)
    assert not grace.may_warn(139.0)
    assert grace.may_warn(140.0)
    grace.reached(300.0)
    assert not grace.may_warn(389.0)
    assert grace.may_warn(390.0)


def test_continuity() -> None:
    assert continuity(None, 1) is None
    assert continuity(3, 4) is None
    assert continuity(3, 6) == SequenceViolation(expected=4, received=6, gap=3, missed=2)
    assert continuity(6, 3) == SequenceViolation(expected=7, received=3, gap=-3, missed=0)
