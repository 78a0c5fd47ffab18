"""The history behind the plots: bounded, and exact at its peaks."""

from __future__ import annotations

import pytest

from squall.ui.history import LIMIT, History, Point
from squall.ui.pages.charts import TimeRange, When, axis_number
from squall.ui.terminal_style import TerminalStyle


def test_six_hours_stay_bounded_and_keep_their_peak_and_mean() -> None:
    history = History()
    seconds = 6 * 3600
    for second in range(seconds):
        peak = 9.0 if second == 12_345 else 0.1
        history.add(Point(rate=second % 2 * 100.0, target=50.0, p99=peak, users=second % 7))
    assert len(history.recent) == LIMIT
    assert LIMIT // 2 <= len(history.whole) <= LIMIT
    assert len(history.whole) * history.width <= seconds < (len(history.whole) + 1) * history.width
    assert max(point.p99 or 0.0 for point in history.whole) == 9.0
    assert {round(point.rate) for point in history.whole} == {50}
    assert {point.target for point in history.whole} == {50.0}
    assert max(point.users for point in history.whole) == 6


def test_a_stretch_is_the_mean_of_its_seconds_not_of_their_pairs() -> None:
    history = History(limit=2)
    for rate in (1.0, 2.0, 3.0, 10.0, 0.0, 0.0, 0.0, 0.0):
        history.add(Point(rate=rate))
    assert history.width == 8
    assert [point.rate for point in history.whole] == [pytest.approx(2.0)]


def test_seconds_without_samples_leave_no_percentile() -> None:
    history = History(limit=2)
    for p50 in (None, None, None, 0.2):
        history.add(Point(p50=p50))
    assert [point.p50 for point in history.whole] == [0.2]
    assert Point().p50 is None


def test_the_whole_run_is_plotted_up_to_now() -> None:
    history = History(limit=8)
    for second in range(21):
        history.add(Point(rate=float(second)))
    assert history.width == 4
    shown = TimeRange(history, 40, TerminalStyle(), When(21.0, whole=True))
    assert (shown.from_s, shown.until_s) == (0.0, 21.0)
    assert shown.points[-1].rate == 20.0
    planned = TimeRange(history, 40, TerminalStyle(), When(21.0, whole=True, length_s=40.0))
    assert (planned.from_s, planned.until_s) == (0.0, 37.0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.5, "1.5"), (999.4, "999"), (999.7, "1000"), (9999.0, "9999"), (2e4, "20k")],
)
def test_the_number_at_an_axis_has_no_exponent(value: float, shown: str) -> None:
    assert axis_number(value) == shown
