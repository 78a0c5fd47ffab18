"""Turns "a tenth more" into the rate or users that a running load should have.

Pure: it knows the last snapshot and what was asked for since. Several steps within a few seconds
build on each other, although the load, and so the snapshot, follows only after a moment.
"""

from __future__ import annotations

from squall.engine.load_change import RATE_MAX_PER_S, USERS_MAX, LoadChange
from squall.stats.manifest import FileManifest
from squall.stats.snapshot import Snapshot, WorkflowSnapshot

SETTLED_S = 4.0
"""Seconds of the run after which a snapshot shows a change, also that of a distant cluster."""


class LoadSteps:
    """The steps of one operator in one run."""

    def __init__(self, manifest: FileManifest) -> None:
        self._manifest = manifest
        self._snapshot: Snapshot | None = None
        # The level that was asked for last, with the time of the run.
        self._asked: dict[str, tuple[float, float]] = {}
        # The last rate above zero: a paused load has none.
        self._rates: dict[str, float] = {}

    def feed(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for each in snapshot.workflows:
            if each.target_per_s:
                self._rates[each.name] = each.target_per_s

    def by(self, factor: float, workflow: str = "") -> list[LoadChange]:
        """The changes that multiply the load of all running tests, or of one. A number of users
        changes by at least one."""
        found: list[LoadChange] = []
        for each in self._running():
            if workflow not in ("", each.name):
                continue
            before = self._level(each)
            if before is None:
                continue
            if self._manifest.workflow(each.name).profile.is_open:
                rate = min(float(f"{before * factor:.4g}"), RATE_MAX_PER_S)
                self._asked[each.name] = (rate, self._now_s)
                found.append(LoadChange(workflow=each.name, rate_per_s=rate))
            else:
                by = max(abs(round(before * (factor - 1.0))), 1)
                users = min(max(int(before) + (by if factor > 1.0 else -by), 1), USERS_MAX)
                self._asked[each.name] = (float(users), self._now_s)
                found.append(LoadChange(workflow=each.name, vus=users))
        return found

    @property
    def _now_s(self) -> float:
        return self._snapshot.elapsed_s if self._snapshot is not None else 0.0

    def _running(self) -> list[WorkflowSnapshot]:
        if self._snapshot is None:
            return []
        manifest = self._manifest
        return [
            each
            for each in self._snapshot.workflows
            if not each.ended and manifest.workflow(each.name).is_test
        ]

    def _level(self, workflow: WorkflowSnapshot) -> float | None:
        """The rate or users to start from; None if there is nothing to multiply."""
        asked = self._asked.get(workflow.name)
        if asked is not None and self._now_s - asked[1] < SETTLED_S:
            return asked[0]
        if self._manifest.workflow(workflow.name).profile.is_open:
            return workflow.target_per_s or self._rates.get(workflow.name)
        return float(workflow.users)
