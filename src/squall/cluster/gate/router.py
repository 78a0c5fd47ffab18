"""Answers the steward where the parts of a job go.

It joins what the gate knows of its datacenters (`routing`) with the committed parts: a part that is
assigned and not yet in a report takes cores, a refusal cools its datacenter down. Both come from
the log, so a new primary knows what the former one sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.cluster.assignments.records import GateJobRecord, PartTry
from squall.cluster.gate.routing.choice import RoutingRequest, choose, unknown_names
from squall.cluster.gate.routing.explanation import explanation_text
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.scores import DatacenterStatus
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion
from squall.cluster.protocol.handover_keys import part_job_id
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Targets
from squall.engine.load.core_partition import item_of, thread_range
from squall.stats.manifest import FileManifest


def targets_of(job: GateJobRecord) -> Targets:
    """What the job asks for; without a wish it is routed to one datacenter."""
    return job.submission.targets or Targets(count=1)


class Router:
    """Routes the parts of jobs on the primary gate."""

    def __init__(
        self,
        known: KnownDatacenters,
        now: Callable[[], float],
        on_event: Callable[[str, str], None] = lambda what, datacenter: None,
    ) -> None:
        """`on_event` counts what happened to a part ("assigned", "refused") by datacenter."""
        self._known = known
        self._now = now
        self._on_event = on_event
        # By job, the state in which each of its tries was seen last, by the id of its part.
        self._seen: dict[JobId, dict[JobId, str]] = {}

    def route(self, question: RouteQuestion) -> RouteAnswer:
        job, targets = question.job, targets_of(question.job)
        statuses = self._known.statuses(self._now())
        shares = [job.parts[index].weight for index in question.parts]
        weights = tuple(targets.weights[index] for index in question.parts if targets.weights)
        request = RoutingRequest(
            key=f"{job.principal}/{job.key}",
            weights=weights,
            count=len(shares),
            share=shares[0],
            fallback=targets.fallback,
            cores=cores_needed(job.submission.manifest, statuses),
            refused=question.refused,
            taken=question.taken,
        )
        decision = choose(request, statuses, self._known.settings)
        chosen = [(part.datacenter, explanation_text(part.explanation)) for part in decision.parts]
        return RouteAnswer(datacenters=tuple(chosen), reason=decision.reason)

    def unknown(self, targets: Targets | None) -> str:
        """One line about datacenters that a job names and nobody knows; "": there are none."""
        wanted = targets or Targets()
        request = RoutingRequest(key="", weights=wanted.weights, fallback=wanted.fallback)
        missing = unknown_names(request, self._known.names)
        if not missing:
            return ""
        return f"no datacenter {', '.join(missing)}; there are {', '.join(self._known.names)}"

    def is_unreachable(self, datacenter: str) -> bool:
        if datacenter not in self._known:
            return True
        return self._known[datacenter].finding(self._now()).health is Health.UNREACHABLE

    def observe(self, job: GateJobRecord) -> None:
        """Takes in the committed tries of a job whose parts changed. Harmless to repeat; a new
        primary calls it for every job that is not over."""
        seen = self._seen.setdefault(job.job, {})
        for part in job.parts:
            for tried in part.tries:
                name = part_job_id(job.job, tried.datacenter, tried.handover)
                state = "over" if job.over or tried.cancel else tried.state
                if seen.get(name) != state:
                    self._changed(job, tried, name, state, was_seen=name in seen)
                    seen[name] = state
        if job.over:
            del self._seen[job.job]

    def _changed(
        self, job: GateJobRecord, tried: PartTry, part: JobId, state: str, *, was_seen: bool
    ) -> None:
        now, datacenter = self._now(), tried.datacenter
        match state:
            case "assigned":
                cores = cores_taken(job.submission.manifest, self._cores_of(datacenter))
                self._known.dispatched(datacenter, part, cores, now)
                self._on_event("assigned", datacenter)
            case "accepted" | "ready" | "started":
                self._known.accepted(datacenter, part, now)
            case "refused" if was_seen:
                self._known.refused(datacenter, part, tried.reason, now)
                self._on_event("refused", datacenter)
            case _:
                # Also a refusal that a former primary saw: it is old.
                self._known.over(datacenter, part)

    def _cores_of(self, datacenter: str) -> int:
        report = self._known[datacenter].report if datacenter in self._known else None
        return report.cores if report is not None else 1


def cores_needed(manifest: FileManifest, statuses: Sequence[DatacenterStatus]) -> dict[str, int]:
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
