from __future__ import annotations

import math

import pytest

from squall.api.errors import ConfigError
from squall.api.quantities import (
    format_duration,
    format_rate,
    parse_count,
    parse_duration,
    parse_expect,
    parse_rate,
    parse_span,
    parse_stage,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("1m", 60.0),
        ("1m30s", 90.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("100ms", 0.1),
        ("7us", 7e-6),
        ("2h", 7200.0),
        ("1d2h3m4s5ms", 93784.005),
        (" 10s ", 10.0),
        ("10", 10.0),
        ("0.5", 0.5),
        (10, 10.0),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_numbers_with_units_and_a_bare_number_is_seconds(
    text: str | float, seconds: float
) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "s", "5x", "1m30", "-1s", "1 s", "1,5s", "1e3s", "5 minutes", "nan", "inf", "٣s"],
)
def test_a_text_that_is_no_duration_is_quoted_with_what_would_be_right(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration(text, "timeout")
    assert str(caught.value).startswith(f'timeout "{text}" is not a duration')
    assert '"1m30s"' in str(caught.value)


@pytest.mark.parametrize("value", ["0s", "0", 0, 0.0, -1, -0.5])
def test_a_duration_of_zero_or_less_is_refused(value: str | float) -> None:
    with pytest.raises(ConfigError, match="must be more than 0"):
        parse_duration(value)


def test_zero_is_a_duration_only_where_the_caller_allows_it() -> None:
    assert parse_duration("0s", zero_ok=True) == 0.0
    with pytest.raises(ConfigError):
        parse_duration(-1, zero_ok=True)


@pytest.mark.parametrize("value", [True, None, [1], math.nan, math.inf, 10**400])
def test_a_value_that_is_neither_text_nor_a_finite_number_is_no_amount(value: object) -> None:
    for parse in (parse_duration, parse_rate, parse_count):
        with pytest.raises(ConfigError):
            parse(value)  # type: ignore[arg-type]


def test_a_text_too_large_for_a_number_is_refused() -> None:
    for parse in (parse_duration, parse_rate, parse_count):
        with pytest.raises(ConfigError):
            parse("9" * 400)


@pytest.mark.parametrize(
    ("seconds", "text", "compact"),
    [
        (0, "0s", "0s"),
        (0.0000005, "0.5us", "0.5us"),
        (0.25, "250ms", "250ms"),
        (0.0125, "12.5ms", "12.5ms"),
        (1.5, "1.5s", "1.5s"),
        (10, "10s", "10s"),
        (59.9999, "1m00s", "1m"),
        (90.4, "1m30s", "1m30s"),
        (300, "5m00s", "5m"),
        (3600, "1h00m00s", "1h"),
        (3605, "1h00m05s", "1h00m05s"),
        (3720, "1h02m00s", "1h02m"),
        (93600, "26h00m00s", "26h"),
        (-10, "-10s", "-10s"),
    ],
)
def test_durations_are_written_for_people(seconds: float, text: str, compact: str) -> None:
    assert format_duration(seconds) == text
    assert format_duration(seconds, compact=True) == compact


@pytest.mark.parametrize("seconds", [0.0009999996, 0.9999996, 59.9996])
def test_rounding_never_writes_a_full_next_unit(seconds: float) -> None:
    assert format_duration(seconds) in ("1ms", "1s", "1m00s")


@pytest.mark.parametrize(
    ("value", "per_s"),
    [
        ("500/s", 500.0),
        ("30/m", 0.5),
        ("10/h", 10 / 3600),
        ("1.5/s", 1.5),
        ("10k/s", 10000.0),
        ("500", 500.0),
        (500, 500.0),
        (0.5, 0.5),
    ],
)
def test_a_rate_is_starts_per_second(value: str | float, per_s: float) -> None:
    assert parse_rate(value) == per_s


@pytest.mark.parametrize("value", ["", "/s", "5x", "5/d", "-5/s", "5/ms", "0/s", 0, -1])
def test_a_wrong_rate_is_named(value: str | float) -> None:
    with pytest.raises(ConfigError, match=r'^rate .*"500/s"'):
        parse_rate(value)


@pytest.mark.parametrize(
    ("per_s", "text"), [(500, "500/s"), (0.5, "0.5/s"), (1_000_000, "1000000/s"), (0, "0/s")]
)
def test_rates_are_written_without_exponents(per_s: float, text: str) -> None:
    assert format_rate(per_s) == text


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("10k", 10_000),
        ("10K", 10_000),
        ("1m", 1_000_000),
        ("1.5k", 1500),
        (1000, 1000),
        ("10_000", 10_000),
        ("7", 7),
        (7.0, 7),
    ],
)
def test_a_count_knows_thousands_and_millions(value: str | float, count: int) -> None:
    result = parse_count(value)
    assert result == count
    assert type(result) is int


