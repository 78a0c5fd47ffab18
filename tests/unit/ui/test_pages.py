"""The whole screen as lines, for all sizes, terminal styles and pages."""

from __future__ import annotations

import pytest

from squall.stats.snapshot import DatacenterSnapshot, ErrorLine, ThresholdState
from squall.ui.controls import Controls
from squall.ui.pages.layout import draw
from squall.ui.pages.step_table import stat_of
from squall.ui.selection import ViewSelection
from squall.ui.state import RunState
from squall.ui.terminal_style import TerminalStyle
from tests.unit.ui.lab.screens import (
    ASCII,
    COLOUR,
    NO_COLOUR,
    TERMINALS,
    busy_snapshot,
    drawn,
    manifest,
    moment,
    row,
    snapshot,
    state_of,
    workflow,
)

SIZES = ((80, 24), (200, 60), (120, 40), (60, 15), (59, 14), (40, 10), (20, 5), (8, 2), (1, 1))


def busy(seconds: int = 5) -> RunState:
    return state_of(*(busy_snapshot(float(second)) for second in range(68, 68 + seconds)))


def many() -> RunState:
    file = manifest(
        workflow("Setup", "once", steps=("tenant",)),
        workflow("Shop"),
        workflow("Browse", "closed"),
        workflow("Import", "iterations"),
        workflow("Teardown", "once", steps=("remove",)),
    )
    shown = (
        moment("Setup", 1.0, ended=True),
        moment("Shop", 71.0, errors=(ErrorLine(3, "pay", "timeout"),)),
        moment("Browse", 71.0, target_per_s=None),
        moment("Import", 71.0, iterations=450),
    )
    return state_of(snapshot(workflows=shown), file=file)


def test_the_usual_screen_says_everything_on_80x24() -> None:
    text = drawn(busy())
    assert text[0].startswith(" shop.py  Shop  open 500/s  01:12/05:00 ")
    assert text[0].rstrip().endswith("24 %  DEGRADED: loop lag")
    assert "rate/s" in text[1] and "498 of 500" in text[1]
    assert "p50 12.1  p95 44.0  p99 98.2" in text[1]
    whole = "\n".join(text)
    for line in (
        "286  pay    503 Service Unavailable",
        "1  pay    KeyError 'id' shop.py:31",
        "✗  pay.p(99) < 800ms",
        "✓  errors < 1%",
        "checks 99.4 % of 35871",
        "cpu 61 % of 2 cores   loop lag p99 1.9 ms   users 41 busy of 120 (max 2000)",
        "loop lag p99 31 ms: the generator was late",
    ):
        assert line in whole, line
    assert "errors < 100%" not in whole, "what is built in shows itself only when it fails"
    assert text[-1].startswith(" q stop and report ") and "? help" in text[-1]


def test_a_broken_threshold_marks_its_cell_with_sign_and_colour() -> None:
    lines = draw(busy(), ViewSelection(), Controls(lambda: None, lambda: None), (80, 24), COLOUR)
    marked = [span for line in lines for span in line if "▲" in span.text]
    assert [(span.text.split(), span.style) for span in marked] == [(["▲", "98.2"], "bad")]
    [text] = [line for line in drawn(busy()) if "▲" in line]
    assert text.startswith(" pay ")


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        ("pay.p(99) < 800ms", "p99"),
        ("Shop.pay.p(99.9) < 1s", "p99.9"),
        ("pay.errors < 1%", "failed"),
        ("pay.rps > 10/s", "rate"),
        ("pay.service.p(99) < 1s", ""),
        ("pay.first_byte.p(99) < 1s", "first byte p99"),
        ("pay.avg < 1s", ""),
    ],
)
def test_a_threshold_finds_its_column(expression: str, column: str) -> None:
    assert stat_of(expression) == column


