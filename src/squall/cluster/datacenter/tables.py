"""The tables of a datacenter, and the only functions that change them.

Apply reads and writes only through this. Records are immutable and tables are dicts, so a copy
of the dicts is a copy of the whole state. Derived tables (which attempts live where) are not part
of the state, and their order never decides the result of a command.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from squall.cluster.datacenter.gated_records import GatedRecord, KnownGates
from squall.cluster.datacenter.records import (
    HISTORY_MAX,
    AttemptFacts,
    JobEvent,
    JobRecord,
    KeyEntry,
    SlotUse,
    Transition,
    WorkerRecord,
    WorkflowRecord,
)
from squall.cluster.datacenter.workflow_states import WorkflowState, allowed
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId, ShareKey
from squall.cluster.protocol.job_rules import (
    with_event,
)

CoreSlot = tuple[str, int]
"""(node, index of the core)."""
replace = msgspec.structs.replace


class JobBroken(Exception):
    """An invariant of one job does not hold: that job fails, the node goes on."""


def _must(condition: bool, text: str) -> None:
    if not condition:
        raise JobBroken(text)


class Tables:
    """The whole state of a datacenter."""

    def __init__(self) -> None:
        self.group = ""
        # In a group made from a copy of another's log, new attempts of the jobs in the copy are
        # numbered above this: the other group may have made attempts after the copy.
        self.attempt_floor = 0
        self.lease_ms = 0
        # Group time and op of the last applied entry.
        self.group_ms = 0
        self.op = 0
        # The wall time that the newest job was stamped with, for people. It never goes back,
        # whichever primary's clock it came from; the op orders jobs with equal stamps (R10).
        self.wall_s = 0.0
        self.workers: dict[str, WorkerRecord] = {}
        self.jobs: dict[JobId, JobRecord] = {}
        self.attempts: dict[ShareKey, tuple[AttemptFacts, ...]] = {}
        self.slots: dict[CoreSlot, SlotUse] = {}
        self.keys: dict[tuple[str, str], KeyEntry] = {}
        self.events: dict[JobId, tuple[JobEvent, ...]] = {}
        # Jobs of the gates, and the gates that are known, by the id of their group (R15).
        self.gated: dict[JobId, GatedRecord] = {}
        self.gates: dict[str, KnownGates] = {}
        # The last broken job invariants.
        self.alarms: tuple[str, ...] = ()

        # Derived, see `rebuild`: jobs that are not over, live attempts by node, the number of
        # live attempts by job, keys of `attempts` by job.
        self.active: dict[JobId, None] = {}
        self.live: dict[str, dict[AttemptKey, None]] = {}
        self.live_count: dict[JobId, int] = {}
        self.shares_of: dict[JobId, dict[ShareKey, None]] = {}

    # Reading.

    def attempt(self, key: AttemptKey) -> AttemptFacts | None:
        attempts = self.attempts.get(key.of)
        if attempts is None:
            return None
        index = _index(attempts, key.attempt)
        return attempts[index] if index >= 0 else None

    def known(self, key: AttemptKey) -> AttemptFacts:
        """An attempt that must be in the tables."""
        attempts = self.attempts[key.of]
        return attempts[_index(attempts, key.attempt)]

    def next_attempt(self, share: ShareKey) -> Attempt:
        attempts = self.attempts.get(share, ())
        number = (attempts[-1].number if attempts else 0) + 1
        return Attempt(max(number, self.attempt_floor + 1) if self.is_copied(share.job) else number)

    def is_copied(self, job: JobId) -> bool:
        """Another group created the job, and this one was made from a copy of its log."""
        return bool(self.attempt_floor) and not job.startswith(f"{self.group}-")

    def last(self, share: ShareKey) -> AttemptFacts | None:
        attempts = self.attempts.get(share)
        return attempts[-1] if attempts else None

    def attempts_of(self, job: JobId) -> Iterator[tuple[AttemptKey, AttemptFacts]]:
        for share in sorted(self.shares_of.get(job, ())):
            for facts in self.attempts[share]:
                yield key_of(share, facts), facts

    def live_of(self, job: JobId, workflow: str = "") -> list[tuple[AttemptKey, AttemptFacts]]:
        """The live attempts of a job, or of one of its workflows, in the order of their keys."""
        return [
            (key, facts)
            for key, facts in self.attempts_of(job)
            if facts.state == "live" and workflow in ("", key.workflow)
        ]

    def free_slots(self, worker: WorkerRecord) -> list[int]:
        return [slot for slot in range(worker.cores) if (worker.node, slot) not in self.slots]

    # Writing.

    def put_job(self, job: JobRecord) -> None:
        self.jobs[job.job] = job
        if job.over:
            self.active.pop(job.job, None)
        else:
            self.active[job.job] = None

    def put_workflow(self, job: JobId, workflow: WorkflowRecord) -> None:
        before = self.jobs[job]
        workflows = tuple(workflow if w.name == workflow.name else w for w in before.workflows)
        self.jobs[job] = replace(before, workflows=workflows)

    def move(
        self, job: JobId, workflow: WorkflowRecord, state: WorkflowState, reason: str
    ) -> WorkflowRecord:
        """Changes a workflow's state as `TRANSITIONS` allows and adds to its history."""
        _must(
            allowed(workflow.state, state),
            f"workflow {workflow.name} goes from {workflow.state.value} to {state.value}",
        )
        history = (*workflow.history, Transition(self.group_ms, state, reason))
        moved = replace(workflow, state=state, history=history[-HISTORY_MAX:])
        self.put_workflow(job, moved)
        return moved

    def add_attempt(self, share: ShareKey, facts: AttemptFacts) -> None:
        before = self.attempts.get(share, ())
        is_next = facts.number == self.next_attempt(share)
        _must(is_next, f"attempt {facts.number} of {share} is not next")
        _must(not before or before[-1].state != "live", f"{share} has a live attempt already")
        key = key_of(share, facts)
        slot = (facts.node, facts.slot)
        use = self.slots.get(slot)
        _must(use is None or use.job == share.job, f"core {slot} belongs to {use}")
        self.attempts[share] = (*before, facts)
        self.slots[slot] = SlotUse(share.job, (*(use.attempts if use else ()), key))
        self.shares_of.setdefault(share.job, {})[share] = None
        self._count(key, facts)

    def put_attempt(self, key: AttemptKey, facts: AttemptFacts) -> None:
        """Stores a changed attempt; one that is no longer live frees its core."""
        attempts = self.attempts[key.of]
        index = _index(attempts, key.attempt)
        before = attempts[index]
        self.attempts[key.of] = (*attempts[:index], facts, *attempts[index + 1 :])
        if before.state == "live" and facts.state != "live":
            self._release(key, before)

    def drop_job(self, job: JobId) -> None:
        """Removes the attempts of a job and frees their cores."""
        for share in sorted(self.shares_of.pop(job, {})):
            for facts in self.attempts.pop(share):
                if facts.state == "live":
                    self._release(key_of(share, facts), facts)

    def event(self, job: JobId, text: str) -> None:
        self.events[job] = with_event(self.events.get(job, ()), self.group_ms, text)

    def shown_events(self, job: JobRecord) -> tuple[JobEvent, ...]:
        """Adds to each loss, which is declared later, when the attempt died or was last heard: in
        seconds since the creation of the job, as events are shown. The events themselves are state
        that members of all versions agree on."""
        when: dict[JobEvent, str] = {}
        for key, facts in self.attempts_of(job.job):
            workflow = job.workflow(key.workflow)
            if facts.state == "lost" and workflow is not None and workflow.started_ms:
                event = JobEvent(facts.ended_ms, loss_text(key, facts.node, facts.reason))
                died_at_s = facts.died_at_s(workflow.started_ms)
                at_s = facts.heard_at_s if died_at_s is None else died_at_s
                at_s += (workflow.started_ms - job.created_ms) / 1000.0
                verb = "last heard" if died_at_s is None else "died"
                text = loss_text(key, facts.node, facts.reason, f", {verb} at {at_s:.1f} s")
                when[event] = text
        events = self.events.get(job.job, ())
        return tuple(JobEvent(each.at_ms, when.get(each, each.text)) for each in events)

    def rebuild(self) -> None:
        """Computes the derived tables after the others were loaded."""
        self.live, self.shares_of, self.live_count = {}, {}, {}
        self.active = {job.job: None for job in self.jobs.values() if not job.over}
        for share, attempts in self.attempts.items():
            self.shares_of.setdefault(share.job, {})[share] = None
            for facts in attempts:
                if facts.state == "live":
                    self._count(key_of(share, facts), facts)

    def _count(self, key: AttemptKey, facts: AttemptFacts) -> None:
        self.live.setdefault(facts.node, {})[key] = None
        self.live_count[key.job] = self.live_count.get(key.job, 0) + 1

    def _release(self, key: AttemptKey, facts: AttemptFacts) -> None:
        self.live.get(facts.node, {}).pop(key, None)
        self.live_count[key.job] = self.live_count.get(key.job, 1) - 1
        if not self.live_count[key.job]:
            del self.live_count[key.job]
        slot = (facts.node, facts.slot)
        use = self.slots.get(slot)
        if use is None or key not in use.attempts:
            return
        left = tuple(each for each in use.attempts if each != key)
        if left:
            self.slots[slot] = SlotUse(use.job, left)
        else:
            del self.slots[slot]


def key_of(share: ShareKey, facts: AttemptFacts) -> AttemptKey:
    return AttemptKey(share.job, share.workflow, share.share, facts.number)


def _index(attempts: tuple[AttemptFacts, ...], number: int) -> int:
    """-1: there is none with this number. Numbers have a gap only where a group began."""
    if 1 <= number <= len(attempts) and attempts[number - 1].number == number:
        return number - 1
    numbers = [each.number for each in attempts]
    return numbers.index(Attempt(number)) if number in numbers else -1


def loss_text(key: AttemptKey, node: str, reason: str, when: str = "") -> str:
    return f"{key.workflow} share {key.share} on {node} lost{when}: {reason}"
