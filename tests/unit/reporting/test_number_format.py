"""Numbers as people read and grep them."""

from __future__ import annotations

import pytest

from squall.reporting import number_format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.204, "1.20"),
        (12.14, "12.1"),
        (9.996, "10.0"),
        (99.96, "100"),
        (999.6, "1000"),
        (4031.4, "4031"),
        (149871, "149871"),
        (0.0833, "0.0833"),
        (0.5, "0.500"),
        (1, "1.00"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert fmt.three_digits(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (1.204, "1.20 s"),
        (0.0121, "12.1 ms"),
        (0.0084, "8.40 ms"),
        (0.912, "912 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (0.000812, "0.812 ms"),
        (0.000045, "45.0 us"),
        (4.0312, "4.03 s"),
        (75.25, "75.2 s"),
        (1204.0, "1204 s"),
    ],
)
def test_a_duration_cell_has_one_unit(seconds: float, text: str) -> None:
    assert fmt.duration(seconds) == text
    assert fmt.tight_duration(seconds) == text.replace(" ", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.004, "4 ms"),
        (0.0008, "0.8 ms"),
        (0.0019, "1.9 ms"),
        (0.640, "640 ms"),
        (1.5, "1.5 s"),
        (0.00999, "10 ms"),
        (0.0000456, "45.6 us"),
    ],
)
def test_a_duration_in_a_sentence_drops_empty_digits(seconds: float, text: str) -> None:
    assert fmt.brief_duration(seconds) == text


@pytest.mark.parametrize(
    ("per_s", "text"), [(0, "0"), (500, "500/s"), (12.14, "12.1/s"), (0.8333, "0.833/s")]
)
def test_rates(per_s: float, text: str) -> None:
    assert fmt.rate(per_s) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.0002, "0.02 %"),
        (0.0077, "0.77 %"),
        (0.00002, "0.002 %"),
        (0.0000001, "<0.0001 %"),
        (0.1254, "12.5 %"),
        (0.5, "50 %"),
        (0.994, "99.4 %"),
        (0.9997, "99.97 %"),
        (0.999999, "99.99 %"),
    ],
)
def test_a_proportion_is_never_rounded_to_none_or_all(fraction: float, text: str) -> None:
    assert fmt.percent(fraction) == text


def test_the_failed_column_shows_a_bare_zero() -> None:
    assert fmt.percent_cell(0) == "0"
    assert fmt.percent_cell(0.25) == "25 %"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (999, "999 B"),
        (1350, "1.35 kB"),
        (999_600, "1.00 MB"),
        (70_500_000, "70.5 MB"),
        (405_000_000, "405 MB"),
        (3.2e18, "3200 PB"),
    ],
)
def test_sizes_use_powers_of_a_thousand(count: float, text: str) -> None:
    assert fmt.data_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300.02, "5m00s"),
        (10.02, "10s"),
        (3.42, "3.4s"),
        (3.0, "3s"),
        (3723.4, "1h02m03s"),
        (0.0084, "8.4ms"),
        (0.5, "500ms"),
    ],
)
def test_the_length_of_a_run(seconds: float, text: str) -> None:
    assert fmt.length(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (912, "ms", "912 ms"),
        (2100, "ms", "2.10 s"),
        (0, "ms", "0"),
        (0.21, "%", "0.21 %"),
        (0, "%", "0 %"),
        (9.8, "/s", "9.80/s"),
        (148717, "", "148717"),
        (0.5, "", "0.500"),
        (12, "MB", "12 MB"),
    ],
)
def test_a_measured_value_carries_its_unit(value: float, unit: str, text: str) -> None:
    assert fmt.measured(value, unit) == text


def test_the_clock_shows_hours_only_when_there_are_some() -> None:
    assert fmt.clock(12.9) == "00:12"
    assert fmt.clock(300) == "05:00"
    assert fmt.clock(3723) == "1:02:03"


@pytest.mark.parametrize(
    ("value", "unit", "limit", "text"),
    [
        (98.996, "%", 99.0, "98.996 %"),
        (98.4, "%", 99.0, "98.4 %"),
        (99.0, "%", 99.0, "99 %"),
        (500.04, "ms", 500.0, "500.04 ms"),
        (1000.4, "ms", 1000.0, "1000.4 ms"),
        (799.0, "ms", 800.0, "799 ms"),
        (9.99996, "/s", 10.0, "9.99996/s"),
        (0.100000001, "", 0.1, "0.100000001"),
        (912.0, "ms", None, "912 ms"),
    ],
)
def test_a_judged_value_can_be_told_from_its_limit(
    value: float, unit: str, limit: float | None, text: str
) -> None:
    assert fmt.judged(value, unit, limit) == text


def test_a_judged_value_without_samples_says_of_what() -> None:
    assert fmt.judged(None, "ms", 5.0) == "no samples"
    assert fmt.judged(None, "%", 5.0, "no samples of a, b") == "no samples of a, b"
    assert fmt.judged(None, "ms", 5.0, "service time") == "no samples"
