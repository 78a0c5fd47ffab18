"""A model of the job API of a datacenter, as one key of one principal and its job.

What it states is what docs/guarantees.md promises: a key makes one job; what was accepted is seen
by every later status and list (strong reads); a cancelled job stays cancelled; a terminal state is
final; an adjustment takes effect once; an extension names a sum.

A job also moves by itself. The state therefore holds the least stage that the job has reached: a
later view may show more, never less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lab.histories.linearizability import Operation, explain

STAGES = {"queued": 0, "preparing": 0, "running": 1, "stopping": 2, "completing": 3}
"""A phase whose workers refuse returns from preparing to the queue, so these two are one stage."""
OVER = 4
ANY_JOB = "?"
"""The job of a submission without an answer, until an answer shows its id."""

# Requests. `job` is the id that the client named.


@dataclass(frozen=True, slots=True)
class Submit:
    content: str
    """Stands for the fingerprint of the submission."""


@dataclass(frozen=True, slots=True)
class Cancel:
    job: str
    now: bool


@dataclass(frozen=True, slots=True)
class Adjust:
    job: str
    vus: int | None
    paused: bool | None


@dataclass(frozen=True, slots=True)
class Extend:
    job: str
    to_ms: int


@dataclass(frozen=True, slots=True)
class Look:
    """Status, list, or what another answer says about the state: a conflict says that the job is
    over."""

    job: str
    """Empty for a list."""
    how: str = "status"


JobRequest = Submit | Cancel | Adjust | Extend | Look

# Answers.


@dataclass(frozen=True, slots=True)
class Submitted:
    job: str
    created: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    repeated: bool


@dataclass(frozen=True, slots=True)
class Adjusted:
    sequence: int


@dataclass(frozen=True, slots=True)
class Extended:
    to_ms: int


@dataclass(frozen=True, slots=True)
class Viewed:
    job: str
    state: str
    adjusted: str | None = None
    """The adjustment that it shows; None where the answer does not show it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The code of the manager's refusal."""

    code: str


JobAnswer = Submitted | Cancelled | Adjusted | Extended | Viewed | Refused
JobOperation = Operation[JobRequest, JobAnswer]
CONFLICT = Refused("conflict")
NOT_FOUND = Refused("not_found")


class KeyState(NamedTuple):
    """One key: no job yet (`job` is empty), or its job."""

    job: str = ""
    content: str = ""
    stage: int = 0
    end: str = ""
    """The terminal state, once an answer has shown it."""
    stopped: int = 0
    """1: cancelled; 2: cancelled with `now`."""
    sequence: int = 0
    """The number of adjustments so far."""
    vus: int | None = None
    paused: bool = False
    extended_ms: int = 0


