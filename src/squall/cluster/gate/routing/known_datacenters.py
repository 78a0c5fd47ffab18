"""The datacenters of a gate and everything it knows of them.

    prober ── answered, missed, check ──► KnownDatacenters ──► statuses ──► choice, views
    policy ── dispatched, accepted, refused, over ──►

Nothing here is in the gates' log: every gate probes by itself, and a gate that starts knows
nothing (UNKNOWN) until the first answers arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from squall.cluster.gate.routing.cool_down import CoolDown
from squall.cluster.gate.routing.health import Health, HealthFinding, HealthState
from squall.cluster.gate.routing.reachability import CorrelationGuard, Reach, Reachability
from squall.cluster.gate.routing.report_order import replaces
from squall.cluster.gate.routing.scores import DatacenterStatus
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.cluster.gate.routing.unreported_cores import UnreportedCores
from squall.cluster.membership.round_trips import RoundTripEstimate
from squall.cluster.protocol.gates.federation_messages import DatacenterState
from squall.cluster.protocol.views import DatacenterView


class KnownDatacenter:
    """One datacenter: its reach, round trip, last report, health and jobs under way to it."""

    def __init__(self, name: str, given: Sequence[str], settings: RoutingSettings) -> None:
        self.name = name
        # host:port from the flags: asked for ever, because the learned list may be outdated.
        self._given = tuple(given)
        self._learned: tuple[str, ...] = ()
        self.reach = Reach()
        self.rtt = RoundTripEstimate()
        self.report: DatacenterState | None = None
        self._settings = settings
        # When the probe was sent that `report` answered.
        self._reported_at = -math.inf
        self._health = HealthState(settings)
        # Why the last probe was not answered: no link, another datacenter, a wrong secret.
        self._trouble = ""
        self.unreported = UnreportedCores(settings.settle_s)
        self.cool_down = CoolDown(settings)

    @property
    def managers(self) -> list[str]:
        """host:port of every known manager, the one that leads first."""
        leader = self.report.leader_address if self.report is not None else ""
        found = dict.fromkeys((*self._learned, *self._given))
        return [leader, *(each for each in found if each != leader)] if leader else list(found)

    @property
    def is_starting(self) -> bool:
        """Whether it answers, or soon may, and has not been able to run a job yet."""
        silent = self.reach.state in (Reachability.SUSPECTED, Reachability.UNREACHABLE)
        return not silent and not self._health.was_usable

    def answered(
        self, state: DatacenterState, rtt_ms: float | None, asked_at: float, now: float
    ) -> None:
        """`rtt_ms` is None if the answer was late or the link was being dialled."""
        if self.reach.state is Reachability.UNREACHABLE:
            # The health from before the silence says nothing now, so the next report counts at
            # once instead of after `steady_s`.
            self._health.forget()
        self.reach.answered(now)
        self._trouble = ""
        if rtt_ms is not None:
            self.rtt.add(rtt_ms)
        age_s = now - self._reported_at
        if not replaces(state, self.report, age_s, self._settings.stale_s):
            return
        self.report = state
        # The time of the question, not of the answer: the report is at least as new as that.
        self._reported_at = asked_at
        if state.managers:
            self._learned = tuple(state.managers)
        self.unreported.reported(asked_at)
        self._classify(now)

    def missed(self, asked_at: float, now: float, trouble: str) -> None:
        self.reach.missed(asked_at, now, self._settings)
        self._trouble = trouble

    def dispatched(self, part: str, cores: int, now: float) -> None:
        self.unreported.dispatched(part, cores)
        self._classify(now)

    def _classify(self, now: float) -> None:
        if self.report is not None:
            self._health.reported(self.report, self.unreported.cores, now)

    def finding(self, now: float) -> HealthFinding:
        found = self._health.now(self.reach, self._age_s(now), now)
        if found.health >= Health.UNREACHABLE and self._trouble:
            return HealthFinding(found.health, f"{found.reason}: {self._trouble}")
        return found

    def status(self, now: float, held: bool) -> DatacenterStatus:
        report, found = self.report, self.finding(now)
        own = self.unreported
        if report is None:
            return DatacenterStatus(
                name=self.name, health=found.health, reason=found.reason, held=held
            )
        return DatacenterStatus(
            name=self.name,
            health=found.health,
            reason=found.reason,
            suspected=self.reach.state is Reachability.SUSPECTED,
            held=held,
            cores=report.cores,
            free=max(report.free - own.cores, 0),
            # Without free cores, what was just sent there waits too.
            queued=report.queued + (len(own) if own.cores >= report.free else 0),
            managers_heard=report.managers_heard,
            managers_total=report.managers_total,
            overload=report.overload,
            rtt_ms=self.rtt.upper_ms if self.rtt.samples else None,
            samples=self.rtt.samples,
            report_age_s=self._age_s(now),
            cool_down=self.cool_down.factor(now),
            cool_down_left_s=self.cool_down.left_s(now),
        )

    def view(self, now: float) -> DatacenterView:
        report, found = self.report, self.finding(now)
        heard_at = self.reach.heard_at
        view = DatacenterView(
            name=self.name,
            health=found.health.label,
            reason=found.reason,
            managers=self.managers,
            managers_total=len(self.managers),
            heard_s=now - heard_at if math.isfinite(heard_at) else -1.0,
        )
        if report is None:
            return view
        gone = self.reach.state is Reachability.UNREACHABLE
        return DatacenterView(
            name=self.name,
            health=view.health,
            reason=view.reason,
            leader=report.leader,
            managers=view.managers,
            managers_heard=0 if gone else report.managers_heard,
            managers_total=report.managers_total,
            workers=report.workers,
            cores=report.cores,
            free=max(report.free - self.unreported.cores, 0),
            queued=report.queued,
            active_jobs=report.active_jobs,
            rtt_ms=self.rtt.mean_ms if self.rtt.samples else -1.0,
            rtt_deviation_ms=self.rtt.deviation_ms,
            heard_s=view.heard_s,
        )

    def _age_s(self, now: float) -> float:
        return now - self._reported_at if self.report is not None else self.reach.silent_s(now)


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A datacenter's health changed: for the log."""

    datacenter: str
    before: HealthFinding
    after: HealthFinding