@pytest.mark.parametrize("value", ["", "k", "1.5", 1.5, "1.0005k", "0", 0, -3, "-3", "1__0", "ten"])
def test_a_wrong_count_is_named(value: str | float) -> None:
    with pytest.raises(ConfigError, match=r'^users .*"10k"'):
        parse_count(value, "users")


def test_the_least_count_is_the_callers_choice() -> None:
    assert parse_count(0, least=0) == 0
    with pytest.raises(ConfigError, match="at least 2"):
        parse_count(1, least=2)


def test_a_span_is_one_time_or_two() -> None:
    assert parse_span("1s") == (1.0, 1.0)
    assert parse_span("1s..3s") == (1.0, 3.0)
    assert parse_span("0s..500ms") == (0.0, 0.5)
    assert parse_span(2) == (2.0, 2.0)


@pytest.mark.parametrize("text", ["3s..1s", "..3s", "1s..", "1s..x", "1s...3s", "0s", "0s..0s"])
def test_a_wrong_span_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^think "):
        parse_span(text, "think")


def test_the_unit_of_a_stage_says_whether_it_counts_users_or_starts() -> None:
    assert parse_stage("30s:100") == (30.0, 100.0, False)
    assert parse_stage("1m:50/s") == (60.0, 50.0, True)
    assert parse_stage("1m:30/m") == (60.0, 0.5, True)
    assert parse_stage("10s:0") == (10.0, 0.0, False)
    assert parse_stage("10s:0/s") == (10.0, 0.0, True)
    assert parse_stage("1m:10k") == (60.0, 10_000.0, False)


def test_a_stage_without_length_is_a_jump() -> None:
    assert parse_stage("0s:50/s") == (0.0, 50.0, True)


@pytest.mark.parametrize("text", ["", "30s", ":100", "30s:", "x:100", "30s:1.5", "30s:-1", "-1s:5"])
def test_a_wrong_stage_is_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_stage(text)
    assert str(caught.value).startswith(f'stage "{text}"')


def test_a_stage_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="30s:100"):
        parse_stage(30)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "ranges"),
    [
        (200, [(200, 200)]),
        ([200, 302], [(200, 200), (302, 302)]),
        ("2xx", [(200, 299)]),
        ("2XX", [(200, 299)]),
        ("200-299", [(200, 299)]),
        ("2xx,302", [(200, 299), (302, 302)]),
        ("302, 2xx", [(200, 299), (302, 302)]),
        (range(200, 300), [(200, 299)]),
        (range(200, 205, 2), [(200, 200), (202, 202), (204, 204)]),
        (["2xx", 304], [(200, 299), (304, 304)]),
        ("2xx,3xx", [(200, 399)]),
        ("200-250,240-260", [(200, 260)]),
    ],
)
def test_expected_statuses_become_sorted_ranges(
    value: int | str | range | list[int | str], ranges: list[tuple[int, int]]
) -> None:
    assert parse_expect(value) == ranges


@pytest.mark.parametrize(
    "value",
    [
        *("", "20", "ok", "abc", "299-200", "2xx,", 99, 1000, True, None, [], [None], 2.0),
        *("7xx", "0xx", "6XX", "999", "600", "-200", "500-600", "2xx,7xx", "200-"),
        *(0, -200, 600, 999, [200, 999], ["2xx", "9xx"], range(300, 200), range(10**12)),
        *(b"200", {200: 302, 999: 1}, {"2xx": "9xx", "7xx": 1}, object()),
    ],
)
def test_a_wrong_status_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match=r'^expect .*"2xx"'):
        parse_expect(value)  # type: ignore[arg-type]