@dataclass(frozen=True)
class JobModel:
    """The rules. `runs`: there are workers, so that jobs run and end by themselves. `cap_ms`: the
    most that a job may be extended by."""

    runs: bool
    cap_ms: int

    def step(
        self, state: KeyState, request: JobRequest, answer: JobAnswer | None
    ) -> Iterable[KeyState]:
        if isinstance(request, Submit):
            return self._submit(state, request, answer)
        if not state.job:
            # Nothing can happen to a job that does not exist.
            return [state] if answer == NOT_FOUND else []
        if answer == NOT_FOUND:
            return []
        if isinstance(request, Look):
            return self._look(state, request, answer)
        known = _named(state, request.job)
        if known is None:
            return []
        if isinstance(request, Cancel):
            return self._cancel(known, request, answer)
        if isinstance(request, Adjust):
            return self._adjust(known, request, answer)
        return self._extend(known, request, answer)

    def _submit(
        self, state: KeyState, request: Submit, answer: JobAnswer | None
    ) -> Iterable[KeyState]:
        if answer is None:
            return [] if state.job else [KeyState(ANY_JOB, request.content)]
        if answer == CONFLICT:
            return [state] if state.job and state.content != request.content else []
        if not isinstance(answer, Submitted):
            return []
        if not state.job:
            # "Not created" is right too: the client sends again what got no answer, and the first
            # try may have made the job.
            return [KeyState(answer.job, request.content)]
        known = _named(state, answer.job)
        if known is None or answer.created or state.content != request.content:
            return []
        return [known]

    def _cancel(
        self, state: KeyState, request: Cancel, answer: JobAnswer | None
    ) -> Iterable[KeyState]:
        wanted = 2 if request.now else 1
        is_over = state.stage == OVER
        stopped = state._replace(
            stopped=max(state.stopped, wanted), stage=max(state.stage, STAGES["stopping"])
        )
        if answer is None:
            return [] if is_over else [stopped]
        if not isinstance(answer, Cancelled):
            return []
        if not answer.repeated:
            return [] if is_over or state.stopped >= wanted else [stopped]
        if is_over:
            return [state]
        # The cancellation before this one may be the client's own first try. Or the job was over.
        over = [state._replace(stage=OVER)] if self._may_be_over(state) else []
        return [stopped, *over]

    def _adjust(
        self, state: KeyState, request: Adjust, answer: JobAnswer | None
    ) -> Iterable[KeyState]:
        takes = not state.stopped and state.stage < OVER
        adjusted = state._replace(
            sequence=state.sequence + 1,
            vus=state.vus if request.vus is None else request.vus,
            paused=state.paused if request.paused is None else request.paused,
        )
        if answer is None:
            return [adjusted] if takes else []
        if answer == CONFLICT:
            if not takes:
                return [state]
            return [state._replace(stage=OVER)] if self._may_be_over(state) else []
        if not isinstance(answer, Adjusted):
            return []
        return [adjusted] if takes and answer.sequence == adjusted.sequence else []

    def _extend(
        self, state: KeyState, request: Extend, answer: JobAnswer | None
    ) -> Iterable[KeyState]:
        total_ms = max(state.extended_ms, min(request.to_ms, self.cap_ms))
        extended = state._replace(extended_ms=total_ms)
        if answer is None:
            return [extended] if state.stage < OVER else []
        if not isinstance(answer, Extended) or state.stage == OVER:
            return []
        return [extended] if answer.to_ms == total_ms else []

    def _look(self, state: KeyState, request: Look, answer: JobAnswer | None) -> Iterable[KeyState]:
        if answer == CONFLICT:
            return [state._replace(stage=OVER)] if self._may_be_over(state) else []
        if not isinstance(answer, Viewed):
            return []
        known = _named(state, answer.job)
        if known is None:
            return []
        stage = STAGES.get(answer.state, OVER)
        if stage < known.stage or not self._may_be(known, answer.state, stage):
            return []
        if request.how == "cancel" and not known.stopped and stage < OVER:
            return []
        shows = answer.adjusted is not None and stage < STAGES["completing"]
        if shows and answer.adjusted != shown_adjustment(known.vus, known.paused):
            return []
        end = answer.state if stage == OVER else ""
        return [known._replace(stage=stage, end=end)]

    def _may_be(self, state: KeyState, shown: str, stage: int) -> bool:
        if state.end:
            return shown == state.end
        if shown == "queued":
            return True
        if shown in ("stopping", "cancelled"):
            return state.stopped > 0
        if shown == "completing":
            return self.runs or state.stopped > 0
        return self.runs

    def _may_be_over(self, state: KeyState) -> bool:
        return self.runs or state.stopped > 0 or state.stage == OVER


def shown_adjustment(vus: int | None, paused: bool) -> str:
    """How the view of a workflow shows its adjustment."""
    users = "" if vus is None else f"{vus} user" + ("" if vus == 1 else "s")
    return ", ".join(text for text in (users, "paused" if paused else "") if text)


def _named(state: KeyState, job: str) -> KeyState | None:
    """The state if its job has this id; the first answer that shows the id decides it."""
    if not job or job == state.job:
        return state
    return state._replace(job=job) if state.job == ANY_JOB else None


@dataclass(frozen=True, slots=True)
class Recorded:
    """An operation on one key."""

    key: str
    operation: JobOperation


def counted(recorded: Sequence[Recorded]) -> Counter[str]:
    """How many operations of each kind there are, and which states were seen: a history without
    failovers or without running jobs would prove little."""
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for each in recorded:
        kind = type(each.operation.request).__name__.lower()
        answer = each.operation.answer
        counts[f"{kind} without an answer" if answer is None else kind] += 1
        if isinstance(answer, Viewed):
            seen.add(answer.state)
    counts.update(f"histories with {state}" for state in seen)
    return counts


def problem_of(recorded: Sequence[Recorded], model: JobModel) -> str:
    """Returns what is wrong with the history, "" if it is linearizable."""
    keys: dict[str, list[JobOperation]] = {}
    for each in recorded:
        keys.setdefault(each.key, []).append(each.operation)
    for key in sorted(keys):
        # A read without an answer neither changes nor shows anything.
        relevant = [
            op for op in keys[key] if op.answer is not None or not isinstance(op.request, Look)
        ]
        problem = explain(relevant, KeyState(), model.step)
        if problem:
            return f"key {key}: {problem}"
    return ""
