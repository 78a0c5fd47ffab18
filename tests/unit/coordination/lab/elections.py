"""The election core, driven by hand to where it leads."""

from __future__ import annotations

from collections.abc import Sequence

from squall.coordination.election import messages as m
from squall.coordination.election.core import Election
from squall.coordination.timing import Timing

TIMING = Timing()


def member(name: str = "b", **options: object) -> Election:
    chosen: dict[str, object] = {
        "uniform": lambda low, high: low,
        "wall": lambda: 0.0,
        "skip_cold_start": True,
    }
    return Election(name, 7, TIMING, 100.0, **(chosen | options))  # type: ignore[arg-type]


def only(kind: type, effects: Sequence[m.Effect]) -> m.Effect:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def stand(core: Election, now: float) -> m.WriteLease:
    core.tick(now)
    core.handle(m.LeaseRead(None), now)
    write = only(m.WriteLease, core.handle(m.RankKnown(0), now))
    assert isinstance(write, m.WriteLease)
    return write


def leading(now: float = 100.0) -> tuple[Election, m.WriteLease]:
    core = member()
    write = stand(core, now)
    effects = core.handle(m.LeaseWritten(write, "w1"), now)
    assert only(m.Promote, effects) == m.Promote(1)
    return core, write
