"""Explains why a part of a job went to a datacenter: plain data, and its text for people.

The gate that decides makes the text and stores it with the assignment, so a gate that takes over
later shows the numbers of that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.cluster.gate.routing.scores import Score

CHOSEN = "chosen"
SHOWN_MAX = 8
"""Candidates in a text. It is stored with every try of every part, and one command of at most
256 kB assigns all parts of a job, which may be a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateNote:
    """One datacenter in a decision."""

    name: str
    health: str
    score: Score | None = None
    """None: it could not be chosen."""
    outcome: str = ""
    """`CHOSEN`, or nothing."""
    reason: str = ""
    """Of its health, or why it refused this job."""
    cool_down_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingExplanation:
    """One decision: for which share of the job, from which candidates, by which rule."""

    share: float = 1.0
    rule: str = ""
    """What was decided by, if not by the score: "named by the job", "round trips not known yet"."""
    candidates: tuple[CandidateNote, ...] = ()

    @property
    def chosen(self) -> str:
        return next((each.name for each in self.candidates if each.outcome == CHOSEN), "")


def explanation_text(explained: RoutingExplanation) -> str:
    """A line that says what was chosen from what, and a line for each candidate."""
    shown = explained.candidates[:SHOWN_MAX]
    names = ", ".join(sorted(each.name for each in shown))
    others = len(explained.candidates) - len(shown)
    names += f" and {others} more" if others else ""
    share = f" for {explained.share * 100:.0f} %" if explained.share < 1.0 else ""
    rule = f" ({explained.rule})" if explained.rule else ""
    return "\n".join([f"chosen of {names}{share}{rule}", *candidate_lines(shown)])


def candidate_lines(candidates: Sequence[CandidateNote]) -> list[str]:
    name_width = max((len(each.name) for each in candidates), default=0)
    health_width = max((len(each.health) for each in candidates), default=0)
    return [
        f"  {each.name:{name_width}}  {each.health:{health_width}}  {_rest(each)}".rstrip()
        for each in candidates
    ]


def score_text(score: Score) -> str:
    """`171 = (92 ms + 50) x 1.2 load x 1.0`; the last factor is the quality."""
    text = (
        f"{score.total:.0f} = ({score.rtt_ms:.0f} ms + {score.offset_ms:.0f}) "
        f"x {score.load:.1f} load x {score.quality:.1f}"
    )
    return text + (f" x {score.cool_down:.1f} cool-down" if score.cool_down > 1.0 else "")


def _rest(note: CandidateNote) -> str:
    parts = [
        f"score {score_text(note.score)}" if note.score is not None else "",
        note.reason,
        f"cool-down {note.cool_down_s:.0f} s" if note.cool_down_s >= 0.5 else "",
        note.outcome,
    ]
    return "   ".join(part for part in parts if part)
