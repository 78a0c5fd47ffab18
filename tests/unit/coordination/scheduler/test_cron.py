"""Times of cron expressions, compared with a slow implementation of the same rules and with known
dates.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.coordination.errors import ConfigurationError
from squall.coordination.scheduler.cron import Cron


def at(text: str, zone: str = "UTC") -> float:
    place = UTC if zone == "UTC" else ZoneInfo(zone)
    return datetime.fromisoformat(text).replace(tzinfo=place).timestamp()


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:00", "2026-01-01T00:01"),
        ("* * * * *", "2026-01-01T00:00:59", "2026-01-01T00:01"),
        ("*/5 * * * *", "2026-01-01T00:57", "2026-01-01T01:00"),
        ("5/20 * * * *", "2026-01-01T00:25", "2026-01-01T00:45"),
        ("30 2 * * mon-fri", "2026-01-02T03:00", "2026-01-05T02:30"),
        ("0 0 1 jan,jul *", "2026-01-01T00:00", "2026-07-01T00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("0 12 13 * fri", "2026-01-01T00:00", "2026-01-02T12:00"),
        ("0 12 13 * fri", "2026-01-09T12:00", "2026-01-13T12:00"),
        ("0 0 * * 7", "2026-01-01T00:00", "2026-01-04T00:00"),
        ("0 0 * * sun", "2026-01-01T00:00", "2026-01-04T00:00"),
        ("0 0 31 * *", "2026-01-31T00:00", "2026-03-31T00:00"),
        ("59 23 31 12 *", "2026-12-31T23:59", "2027-12-31T23:59"),
        ("10-20/5 8 * * *", "2026-01-01T08:15", "2026-01-01T08:20"),
        ("@hourly", "2026-01-01T00:00", "2026-01-01T01:00"),
        ("@weekly", "2026-01-01T00:00", "2026-01-04T00:00"),
    ],
)
def test_the_next_time(text: str, after: str, expected: str) -> None:
    assert Cron(text).after(at(after)) == at(expected)


def test_a_time_zone_moves_with_its_summer() -> None:
    berlin = Cron("0 9 * * *", "Europe/Berlin")
    assert berlin.after(at("2026-01-01T00:00")) == at("2026-01-01T08:00")
    assert berlin.after(at("2026-07-01T00:00")) == at("2026-07-01T07:00")


def test_a_time_that_does_not_exist_is_left_out() -> None:
    berlin = Cron("30 2 * * *", "Europe/Berlin")
    before = at("2026-03-28T12:00")
    assert berlin.after(before) == at("2026-03-30T02:30", "Europe/Berlin")


def test_a_time_that_exists_twice_comes_once() -> None:
    berlin = Cron("30 2 * * *", "Europe/Berlin")
    first = berlin.after(at("2026-10-24T12:00"))
    assert first == at("2026-10-25T00:30")
    assert berlin.after(first) == at("2026-10-26T01:30")


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *"),
        *("* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "*/x * * * *"),
        *("1,,2 * * * *", "-1 * * * *", "* * 30 2 *", "* * * * monday", "1-2-3 * * * *"),
    ],
)
def test_what_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="cron is"):
        Cron(text)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", ""])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigurationError, match="zone is"):
        Cron("* * * * *", zone)


FIELD = st.one_of(st.just("*"), st.integers(2, 29).map(lambda step: f"*/{step}"))
MOMENTS = st.integers(int(at("2020-01-01")), int(at("2030-01-01")))


@settings(max_examples=60, deadline=None)
@given(FIELD, st.integers(0, 23), st.integers(1, 28), st.integers(0, 6), MOMENTS)
def test_it_agrees_with_a_slow_reading(
    minute: str, hour: int, day: int, weekday: int, moment: int
) -> None:
    cron = Cron(f"{minute} {hour} {day} * {weekday}")
    found = cron.after(float(moment))
    step = 1 if minute == "*" else int(minute[2:])

    def fits(time_s: int) -> bool:
        local = datetime.fromtimestamp(time_s, UTC)
        either = local.day == day or local.isoweekday() % 7 == weekday
        return local.minute % step == 0 and local.hour == hour and either

    slow = moment - moment % 60 + 60
    while not fits(slow):
        slow += 60
    assert found == slow