class KnownDatacenters:
    """All datacenters of a gate, by name."""

    def __init__(self, given: Mapping[str, Sequence[str]], settings: RoutingSettings) -> None:
        """`given`: name and host:port of the managers that the flags name."""
        self.settings = settings
        self._all = {
            name: KnownDatacenter(name, managers, settings)
            for name, managers in sorted(given.items())
        }
        self._guard = CorrelationGuard(settings)
        self._shown: dict[str, HealthFinding] = {}

    def __iter__(self) -> Iterator[KnownDatacenter]:
        return iter(self._all.values())

    def __getitem__(self, name: str) -> KnownDatacenter:
        return self._all[name]

    def __contains__(self, name: str) -> bool:
        return name in self._all

    @property
    def names(self) -> list[str]:
        return list(self._all)

    @property
    def guard_holds(self) -> bool:
        """Whether most datacenters fell silent together, likely by a fault of the own network."""
        return self._guard.holds

    def asked(self, name: str, now: float) -> None:
        reach = self._all[name].reach
        reach.asked_at = min(reach.asked_at, now)

    def missed(self, name: str, asked_at: float, now: float, trouble: str = "") -> None:
        """Notes a probe without an answer; `trouble` is the reason if it is known."""
        self._all[name].missed(asked_at, now, trouble)

    def check(self, now: float) -> list[HealthChange]:
        """Called with every round of probes; returns what changed since the last call."""
        self._guard.check({each.name: each.reach for each in self._all.values()}, now)
        changes: list[HealthChange] = []
        for each in self._all.values():
            after = each.finding(now)
            before = self._shown.get(each.name)
            if before is not None and before.health is not after.health:
                changes.append(HealthChange(each.name, before, after))
            self._shown[each.name] = after
        return changes

    def statuses(self, now: float) -> list[DatacenterStatus]:
        held = self._guard.held
        return [each.status(now, each.name in held) for each in self._all.values()]

    def views(self, now: float) -> list[DatacenterView]:
        return [each.view(now) for each in self._all.values()]

    # What the policy reports of the parts that it sends.

    def dispatched(self, name: str, part: str, cores: int, now: float) -> None:
        if name in self._all:
            self._all[name].dispatched(part, cores, now)

    def accepted(self, name: str, part: str, now: float) -> None:
        if name in self._all:
            self._all[name].unreported.accepted(part, now)

    def refused(self, name: str, part: str, reason: str, now: float) -> None:
        if name in self._all:
            self._all[name].unreported.over(part)
            self._all[name].cool_down.refused(reason, now)

    def over(self, name: str, part: str) -> None:
        if name in self._all:
            self._all[name].unreported.over(part)
