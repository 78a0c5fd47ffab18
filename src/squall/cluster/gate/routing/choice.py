"""Chooses the datacenters of a job: filter, bucket, score, and a hash among the best.

1. Filter: only datacenters that can run a job. Those that the job names are the only candidates,
   unless it allows others.
2. Bucket: healthy before busy before degraded before suspected. A worse bucket is never preferred
   because it is nearer. Datacenters that refused this job come last.
3. Score (`scores`): the lowest wins.
4. Datacenters within 20 % of the best share the jobs by a hash of the job's key, weighted by free
   cores over score: gates that see the same scores do not all choose the same one, and the same job
   gets the same answer again.

The functions are pure: the same statuses and the same request give the same decision. There is no
current primary to stick to, so nothing flaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from squall.cluster.gate.routing.explanation import CHOSEN, CandidateNote, RoutingExplanation
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.scores import DatacenterStatus, Score, score_of
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.reporting.number_format import plural

LAST = Health.DEGRADED + 1
"""The bucket of suspected datacenters: the last resort."""
NAMED = "named by the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRequest:
    """What a job wants. Without names and with `count` 1 it is routed to one datacenter."""

    key: str
    """Identifies the job for the hash: the principal and key of its submission."""
    weights: tuple[tuple[str, float], ...] = ()
    """Named datacenters with their shares, which sum to 1."""
    count: int = 1
    fallback: tuple[str, ...] | bool = False
    """Which datacenters may replace a named one that cannot run its part: none, these in the
    order of their scores, or any."""
    share: float = 0.0
    """Of each of the `count` parts; 0: all of them are the whole job."""
    cores: Mapping[str, int] = field(default_factory=dict[str, int])
    """The cores that a part needs to start, by datacenter: a priority asks for a share of the pool.
    One core where it is not said."""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Datacenters that refused this job, and why: asked again only if no other is left."""
    taken: frozenset[str] = frozenset()
    """Datacenters that run another part of this job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedPart:
    datacenter: str
    share: float
    explanation: RoutingExplanation
    replaces: str = ""
    """The named datacenter whose part this is, if another one took it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDecision:
    """Either all parts of a job, or none and the reason."""

    parts: tuple[RoutedPart, ...] = ()
    reason: str = ""
    """Why there are no parts: in one line, with the state of each datacenter."""


def choose(
    request: RoutingRequest, statuses: Sequence[DatacenterStatus], settings: RoutingSettings
) -> RoutingDecision:
    """Decides for a whole job. Names must be known: `unknown_names` finds those that are not."""
    by_name = {each.name: each for each in statuses}
    if request.weights:
        return _named(request, by_name, settings)
    return _best(request, by_name, settings)


def unknown_names(request: RoutingRequest, known: Sequence[str]) -> list[str]:
    """The datacenters that the job names and this gate does not know."""
    named = [name for name, _ in request.weights]
    named += request.fallback if isinstance(request.fallback, tuple) else ()
    return [name for name in dict.fromkeys(named) if name not in known]


def _best(
    request: RoutingRequest, by_name: dict[str, DatacenterStatus], settings: RoutingSettings
) -> RoutingDecision:
    parts: list[RoutedPart] = []
    share = request.share or 1.0 / request.count
    taken = set(request.taken)
    for _ in range(request.count):
        compared = _Comparison(request, by_name, settings, taken)
        if compared.chosen is None:
            break
        taken.add(compared.chosen)
        explained = compared.explain(share)
        parts.append(RoutedPart(datacenter=compared.chosen, share=share, explanation=explained))
    if len(parts) < request.count:
        wanted = "a datacenter" if request.count == 1 else f"{request.count} datacenters"
        return _none(f"{wanted} wanted, {len(parts)} can run it", by_name)
    return RoutingDecision(parts=tuple(parts))


def _named(
    request: RoutingRequest, by_name: dict[str, DatacenterStatus], settings: RoutingSettings
) -> RoutingDecision:
    parts: list[RoutedPart] = []
    named = {name for name, _ in request.weights}
    taken = set(request.taken) | named
    for name, share in request.weights:
        status = by_name.get(name)
        if status is not None and _can_run(status) and name not in request.refused:
            note = _note(status, request, settings, outcome=CHOSEN)
            explained = RoutingExplanation(share=share, rule=NAMED, candidates=(note,))
            parts.append(RoutedPart(datacenter=name, share=share, explanation=explained))
            continue
        replaced = _replacement(request, name, by_name, settings, taken)
        if replaced.chosen is None:
            why = request.refused.get(name) or (_state(status) if status else "is not known")
            return _none(f"{name} cannot run its part: {why}", by_name)
        taken.add(replaced.chosen)
        # It refused before, and no other may take its part: it is asked again.
        itself = replaced.chosen == name
        rule = NAMED if itself else f"in place of {name}"
        parts.append(
            RoutedPart(
                datacenter=replaced.chosen,
                share=share,
                explanation=replaced.explain(share, rule),
                replaces="" if itself else name,
            )
        )
    return RoutingDecision(parts=tuple(parts))