def test_a_threshold_without_a_column_marks_the_name() -> None:
    state = ThresholdState(expression="pay.avg < 1ms", condition="failing", row="pay", value=2.0)
    text = drawn(state_of(snapshot(thresholds=(state,))))
    assert [line[:17].split() for line in text if "▲" in line] == [["pay", "▲"]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("terminal", TERMINALS)
def test_every_page_fits_every_size(size: tuple[int, int], terminal: TerminalStyle) -> None:
    views = [
        ViewSelection(),
        ViewSelection(pane="help"),
        ViewSelection(pane="log"),
        ViewSelection(whole=True),
        ViewSelection(row=3, step=True),
        *(ViewSelection(page=page, row=9) for page in range(6)),
    ]
    for state in (busy(), busy(300), many(), RunState(manifest(), 2), RunState(many().manifest, 1)):
        for view in views:
            drawn(state, *size, view=view, terminal=terminal)


def test_ascii_has_nothing_but_ascii() -> None:
    odd = moment(rows=(row("zahlung-ü"), row("支払い"), row("iteration")))
    for state in (busy(100), many(), state_of(snapshot(workflows=(odd,)))):
        for size in ((80, 24), (200, 60), (40, 10)):
            assert "".join(drawn(state, *size, terminal=ASCII)).isascii()


def test_without_colour_signs_are_words() -> None:
    whole = "\n".join(drawn(busy(), terminal=NO_COLOUR))
    assert "x  pay.p(99) < 800ms" in whole and "ok errors < 1%" in whole and "^ 98.2" in whole
    assert not set("✓✗▲") & set(whole)


def test_a_tiny_terminal_has_header_table_and_errors() -> None:
    text = drawn(busy(), 50, 12)
    whole = "\n".join(text)
    assert "Shop" in text[0] and "DEGRADED" in text[0]
    assert "p99" in text[1] and "iteration" in whole and "503 Service" in whole
    assert "generator" not in whole and "latency" not in whole


def test_a_large_terminal_adds_columns_plots_and_the_log() -> None:
    whole = "\n".join(drawn(busy(), 200, 60))
    for word in ("p99.9", "first byte p99", "users", "generator cpu %", "log ──", "(first)"):
        assert word in whole
    assert "log ──" not in "\n".join(drawn(busy(), 120, 40))


def test_the_overview_has_one_row_for_each_workflow() -> None:
    text = drawn(many())
    assert text[0].startswith(" shop.py  5 workflows  3 running, 1 ended, 1 waiting")
    rows = {line.split()[1]: line for line in text[11:16]}
    assert list(rows) == ["Setup", "Shop", "Browse", "Import", "Teardown"]
    assert "ended" in rows["Setup"] and "waiting" in rows["Teardown"] and "50 %" in rows["Import"]
    assert "Shop.pay" in "\n".join(text), "errors of all workflows name theirs"
    assert drawn(many(), view=ViewSelection(page=2))[0].startswith(" shop.py  Shop  open")


def test_a_table_that_is_too_long_says_so_and_follows_the_choice() -> None:
    names = [f"step{number:02d}" for number in range(30)]
    rows = tuple(row(name) for name in names)
    state = state_of(snapshot(workflows=(moment(rows=rows),)))
    whole = "\n".join(drawn(state))
    assert "step00" in whole and "step29" not in whole and "more rows" in whole
    whole = "\n".join(drawn(state, view=ViewSelection(row=29)))
    assert "▸step29" in whole and "step00" not in whole


def test_enter_shows_the_plots_of_one_step() -> None:
    text = drawn(busy(), view=ViewSelection(row=3, step=True))
    assert "rate/s pay" in text[1] and "latency ms pay" in text[1]


def test_a_short_run_fills_the_plot_and_a_long_one_slides() -> None:
    file = manifest(workflow(profile={"duration_s": 10.0}))
    state = state_of(*(snapshot(float(second + 1)) for second in range(10)), file=file)
    times = next(line for line in drawn(state) if "00:00" in line and "00:10" in line)
    assert times.count("00:10") == 2
    long = state_of(*(snapshot(float(second + 1)) for second in range(250)))
    assert any("04:10" in line and "00:00" not in line for line in drawn(long)[2:12])
    assert any("00:00" in line for line in drawn(long, view=ViewSelection(whole=True))[2:12])


def test_control_characters_of_a_message_do_not_move_the_cursor() -> None:
    evil = (ErrorLine(3, "pay", "bad\x1b[2J\r\nnews"),)
    state = state_of(snapshot(workflows=(moment(errors=evil),)))
    state.note("\x1b]0;title\x07 printed")
    for view in (ViewSelection(), ViewSelection(pane="log")):
        assert not set("\x1b\r\x07") & set("".join(drawn(state, view=view)))


def test_keys_are_offered_for_what_the_controls_can() -> None:
    assert "pause" not in drawn(busy())[-1]
    able = Controls(*[lambda: None] * 4, adjust=lambda factor: None)  # type: ignore[arg-type]
    assert "p pause   +/- rate" in drawn(busy(), 120, 40, controls=able)[-1]


def test_a_cluster_says_where_it_runs_and_what_it_lost() -> None:
    shot = snapshot(where="2 dc  12 workers  leader m2", losses=("worker w7 lost, refilled",))
    whole = "\n".join(drawn(state_of(shot), 120, 30))
    assert "2 dc  12 workers  leader m2" in whole and "worker w7 lost, refilled" in whole


def test_a_narrow_header_gives_up_the_model_the_file_and_the_bar_but_not_the_verdict() -> None:
    state = busy()
    state.manifest.path = "/srv/load/tests/shop.py"
    assert drawn(state, 120)[0].startswith(
        " /srv/load/tests/shop.py  Shop  open 500/s  01:12/05:00 "
    )
    assert drawn(state, 80)[0].startswith(" shop.py  Shop  open 500/s  01:12/05:00 ")
    assert drawn(state, 60)[0].startswith(" Shop  01:12/05:00 ")
    narrow = drawn(state, 44)[0]
    assert narrow.startswith(" Shop  01:12/05:00 ") and "%" not in narrow
    assert narrow.rstrip().endswith("DEGRADED: loop lag")


def in_datacenters(*names: str, silent: str = "") -> RunState:
    parts = tuple(
        DatacenterSnapshot(
            name=name,
            part=1 / len(names),
            state="running",
            workers=2,
            users=60,
            iterations_now_per_s=249.0,
            target_per_s=250.0,
            p95_now_s=0.044,
            samples_now=249,
            silent_s=7.0 if name == silent else 0.0,
        )
        for name in names
    )
    return state_of(snapshot(datacenters=parts, where="2 dc  4 workers"))


def test_each_datacenter_has_a_line_under_the_plots() -> None:
    for size in ((80, 24), (200, 60)):
        text = drawn(in_datacenters("eu", "us"), *size)
        at = next(place for place, line in enumerate(text) if "datacenter" in line)
        assert "rate/s" in text[1] and at > 5
        assert text[at + 1].split()[:6] == ["eu", "50", "%", "249", "250", "0"]
        assert text[at + 2].startswith(" us ")
        assert "step" in text[at + 3] or "users" in text[at + 3]


def test_a_silent_datacenter_is_red_and_says_for_how_long() -> None:
    state = in_datacenters("eu", "us", silent="us")
    lines = draw(state, ViewSelection(), Controls(lambda: None, lambda: None), (80, 24), COLOUR)
    row = next(line for line in lines if any(span.text.strip() == "us" for span in line))
    assert [span.style for span in row if span.text.strip()] == ["bad", "bad"]
    assert "silent for 7 s" in "".join(span.text for span in row)


def test_datacenters_that_do_not_fit_are_counted_and_the_silent_ones_shown() -> None:
    names = [f"dc{number}" for number in range(20)]
    text = "\n".join(drawn(in_datacenters(*names, silent="dc19")))
    assert "17 more datacenters" in text
    assert "silent for 7 s" in text


@pytest.mark.parametrize("size", SIZES)
def test_datacenters_fit_every_size(size: tuple[int, int]) -> None:
    text = drawn(in_datacenters("eu-central-1", "us-east-1", "ap"), *size)
    assert len(text) == size[1] and all(len(line) == size[0] for line in text)
