"""A new group goes through its start phases, a member that joins later is ready at once, and a
coordinator that is asked to stop hands over. Used by tests and, at full size, by the acceptance.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from tests.services.coordination.acceptance.crash_failover import CrashLab
from tests.services.coordination.lab.processes import ENDS_WITHIN_S, SLACK_S
from tests.services.coordination.programs.member import observing

HANDED_OVER_S = 2.0
EARLY_S = 0.1
"""Clocks of the loop have whole milliseconds."""


class StartLab(CrashLab):
    """The last member joins later than the others."""

    def __init__(
        self, url: str, prefix: str, folder: Path, scale: float, *, defaults: bool = False
    ) -> None:
        super().__init__(url, prefix, folder, scale, defaults=defaults)
        if not defaults:
            self.cold, self.timing = True, observing(self.timing)

    def begin_fresh(self) -> str:
        """Waits until a member acts; returns how long the phases took."""
        *first, last = self.members
        for member in first:
            self.start(member)
        self.until(
            lambda: len(self.lines("started")) == len(first), 30.0 * self.scale, "all have started"
        )
        timing = self.timing
        cold_s = timing.cold_start_observation_window + timing.cold_start_preparation_delay
        self.until_acts(0.0, within_s=cold_s + timing.heartbeat_interval + 20.0 * self.scale)
        told = self._check_phases(self.leader())
        self.start(last)
        self.until(lambda: self._of(last, "ready"), 30.0 * self.scale, f"{last} is ready")
        (started,), (ready,) = self._of(last, "started"), self._of(last, "ready")
        joined_s = ready["at"] - started["at"]
        assert joined_s < max(0.5 * timing.cold_start_observation_window, SLACK_S), joined_s
        return f"{told}, a later member ready after {joined_s:.1f} s"

    def _check_phases(self, leader: str) -> str:
        timing = self.timing
        phases = self._of(leader, "phase")
        assert [line["phase"] for line in phases] == ["election", "preparation", "ready"], phases
        observed_s, elected_s, prepared_s = (line["took"] for line in phases)
        assert observed_s >= timing.cold_start_observation_window - EARLY_S
        assert prepared_s >= timing.cold_start_preparation_delay - EARLY_S
        (first, *_) = self.lines("acts")
        assert first["member"] == leader and first["at"] >= phases[-1]["at"] - EARLY_S
        return (
            f"observed {observed_s:.1f} s, elected {elected_s:.1f} s, prepared {prepared_s:.1f} s"
        )

    def stop_the_leader(self) -> float:
        """How long after the order to end another one was promoted."""
        leader, epoch = self.leader(), self.lines("acts")[-1]["epoch"]
        process = self.processes.pop(leader)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        self.until(lambda: self._promoted(asked), self.failover_s, "a successor is promoted")
        (promoted,) = self._promoted(asked)
        assert promoted["epoch"] == epoch + 1 and promoted["member"] != leader
        assert process.wait(ENDS_WITHIN_S) == 0
        self.start(leader)
        return promoted["at"] - asked

    @property
    def handed_over_s(self) -> float:
        """S3 is asked only once per interval."""
        is_afar = self.url.startswith("s3:")
        return max(HANDED_OVER_S, self.timing.heartbeat_interval if is_afar else 0.0)

    def _of(self, member: str, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines(what) if line["member"] == member]
