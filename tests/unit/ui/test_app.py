"""The app on a made-up terminal: keys, sizes, frames, mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

import squall.ui.app as app_module
from squall.ui.app import RunScreen
from squall.ui.controls import Controls
from squall.ui.state import RunState
from squall.ui.styled_text import plain
from tests.unit.ui.lab.screens import (
    COLOUR,
    IDLE,
    NO_COLOUR,
    busy_snapshot,
    manifest,
    moment,
    snapshot,
    workflow,
)


class Calls:
    """Controls that remember what was asked of them."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.made.append(name)

    def local(self) -> Controls:
        return Controls(self.note("stop"), self.note("now"))

    def cluster(self) -> Controls:
        return Controls(
            self.note("stop"),
            self.note("now"),
            pause=self.note("pause"),
            resume=self.note("resume"),
            adjust=lambda factor: self.made.append(round(factor, 3)),
        )


def text_of(app: RunScreen) -> list[str]:
    return [plain(line) for line in app.lines]


async def fed(app: RunScreen, pilot: Pilot[None], *snapshots: Any) -> None:
    for each in snapshots:
        app.feed(each)
    await pilot.pause()


async def ended(task: asyncio.Task[None]) -> bool:
    """By itself: an app that is cancelled ends too, and says nothing."""
    done, _ = await asyncio.wait([task], timeout=30)
    return bool(done)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [(80, 24), (200, 60), (50, 12), (20, 4)])
async def test_it_fills_the_terminal(size: tuple[int, int]) -> None:
    app = RunScreen(RunState(manifest(), 2), IDLE, COLOUR)
    async with app.run_test(size=size) as pilot:
        await fed(app, pilot, busy_snapshot())
        assert len(app.lines) == size[1]
        assert {len(line) for line in text_of(app)} == {size[0]}
        shown = app.export_screenshot()
        assert "DEGRADED" in shown or size[0] < 40


@pytest.mark.asyncio
async def test_a_new_size_is_a_new_layout() -> None:
    app = RunScreen(RunState(manifest(), 2), IDLE, COLOUR)
    async with app.run_test(size=(80, 24)) as pilot:
        await fed(app, pilot, busy_snapshot())
        assert any("generator" in line for line in text_of(app))
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        assert len(app.lines) == 10
        assert not any("generator" in line for line in text_of(app))
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert len(app.lines) == 24 and any("generator" in line for line in text_of(app))


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_the_first_stop_is_graceful_and_the_second_is_now(key: str) -> None:
    calls = Calls()
    app = RunScreen(RunState(manifest(), 2), calls.local(), COLOUR)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert calls.made == ["stop"]
        app.run_state.notice = "stopping; q again ends at once"
        app.changed()
        await pilot.pause()
        assert text_of(app)[-1].startswith(" stopping; q again ends at once")
        await pilot.press(key, key)
        assert calls.made == ["stop", "now", "now"]
        assert app.is_running, "the run ends the screen, not the key"


@pytest.mark.asyncio
async def test_pause_and_load_are_keys_only_where_they_can_be_done() -> None:
    local, cluster = Calls(), Calls()
    app = RunScreen(RunState(manifest(), 2), local.local(), COLOUR)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "plus", "minus")
    assert local.made == []
    app = RunScreen(RunState(manifest(), 2), cluster.cluster(), COLOUR)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "p", "plus", "minus")
    assert cluster.made == ["pause", "resume", 1.1, 0.909]


@pytest.mark.asyncio
async def test_pages_of_several_workflows() -> None:
    file = manifest(workflow("Shop"), workflow("Browse", "closed"))
    app = RunScreen(RunState(file, 2), IDLE, COLOUR)
    async with app.run_test(size=(80, 24)) as pilot:
        await fed(app, pilot, snapshot(workflows=(moment("Shop"), moment("Browse"))))

        async def header(*keys: str) -> str:
            await pilot.press(*keys)
            return text_of(app)[0]

        assert "2 workflows" in text_of(app)[0]
        assert "  Shop  " in await header("tab")
        assert "  Browse  " in await header("tab")
        assert "2 workflows" in await header("tab")
        assert "  Browse  " in await header("shift+tab")
        assert "  Shop  " in await header("1")
        assert "  Shop  " in await header("7"), "there is no such page"
        assert "2 workflows" in await header("0")
        assert "  Browse  " in await header("down", "enter")
        assert "2 workflows" in await header("escape")


