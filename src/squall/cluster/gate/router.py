"""Answers the questions of the steward for a datacenter, from what this gate knows of them."""

from __future__ import annotations

from collections.abc import Callable

from squall.cluster.assignments.records import GateJobRecord
from squall.cluster.gate.routing.choice import RoutingRequest, choose
from squall.cluster.gate.routing.explanation import CandidateNote, RoutingExplanation
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion
from squall.cluster.protocol.handover_keys import part_job_id
from squall.cluster.protocol.submission import Targets


def targets_of(job: GateJobRecord) -> Targets:
    """What the job asks for; without a wish it is routed to one datacenter."""
    return job.submission.targets or Targets(count=1)


class Router:
    """Routes the parts of jobs on the primary gate."""

    def __init__(self, known: KnownDatacenters, now: Callable[[], float]) -> None:
        self._known = known
        self._now = now

    def route(self, question: RouteQuestion) -> RouteAnswer:
        job, targets = question.job, targets_of(question.job)
        request = RoutingRequest(
            key=f"{job.principal}/{job.key}",
            weights=tuple(targets.weights[index] for index in question.parts)
            if targets.weights
            else (),
            count=len(question.parts),
            fallback=targets.fallback,
            refused=question.refused,
            taken=question.taken,
        )
        decision = choose(request, self._known.statuses(self._now()), self._known.settings)
        return RouteAnswer(
            datacenters=tuple((p.datacenter, reason_of(p.explanation)) for p in decision.parts),
            reason=decision.reason,
        )

    def is_unreachable(self, datacenter: str) -> bool:
        if datacenter not in self._known:
            return True
        return self._known[datacenter].finding(self._now()).health is Health.UNREACHABLE

    def observe(self, job: GateJobRecord) -> None:
        """Counts the cores of parts that were sent and are in no report of their datacenter yet."""
        now, known = self._now(), self._known
        for part in job.parts:
            for tried in part.tries:
                name = part_job_id(job.job, tried.datacenter, tried.handover)
                match tried.state:
                    case "assigned" if not tried.cancel:
                        known.dispatched(tried.datacenter, name, 1, now)
                    case "accepted" | "ready" | "started":
                        known.accepted(tried.datacenter, name, now)
                    case "refused":
                        known.refused(tried.datacenter, name, tried.reason, now)
                    case _:
                        known.over(tried.datacenter, name)


def reason_of(explained: RoutingExplanation) -> str:
    """One line: the rule, and the score or the state of every candidate."""
    notes = ", ".join(_note(each) for each in explained.candidates)
    return ": ".join(text for text in (explained.rule, notes) if text)


def _note(note: CandidateNote) -> str:
    score = f" score {note.score.total:.0f}" if note.score is not None else ""
    reason = f" ({note.reason})" if note.reason else ""
    return f"{note.name} {note.health}{score}{reason}"
