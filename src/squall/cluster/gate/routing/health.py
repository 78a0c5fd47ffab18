"""The health of a datacenter by its last report: healthy, busy, degraded, unhealthy, unreachable.

The first rule that applies decides. A busy datacenter is no failure: it becomes healthy when jobs
end. A degraded one can run jobs, but less than a majority of its managers or workers is heard, or
no manager leads, or its last report is old. An unhealthy one cannot run a job. A worse state counts
at once. A better state counts only after it lasted `steady_s`; otherwise the health would change
with every job that ends.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from squall.cluster.gate.routing.reachability import Reach, Reachability
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.cluster.protocol.gates.federation_messages import DatacenterState
from squall.reporting.number_format import plural


class Health(enum.IntEnum):
    """Lower is better: a job never goes to a worse datacenter because it is nearer."""

    HEALTHY = 0
    BUSY = 1
    DEGRADED = 2
    UNHEALTHY = 3
    UNREACHABLE = 4
    UNKNOWN = 5

    @property
    def label(self) -> str:
        return self.name.lower()

    @property
    def is_usable(self) -> bool:
        return self <= Health.DEGRADED


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A state and its reason in one line; healthy has none."""

    health: Health
    reason: str = ""


def classify(report: DatacenterState, own_cores: int, needed: int = 1) -> HealthFinding:
    """The state by a report alone. `own_cores` are those of jobs that this gate sent and that the
    report does not count yet; fewer than `needed` free cores are busy."""
    if report.managers_heard <= 0:
        return HealthFinding(Health.UNHEALTHY, "no manager is heard")
    if report.workers <= 0:
        return HealthFinding(Health.UNHEALTHY, "it has no worker")
    if report.healthy <= 0:
        return HealthFinding(
            Health.UNHEALTHY, f"none of its {plural(report.workers, 'worker')} is heard"
        )
    if not report.leader:
        return HealthFinding(Health.DEGRADED, "no manager leads")
    if report.managers_heard < majority(report.managers_total):
        heard = f"{report.managers_heard} of {report.managers_total}"
        return HealthFinding(Health.DEGRADED, f"{heard} managers are heard")
    if report.healthy < majority(report.workers):
        return HealthFinding(
            Health.DEGRADED, f"{report.healthy} of {report.workers} workers are heard"
        )
    if report.free - own_cores < needed:
        if report.free >= needed:
            return HealthFinding(Health.BUSY, "jobs that were just sent there take its free cores")
        return HealthFinding(Health.BUSY, "no core free" if report.free <= 0 else "few cores free")
    return HealthFinding(Health.HEALTHY)


def majority(count: int) -> int:
    return count // 2 + 1


class HealthState:
    """The state of one datacenter over time: `classify` with hysteresis and reachability."""

    def __init__(self, settings: RoutingSettings) -> None:
        self._settings = settings
        self._finding = HealthFinding(Health.UNKNOWN)
        # Since when the present health lasts.
        self._since = math.inf
        # Since when every report was better than the present health; infinity: the last was not.
        self._better_since = math.inf
        # Before its first usable state a datacenter is starting, and every step of that counts at
        # once.
        self.was_usable = False

    def reported(self, report: DatacenterState, own_cores: int, now: float) -> None:
        present = self._finding.health
        needed = 1
        if present is Health.BUSY:
            needed = max(math.ceil(self._settings.free_share * report.cores), 1)
        found = classify(report, own_cores, needed)
        if self.was_usable and found.health < present:
            self._better_since = min(self._better_since, now)
            if now - self._better_since < self._settings.steady_s:
                return
        self._better_since = math.inf
        self.was_usable = self.was_usable or found.health.is_usable
        if found.health is not present:
            self._since = now
        self._finding = found

    def forget(self) -> None:
        """The datacenter was unreachable: its next report counts at once."""
        self._finding = HealthFinding(Health.UNKNOWN)
        self._better_since = math.inf
        self.was_usable = False

    def now(self, reach: Reach, report_age_s: float, now: float) -> HealthFinding:
        """The state that routing and people see."""
        silent_s = reach.silent_s(now)
        if reach.state is Reachability.UNREACHABLE:
            return HealthFinding(Health.UNREACHABLE, f"no manager heard for {silent_s:.0f} s")
        if self._finding.health is Health.UNKNOWN:
            if reach.state is not Reachability.SUSPECTED and silent_s < self._settings.probe_s:
                return HealthFinding(Health.UNKNOWN, "no manager has answered yet")
            suspected = reach.state is Reachability.SUSPECTED
            return HealthFinding(
                Health.UNREACHABLE if suspected else Health.UNKNOWN,
                f"no manager answered in {silent_s:.0f} s",
            )
        known = self._finding
        if known.health > Health.DEGRADED:
            return known
        if reach.state is Reachability.SUSPECTED or report_age_s > self._settings.stale_s:
            return HealthFinding(Health.DEGRADED, f"no report for {report_age_s:.0f} s")
        if known.health is Health.BUSY and now - self._since >= 1.0:
            return HealthFinding(Health.BUSY, f"{known.reason} for {now - self._since:.0f} s")
        return known
