"""A bounded number of windows over any length of run."""

from __future__ import annotations

from squall.stats.totals.run import RunStats
from squall.stats.totals.windows import MAX_WINDOWS, RowWindow, Series
from tests.unit.stats.lab.reports import StartsDelta, file_manifest, row, window


def test_neighbours_are_merged_when_there_are_too_many() -> None:
    series: Series[RowWindow] = Series(RowWindow, limit=4)
    for second in range(5):
        series.at(second).count += second + 1
    assert series.width_s == 2
    assert [each.count for each in series] == [3, 7, 5]


def test_a_jump_far_ahead_doubles_the_width_as_often_as_needed() -> None:
    series: Series[RowWindow] = Series(RowWindow, limit=4)
    series.at(0).count = 1
    series.at(100).count = 1
    assert (series.width_s, len(series)) == (32, 4)
    assert [each.count for each in series] == [1, 0, 0, 1]


def test_six_hours_stay_bounded_and_lose_no_count() -> None:
    stats = RunStats(file_manifest())
    seconds = 6 * 3600
    delta = row("pay", [0.010, 0.020])
    for second in range(0, seconds, 5):
        starts = StartsDelta(planned=2, made=2)
        stats.add(window(second, [delta], users=second % 7, starts=starts))
    shop = stats.workflows["Shop"]
    windows = shop.rows["pay"].windows
    assert len(windows) <= MAX_WINDOWS
    assert windows.width_s == shop.windows.width_s == 8
    assert sum(each.count for each in windows) == shop.rows["pay"].count == seconds // 5 * 2
    assert sum(each.latency.count for each in windows) == shop.rows["pay"].count
    assert sum(each.made for each in shop.windows) == shop.starts.made
    assert max(each.users for each in shop.windows) == 6, "users are a level, never summed"


def test_late_reports_find_their_window_after_a_merge() -> None:
    series: Series[RowWindow] = Series(RowWindow, limit=2)
    series.at(3).count += 1
    series.at(1).count += 1
    assert [each.count for each in series] == [1, 1]