def _replacement(
    request: RoutingRequest,
    name: str,
    by_name: dict[str, DatacenterStatus],
    settings: RoutingSettings,
    taken: set[str],
) -> _Comparison:
    """Compares the datacenters that may replace a named one. A named one that refused its part
    is asked again if there is no other."""
    others = by_name
    if request.fallback is False:
        others = {}
    elif isinstance(request.fallback, tuple):
        others = {other: by_name[other] for other in request.fallback if other in by_name}
    shown = {**{name: by_name[name]}, **others} if name in by_name else dict(others)
    return _Comparison(request, shown, settings, taken - {name})


class _Comparison:
    """The candidates for one part, ranked."""

    def __init__(
        self,
        request: RoutingRequest,
        by_name: Mapping[str, DatacenterStatus],
        settings: RoutingSettings,
        taken: set[str],
    ) -> None:
        self._request = request
        self._statuses = [each for name, each in sorted(by_name.items()) if name not in taken]
        self._settings = settings
        self._scores: dict[str, Score] = {}
        self._rule = ""
        self.chosen = self._choose()

    def _choose(self) -> str | None:
        usable = [each for each in self._statuses if _can_run(each)]
        if not usable:
            return None
        # A refusal is the latest and surest knowledge of what a datacenter does with this job.
        fresh = [each for each in usable if each.name not in self._request.refused]
        usable = fresh or usable
        best = min(_bucket(each, self._request) for each in usable)
        bucket = [each for each in usable if _bucket(each, self._request) == best]
        self._scores = {each.name: score_of(each, self._settings) for each in usable}
        if all(each.rtt_ms is None for each in bucket):
            self._rule = "round trips are not known yet: by free cores"
            return min(bucket, key=lambda each: (-each.free, each.queued, each.name)).name
        lowest = min(self._scores[each.name].total for each in bucket)
        near = [
            each
            for each in bucket
            if self._scores[each.name].total <= lowest * (1.0 + self._settings.spread)
        ]
        # Else a reader would look for the reason why not the lowest score was chosen.
        if len(near) > 1:
            self._rule = f"{len(near)} are within {self._settings.spread * 100:.0f} %: by its key"
        least = min(_queue_per_core(each) for each in near)
        if best == Health.BUSY and any(_queue_per_core(each) > least for each in near):
            # The job will wait there: drawn lots would leave one datacenter idle while jobs wait in
            # another.
            self._rule = self._rule.replace("its key", "the jobs that wait per core")
            near = [each for each in near if _queue_per_core(each) == least]
        return max(near, key=self._draw).name

    def _draw(self, status: DatacenterStatus) -> tuple[float, str]:
        """Weighted rendezvous hashing: each datacenter draws a number for the job, and the
        highest wins. A datacenter that comes or goes moves only its own jobs."""
        name = status.name
        weight = max(status.free, 1) / self._scores[name].total
        digest = blake2b(f"{self._request.key}\0{name}".encode(), digest_size=8).digest()
        # In (0, 1): the logarithm is finite and below 0.
        uniform = (int.from_bytes(digest) + 0.5) / 2.0**64
        return weight / -math.log(uniform), name

    def explain(self, share: float, rule: str = "") -> RoutingExplanation:
        notes = [
            _note(
                each,
                self._request,
                self._settings,
                outcome=CHOSEN if each.name == self.chosen else "",
            )
            for each in self._statuses
        ]
        notes.sort(key=_place_in_text)
        rules = ", ".join(text for text in (rule, self._rule) if text)
        return RoutingExplanation(share=share, rule=rules, candidates=tuple(notes))


def _place_in_text(note: CandidateNote) -> tuple[bool, float, str]:
    """Sort key: the chosen datacenter, then the best scores, then those that were filtered out."""
    score = note.score.total if note.score is not None else math.inf
    return note.outcome != CHOSEN, score, note.name


def _queue_per_core(status: DatacenterStatus) -> float:
    return status.queued / max(status.cores, 1)


def _can_run(status: DatacenterStatus) -> bool:
    return status.health.is_usable and not status.held


def _bucket(status: DatacenterStatus, request: RoutingRequest) -> int:
    if status.suspected:
        return LAST
    needed = min(request.cores.get(status.name, 1), max(status.cores, 1))
    if status.health is Health.HEALTHY and status.free < needed:
        # It would queue the job, as a busy one does.
        return Health.BUSY
    return status.health


def _note(
    status: DatacenterStatus,
    request: RoutingRequest,
    settings: RoutingSettings,
    *,
    outcome: str,
) -> CandidateNote:
    refused = request.refused.get(status.name, "")
    reason = f"refused: {refused}" if refused else status.reason
    if not reason and _bucket(status, request) != status.health:
        needed = request.cores.get(status.name, 1)
        reason = f"needs {plural(needed, 'core')}, {status.free} are free"
    return CandidateNote(
        name=status.name,
        health=status.health.label,
        score=score_of(status, settings) if _can_run(status) else None,
        outcome=outcome,
        reason=reason,
        cool_down_s=status.cool_down_left_s,
    )


def _none(text: str, by_name: Mapping[str, DatacenterStatus]) -> RoutingDecision:
    states = "; ".join(f"{name} {_state(each)}" for name, each in sorted(by_name.items()))
    return RoutingDecision(reason=f"{text} ({states or 'no datacenter is known'})")


def _state(status: DatacenterStatus) -> str:
    return f"is {status.health.label}" + (f": {status.reason}" if status.reason else "")
