"""The phases in which a group without a leader starts: observing, election, preparation, ready."""

from __future__ import annotations

from squall.coordination.election.messages import PhaseChanged


class ColdStart:
    """The phase of one boot and since when it lasts. `Election` moves it on, for events only."""

    def __init__(self, now: float) -> None:
        self.phase = "observing"
        self._since = now

    @property
    def is_over(self) -> bool:
        return self.phase == "ready"

    def enter(self, phase: str, now: float) -> list[PhaseChanged]:
        """Nothing if this is the phase already."""
        if phase == self.phase:
            return []
        changed = PhaseChanged(phase, now - self._since)
        self.phase, self._since = phase, now
        return [changed]
