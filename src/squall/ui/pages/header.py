"""The first line: what runs, its progress, and whether its numbers can be trusted.

The verdict is never cut. On a narrow terminal the bar goes first, then the model, then the name
of the file.
"""

from __future__ import annotations

from squall.engine.load.profile import describe
from squall.reporting.number_format import clock
from squall.stats.manifest import WorkflowManifest
from squall.stats.snapshot import Snapshot, WorkflowSnapshot
from squall.ui.character_plots import bar
from squall.ui.state import VERDICT_STYLES, RunState
from squall.ui.styled_text import Line, Span, fitted, shortened, width_of
from squall.ui.terminal_style import TerminalStyle

_BAR_LEAST, _BAR_MOST = 6, 60


def header(state: RunState, name: str | None, width: int, terminal: TerminalStyle) -> Line:
    """`name` is the workflow of the page; None on the overview."""
    if name is None:
        parts, progress, share = _all_workflows(state)
    else:
        planned = state.planned(name)
        model = describe(planned.profile).partition(" for ")[0]
        parts = [state.manifest.path, name, model]
        progress, share = _progress(planned, state.moment(name))
    if state.snapshot is not None and state.snapshot.where:
        parts.append(state.snapshot.where)
    verdict = verdict_span(state.snapshot, terminal, max(width // 2, 8))
    right = [Span("  "), verdict, Span(" ")]
    room = max(width - width_of(right), 0)
    texts = _fitting([terminal.shown(part) for part in parts], progress, room, share is not None)
    spans = [Span(" " + "  ".join(texts[:-1]) + ("  " if texts[:-1] else ""), "strong")]
    spans.append(Span(texts[-1]))
    left = room - width_of(spans)
    if share is not None and left >= _BAR_LEAST + 7:
        percent = f"{int(share * 100):>4} %"
        size = min(left - 1 - len(percent), _BAR_MOST)
        spans += [Span(" "), Span(bar(share, size, terminal), "one"), Span(percent)]
    return (*fitted(spans, room), *fitted(right, width - room))


def verdict_span(snapshot: Snapshot | None, terminal: TerminalStyle, width: int) -> Span:
    if snapshot is None:
        return Span("starting", "dim")
    text: str = snapshot.verdict
    if snapshot.headline:
        text = f"{text}: {terminal.shown(snapshot.headline)}"
    return Span(shortened(text, width, terminal.more), VERDICT_STYLES[snapshot.verdict])


def time_of(planned: WorkflowManifest, moment: WorkflowSnapshot | None) -> str:
    """`01:12/05:00`; without the length if the model ends by itself, usually before it."""
    now = clock(round(moment.elapsed_s)) if moment is not None else clock(0)
    bounded = planned.profile.model in ("iterations", "once")
    return now if bounded else f"{now}/{clock(planned.profile.duration_s)}"


def share_done(planned: WorkflowManifest, moment: WorkflowSnapshot | None) -> float | None:
    """The share of the workflow that is done; None if it cannot be known."""
    profile = planned.profile
    if profile.model == "once":
        return None
    if moment is None:
        return 0.0
    if profile.model == "iterations":
        return moment.iterations / profile.iterations if profile.iterations else None
    return moment.elapsed_s / profile.duration_s if profile.duration_s else None


def _progress(
    planned: WorkflowManifest, moment: WorkflowSnapshot | None
) -> tuple[str, float | None]:
    text = time_of(planned, moment)
    if planned.profile.model == "iterations":
        text += f"  {moment.iterations if moment else 0} of {planned.profile.iterations}"
    share = share_done(planned, moment)
    return text, None if share is None else min(share, 1.0)


def _all_workflows(state: RunState) -> tuple[list[str], str, float | None]:
    moments = state.snapshot.workflows if state.snapshot is not None else ()
    running = sum(not moment.ended for moment in moments)
    ended = len(moments) - running
    waiting = len(state.names) - len(moments)
    counts = [(running, "running"), (ended, "ended"), (waiting, "waiting")]
    counts_text = ", ".join(f"{count} {word}" for count, word in counts if count)
    elapsed_s = state.snapshot.elapsed_s if state.snapshot is not None else 0.0
    parts = [state.manifest.path, f"{len(state.names)} workflows", counts_text]
    return parts, clock(round(elapsed_s)), None


def _fitting(parts: list[str], progress: str, room: int, has_bar: bool) -> list[str]:
    """The parts that fit, by importance: always the progress, the path of the file last."""
    wanted = room - (_BAR_LEAST + 7 if has_bar else 0)
    kept = [part for part in parts if part]

    def size() -> int:
        return 1 + width_of([Span("  ".join(filter(None, [*kept, progress])))])

    if size() > wanted and kept:
        # The end of a long path identifies it, so the folders go first.
        kept[0] = kept[0].rsplit("/", 1)[-1]
    for index, limit in ((2, wanted), (0, wanted), (1, room)):
        if size() > limit and index < len(kept):
            kept[index] = ""
    return [*(part for part in kept if part), progress]