@pytest.mark.asyncio
async def test_rows_plots_panes() -> None:
    app = RunScreen(RunState(manifest(), 2), IDLE, COLOUR)
    async with app.run_test(size=(80, 24)) as pilot:
        await fed(app, pilot, *(busy_snapshot(float(second)) for second in range(1, 6)))
        await pilot.press("down", "down", "up", "enter")
        assert "rate/s cart" in text_of(app)[1]
        await pilot.press("escape")
        assert "rate/s cart" not in text_of(app)[1]
        await pilot.press(*["down"] * 9)
        assert app.view.row == 4, "the choice stays in the table"
        await pilot.press("w")
        assert app.view.whole
        for number in range(50):
            app.run_state.note(f"printed {number}")
        await pilot.press("l")
        assert "printed 49" in text_of(app)[-2]
        await pilot.press("up", "pageup")
        assert "printed 38" in text_of(app)[-2]
        await pilot.press("question_mark")
        assert any("stop gracefully" in line for line in text_of(app))
        await pilot.press("question_mark")
        assert "rate/s" in text_of(app)[1]


@pytest.mark.asyncio
async def test_nothing_is_drawn_between_snapshots_and_only_what_changed() -> None:
    app = RunScreen(RunState(manifest(), 2), IDLE, COLOUR)
    async with app.run_test(size=(80, 24)) as pilot:
        await fed(app, pilot, snapshot(1.0))
        frames = app.frames
        refreshed: list[int] = []
        canvas = app.query_one(app_module.Canvas)
        before = canvas.refresh
        canvas.refresh = lambda *regions, **more: (  # type: ignore[method-assign]
            refreshed.append(len(regions)),
            before(*regions, **more),
        )[1]
        await pilot.pause(0.2)
        assert app.frames == frames
        await fed(app, pilot, snapshot(1.0))
        assert app.frames == frames + 1
        assert sum(refreshed) < 12, "the same numbers: the plots moved, the table did not"


@pytest.mark.asyncio
async def test_without_colour_no_colour_is_sent() -> None:
    for terminal, wanted in ((COLOUR, True), (NO_COLOUR, False)):
        app = RunScreen(RunState(manifest(), 2), IDLE, terminal)
        async with app.run_test(size=(80, 24)) as pilot:
            await fed(app, pilot, busy_snapshot())
            canvas = app.query_one(app_module.Canvas)
            styles = [seg.style for y in range(24) for seg in canvas.render_line(y) if seg.style]
            assert any(style.color is not None for style in styles) is wanted


@pytest.mark.asyncio
async def test_a_mistake_while_drawing_ends_the_app_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    app = RunScreen(RunState(manifest(), 2), IDLE, COLOUR)

    def broken(*_: object) -> list[Any]:
        raise ZeroDivisionError("a plot")

    task = asyncio.create_task(app.run_async(headless=True, size=(80, 24)))
    while not app.lines:
        await asyncio.sleep(0)
    monkeypatch.setattr(app_module, "draw", broken)
    app.feed(snapshot())
    assert await ended(task)
    assert isinstance(app.failure, ZeroDivisionError)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.asyncio
async def test_a_keyboard_that_is_gone_ends_the_app() -> None:
    app = RunScreen(RunState(manifest(), 2), IDLE, COLOUR)
    task = asyncio.create_task(app.run_async(headless=True, size=(80, 24)))
    while not app.lines:
        await asyncio.sleep(0)
    app.call_later(app.panic, "no more input")
    assert await ended(task)
    assert isinstance(app.failure, OSError)


@pytest.mark.asyncio
async def test_the_tasks_of_the_run_stay_as_they_are() -> None:
    loop = asyncio.get_running_loop()

    def own(loop: Any, coroutine: Any, **more: Any) -> Any:
        return asyncio.Task(coroutine, loop=loop, **more)

    loop.set_task_factory(own)
    app = RunScreen(RunState(manifest(), 2), IDLE, COLOUR)
    async with app.run_test(size=(80, 24)):
        assert loop.get_task_factory() is own
