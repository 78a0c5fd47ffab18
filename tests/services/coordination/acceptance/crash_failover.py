"""Five member processes whose coordinator is killed: one of the other four takes over in time,
with the next epoch, and all four report the change. Used by tests and, at full size, by the
acceptance.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from squall.coordination.timing import PROFILES
from tests.services.coordination.lab.processes import SLACK_S, Lab

MEMBERS = ["a", "b", "c", "d", "e"]


class CrashLab(Lab):
    """With `defaults`, on the default timing, and with no time beyond it."""

    def __init__(
        self, url: str, prefix: str, folder: Path, scale: float, *, defaults: bool = False
    ) -> None:
        super().__init__(url, prefix, folder, MEMBERS, scale)
        self.quiet = True
        self.within_s = self.failover_s
        if defaults:
            self.profile = "default"
            self.timing = PROFILES["s3" if url.startswith("s3:") else "normal"]
            self.within_s = self.timing.failover
        self.failover_s = self.timing.failover + SLACK_S * scale

    def begin(self) -> None:
        timing = self.timing
        cold_s = timing.cold_start_observation_window + timing.cold_start_preparation_delay
        self.start_all()
        self.until_acts(0.0, within_s=cold_s + timing.heartbeat_interval + 20.0 * self.scale)

    def kill_the_leader(self) -> float:
        """How long it took until another one was promoted."""
        leader, epoch = self.leader(), self.lines("acts")[-1]["epoch"]
        struck = time.monotonic()
        self.kill(leader)
        left = [each for each in self.members if each != leader]
        self.until(lambda: self._promoted(struck), self.failover_s, "a successor is promoted")
        self._until_told(epoch + 1, left)
        (promoted,) = self._promoted(struck)
        assert promoted["member"] in left and promoted["epoch"] == epoch + 1, promoted
        # Some may notice the old one only now: they read the lease with their heartbeats.
        elected = [line for line in self.lines("elected") if line["epoch"] > epoch]
        assert sorted(line["member"] for line in elected) == left, elected
        assert {(line["worker"], line["epoch"]) for line in elected} == {
            (promoted["member"], epoch + 1)
        }
        took_s = promoted["at"] - struck
        assert took_s <= self.within_s, f"{took_s:.1f} s"
        self.until_acts(promoted["at"], within_s=self.failover_s)
        self.start(leader)
        self.until(
            lambda: any(
                line["at"] > struck and line["member"] == leader for line in self.lines("started")
            ),
            30.0 * self.scale + 3.0 * self.timing.heartbeat_interval,
            f"{leader} is back",
        )
        return took_s

    def _promoted(self, since: float) -> list[dict[str, Any]]:
        return [line for line in self.lines("promoted") if line["at"] > since]

    def _until_told(self, epoch: int, members: list[str]) -> None:
        """Members read the lease with their heartbeats."""
        self.until(
            lambda: (
                {line["member"] for line in self.lines("elected") if line["epoch"] == epoch}
                >= set(members)
            ),
            2.0 * self.timing.heartbeat_interval + SLACK_S * self.scale,
            f"{members} are told of epoch {epoch}",
        )
