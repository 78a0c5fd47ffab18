"""Chooses datacenters for the parts of a job when the steward asks.

It joins what the gate knows of its datacenters (`routing`) with the committed parts: a part that is
assigned and not yet in a report takes cores, a refusal cools its datacenter down. Both come from
the log, so a new primary knows what the former one sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from squall.cluster.assignments.records import GateJobRecord, PartTry
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.gate.routing.choice import (
    RoutingDecision,
    RoutingRequest,
    choose,
    unknown_names,
)
from squall.cluster.gate.routing.explanation import explanation_text
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.scores import DatacenterStatus
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion
from squall.cluster.protocol.gates.handover_keys import part_job_id
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission, Targets
from squall.engine.load.core_partition import item_of, thread_range
from squall.runtime.interfaces import Clock
from squall.stats.manifest import FileManifest

NO_TARGETS = Targets()
TryKey = tuple[JobId, str, int]


class DatacenterRouter:
    """The steward's `Route`, over the datacenters that this gate probes."""

    def __init__(
        self,
        known: KnownDatacenters,
        clock: Clock,
        tables: Callable[[], AssignmentTables],
        on_event: Callable[[str, str], None] = lambda what, datacenter: None,
    ) -> None:
        """`on_event` counts what happened to a part, by datacenter: it was assigned, also while the
        datacenter was degraded, or refused."""
        self._known = known
        self._clock = clock
        self._tables = tables
        self._on_event = on_event
        # The op up to which the committed parts were taken in; -1: none were.
        self._synced = -1
        # The tries of active jobs that were seen assigned, and those that were seen refused.
        self._seen: dict[TryKey, str] = {}

    def route(self, question: RouteQuestion) -> RouteAnswer:
        self.sync()
        decision = self.decide(
            question.job.submission,
            key=f"{question.job.principal}/{question.job.key}",
            parts=question.parts,
            shares=[question.job.parts[index].weight for index in question.parts],
            refused=dict(question.refused),
            taken=question.taken,
        )
        chosen = [(part.datacenter, explanation_text(part.explanation)) for part in decision.parts]
        return RouteAnswer(datacenters=tuple(chosen), reason=decision.reason)

    def decide(
        self,
        submission: Submission,
        *,
        key: str,
        parts: Iterable[int],
        shares: list[float],
        refused: dict[str, str] | None = None,
        taken: frozenset[str] = frozenset(),
    ) -> RoutingDecision:
        """Chooses for the parts with these indexes, whose shares of the job are `shares`."""
        targets = submission.targets or NO_TARGETS
        statuses = self._known.statuses(self._clock.now())
        request = RoutingRequest(
            key=key,
            weights=tuple(targets.weights[index] for index in parts) if targets.weights else (),
            count=max(len(shares), 1),
            share=shares[0] if shares else 1.0,
            fallback=targets.fallback,
            cores=cores_needed(submission.manifest, statuses),
            refused=refused or {},
            taken=taken,
        )
        return choose(request, statuses, self._known.settings)

    def unknown(self, targets: Targets | None) -> str:
        """One line about datacenters that a job names and this gate does not know, or ""."""
        request = RoutingRequest(
            key="",
            weights=(targets or NO_TARGETS).weights,
            fallback=(targets or NO_TARGETS).fallback,
        )
        missing = unknown_names(request, self._known.names)
        if not missing:
            return ""
        there = ", ".join(self._known.names)
        return f"no datacenter {', '.join(missing)}; there are {there}"

    def is_unreachable(self, datacenter: str) -> bool:
        if datacenter not in self._known:
            return True
        return self._known[datacenter].finding(self._clock.now()).health is Health.UNREACHABLE

    def silent_s(self, datacenter: str) -> float:
        """Seconds since the datacenter last answered this gate."""
        if datacenter not in self._known:
            return inf
        return self._known[datacenter].reach.silent_s(self._clock.now())

    # The committed parts.

    def sync(self) -> None:
        """Applies what the gates committed since the last call."""
        tables = self._tables()
        if tables.op == self._synced:
            return
        # A gate that just took over does not count old refusals as new ones.
        is_first, self._synced = self._synced < 0, tables.op
        present: dict[TryKey, str] = {}
        for name in tables.active:
            job = tables.jobs[name]
            for part in job.parts:
                for tried in part.tries:
                    key = (name, tried.datacenter, int(tried.handover))
                    # A cancelled try may still hold cores, but reports of its datacenter say so.
                    state = "cancelled" if tried.cancel else tried.state
                    present[key] = state
                    if self._seen.get(key) != state:
                        self._changed(job, tried, state, is_first)
        for job_id, datacenter, handover in self._seen.keys() - present.keys():
            self._known.over(datacenter, f"{job_id}.{datacenter}{handover}")
        self._seen = present

    def _changed(self, job: GateJobRecord, tried: PartTry, state: str, is_first: bool) -> None:
        now, datacenter = self._clock.now(), tried.datacenter
        part = part_job_id(job.job, datacenter, tried.handover)
        if state == "assigned":
            cores = cores_taken(job.submission.manifest, self._cores_of(datacenter))
            self._known.dispatched(datacenter, part, cores, now)
            self._on_event("assigned", datacenter)
            if self._is_degraded(datacenter, now):
                self._on_event("assigned_degraded", datacenter)
        elif state in ("accepted", "ready", "started"):
            self._known.accepted(datacenter, part, now)
        elif state == "refused" and not is_first:
            self._known.refused(datacenter, part, tried.reason, now)
            self._on_event("refused", datacenter)
        else:
            self._known.over(datacenter, part)

    def _is_degraded(self, datacenter: str, now: float) -> bool:
        known = datacenter in self._known
        return known and self._known[datacenter].finding(now).health is Health.DEGRADED

    def _cores_of(self, datacenter: str) -> int:
        report = self._known[datacenter].report if datacenter in self._known else None
        return report.cores if report is not None else 1


def cores_needed(manifest: FileManifest, statuses: list[DatacenterStatus]) -> dict[str, int]:
    """The cores without which the first workflows of a job do not start, by datacenter."""
    return {each.name: _first_cores(manifest, each.cores)[0] for each in statuses}


def cores_taken(manifest: FileManifest, pool: int) -> int:
    """The most cores that the first workflows of a job take of an empty pool."""
    return _first_cores(manifest, pool)[1]


def _first_cores(manifest: FileManifest, pool: int) -> tuple[int, int]:
    """The fewest and the most cores of the workflows that depend on no other one."""
    fewest = most = 0
    for workflow in manifest.workflows:
        if workflow.depends or not workflow.is_test:
            continue
        low, high = thread_range(workflow.priority, max(pool, 1))
        threads = item_of(workflow).most_threads or high
        fewest += min(low, threads)
        most += min(high, threads)
    return max(min(fewest, pool), 1), max(min(most, pool), 1)
