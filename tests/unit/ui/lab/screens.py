"""Made-up runs for the screen: manifests, snapshots, controls that remember."""

from __future__ import annotations

from typing import Any

from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from squall.stats.snapshot import (
    ErrorLine,
    NewError,
    RowSnapshot,
    Snapshot,
    ThresholdState,
    WorkflowSnapshot,
)
from squall.ui.controls import Controls
from squall.ui.pages.layout import draw
from squall.ui.selection import ViewSelection
from squall.ui.state import RunState
from squall.ui.styled_text import plain, width_of
from squall.ui.terminal_style import TerminalStyle

COLOUR = TerminalStyle()
NO_COLOUR = TerminalStyle(color=False)
ASCII = TerminalStyle(color=False, utf8=False)
TERMINALS = (COLOUR, NO_COLOUR, ASCII)
STEPS = ("login", "cart", "offers", "pay")
IDLE = Controls(stop=lambda: None, stop_now=lambda: None)


def workflow(name: str = "Shop", model: str = "open", **more: Any) -> WorkflowManifest:
    profile = {"rate_per_s": 500.0, "duration_s": 300.0, "iterations": 900, "max_vus": 2000}
    steps = [StepManifest(name=step, protocol="http") for step in more.pop("steps", STEPS)]
    profile |= more.pop("profile", {})
    made = Profile(model=model, **profile)  # type: ignore[arg-type]
    return WorkflowManifest(name=name, profile=made, steps=steps, **more)


def manifest(*workflows: WorkflowManifest) -> FileManifest:
    return FileManifest(path="shop.py", workflows=list(workflows or (workflow(),)))


def row(name: str, **more: Any) -> RowSnapshot:
    fields: dict[str, Any] = {
        "count": 36012,
        "failed": 7,
        "rate_now_per_s": 500.0,
        "p50_s": 0.0121,
        "p95_s": 0.044,
        "p99_s": 0.0982,
        "max_s": 1.204,
        "p999_s": 0.5,
        "first_byte_p99_s": 0.03,
        "samples_now": 500,
        "p50_now_s": 0.012,
        "p95_now_s": 0.043,
        "p99_now_s": 0.099,
    }
    return RowSnapshot(name=name, **(fields | more))


def moment(name: str = "Shop", elapsed_s: float = 72.0, **more: Any) -> WorkflowSnapshot:
    fields: dict[str, Any] = dict.fromkeys(WorkflowSnapshot.__struct_fields__[2:-2], 0)
    fields |= {
        "iterations": 35871,
        "rate_now_per_s": 498.0,
        "target_per_s": 500.0,
        "executions_now_per_s": 1992.0,
        "users": 120,
        "busy": 41,
        "p50_now_s": 0.0121,
        "p95_now_s": 0.044,
        "p99_now_s": 0.0982,
        "samples_now": 1992,
        "ended": False,
        "rows": tuple(row(step) for step in (*STEPS, "iteration")),
    }
    return WorkflowSnapshot(name=name, elapsed_s=elapsed_s, **(fields | more))


def snapshot(elapsed_s: float = 72.0, **more: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "workflows": (moment(elapsed_s=elapsed_s),),
        "cpu": 0.61,
        "processes": 2,
        "lag_p99_s": 0.0019,
        "gc_max_s": 0.0004,
    }
    return Snapshot(elapsed_s=elapsed_s, **(fields | more))


def busy_snapshot(elapsed_s: float = 72.0) -> Snapshot:
    """Errors, broken thresholds, checks, a verdict: everything that takes room."""
    lines = (
        ErrorLine(214 + int(elapsed_s), "pay", "503 Service Unavailable"),
        ErrorLine(61, "pay", "timeout after 5 s"),
        ErrorLine(7, "login", "connection reset"),
        ErrorLine(1, "pay", "KeyError 'id'"),
    )
    thresholds = (
        ThresholdState(
            expression="pay.p(99) < 800ms",
            condition="failing",
            value=912.0,
            unit="ms",
            workflow="Shop",
            row="pay",
        ),
        ThresholdState(expression="errors < 1%", condition="passing", value=0.21, unit="%"),
        ThresholdState(expression="checks > 99%", condition="pending"),
        ThresholdState(
            expression="errors < 100%", condition="passing", value=0.0, unit="%", builtin=True
        ),
    )
    shop = moment(elapsed_s=elapsed_s, errors=lines, checks_passed=35656, checks_failed=215)
    return snapshot(
        elapsed_s,
        workflows=(shop,),
        thresholds=thresholds,
        verdict="DEGRADED",
        reasons=("loop lag p99 31 ms: the generator was late to see answers",),
        headline="loop lag",
        new_errors=(
            NewError(
                workflow="Shop", row="pay", reason="KeyError 'id'", location="shop.py:31 in pay"
            ),
        ),
    )


def state_of(*snapshots: Snapshot, file: FileManifest | None = None) -> RunState:
    state = RunState(file or manifest(), processes=2)
    for each in snapshots:
        state.feed(each)
    return state


def drawn(
    state: RunState,
    width: int = 80,
    height: int = 24,
    *,
    view: ViewSelection | None = None,
    terminal: TerminalStyle = COLOUR,
    controls: Controls = IDLE,
) -> list[str]:
    """The screen as text; every line is checked to be as wide as the terminal."""
    lines = draw(state, view or ViewSelection(), controls, (width, height), terminal)
    assert len(lines) == height
    assert {width_of(line) for line in lines} == {width}
    return [plain(line) for line in lines]
