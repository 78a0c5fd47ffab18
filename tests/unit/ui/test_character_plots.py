"""Plots, sparklines and bars as pure functions."""

from __future__ import annotations

import pytest

from squall.ui.character_plots import (
    Curve,
    bar,
    draw_curves,
    highest,
    mean,
    nice_top,
    resampled,
    sparkline,
    spread,
)
from squall.ui.styled_text import plain
from tests.unit.ui.lab.screens import ASCII, COLOUR


def ascii_plot(values: list[float | None], height: int, top: float) -> list[str]:
    lines = draw_curves([Curve(values, "one", "*")], len(values), height, top, ASCII)
    return [plain(line) for line in lines]


def test_ascii_puts_each_value_on_its_row_and_joins_jumps() -> None:
    assert ascii_plot([0.0, 1.0, 2.0, 2.0, 0.0], 3, 2.0) == [
        "  ** ",
        " *  *",
        "*   *",
    ]


def test_a_gap_is_empty_and_not_joined() -> None:
    assert ascii_plot([2.0, None, 0.0], 3, 2.0) == ["*  ", "   ", "  *"]


def test_values_beyond_the_top_stay_inside() -> None:
    assert ascii_plot([99.0, -5.0], 2, 2.0) == ["* ", " *"]


def test_braille_has_two_columns_and_four_rows_in_a_cell() -> None:
    def one(values: list[float | None]) -> str:
        [line] = draw_curves([Curve(values, "one")], 1, 1, 3.0, COLOUR)
        return plain(line)

    assert one([0.0]) == "⡀"
    assert one([3.0]) == "⠁"
    assert one([0.0, 0.0]) == "⣀"
    assert one([0.0, 3.0]) == "⡸", "the jump is joined in the second column"
    assert one([None, None]) == " "


def test_later_curves_lie_on_top_and_neighbours_share_a_span() -> None:
    below, above = Curve([0.0] * 4, "dim", "-"), Curve([None, 0.0, 0.0, None], "bad", "x")
    [line] = draw_curves([below, above], 4, 1, 1.0, ASCII)
    assert [(span.text, span.style) for span in line] == [("-", "dim"), ("xx", "bad"), ("-", "dim")]


@pytest.mark.parametrize(
    ("value", "top"),
    [(0.0, 1.0), (498.0, 600.0), (98.2, 200.0), (0.9, 1.0), (1.0, 2.0), (3.9, 5.0)],
)
def test_an_axis_ends_at_a_round_number_above(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_an_axis_never_ends_below_a_value() -> None:
    for exponent in range(-6, 10):
        for digit in range(10, 100):
            value = digit / 10 * 10.0**exponent
            assert value < nice_top(value) <= value * 2.5


def test_a_bar_fills_in_eighths() -> None:
    assert bar(0.0, 4, COLOUR) == "    "
    assert bar(1.0, 4, COLOUR) == "████"
    assert bar(0.53125, 4, COLOUR) == "██▏ "
    assert bar(7.0, 3, COLOUR) == "███"
    assert bar(0.5, 4, ASCII) == "##  "


def test_a_sparkline_shows_anything_above_nothing() -> None:
    assert sparkline([0, 1, 1000], 3, COLOUR) == " ▁█"
    assert sparkline([5], 3, COLOUR) == "  █"
    assert sparkline([0, 0], 2, ASCII) == "  "
    assert len(sparkline(list(range(60)), 8, COLOUR)) == 8


def test_resampling_keeps_peaks_and_means() -> None:
    values: list[float | None] = [0.0, 10.0, 0.0, 0.0, None, 4.0]
    assert resampled(values, 3, highest) == [10.0, 0.0, 4.0]
    assert resampled(values, 3, mean) == [5.0, 0.0, 4.0]
    assert resampled([None, None], 1, mean) == [None]


def test_spreading_draws_straight_lines_between_values() -> None:
    assert spread([0.0, 4.0], 4) == [0.0, 2.0, 4.0, 4.0]
    assert spread([1.0, None], 4) == [1.0, 1.0, None, None]
    assert spread([], 4) == []
