"""Mutants of the handover of jobs between gates and datacenters, each switched on by its name.

Each breaks one sentence of R15. They patch the real functions for one run; the product contains no
switch for them.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from squall.cluster.assignments import commands as gate_commands
from squall.cluster.assignments import part_rules, tables
from squall.cluster.assignments import state_machine as gates_machine
from squall.cluster.assignments.commands import AssignParts, PartChoice, StartParts
from squall.cluster.assignments.records import WAITING, GateJobRecord, PartRecord, PartTry
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.datacenter import commands, gated_rules, job_rules, state_machine
from squall.cluster.datacenter.gated_records import GatedRecord
from squall.cluster.datacenter.records import KeyEntry
from squall.cluster.datacenter.tables import Tables
from squall.cluster.gate import reports
from squall.cluster.gate.outbox import GateOutbox
from squall.cluster.gate.steward import waiting_jobs
from squall.cluster.gate.steward.effects import StewardEffect
from squall.cluster.gate.steward.policy import Steward
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome
from squall.cluster.protocol.gates.gate_messages import PartReport, PartStored, StartPart
from squall.cluster.protocol.gates.handover_keys import GateFence
from squall.cluster.protocol.job_commands import Purge
from squall.cluster.protocol.job_keys import JobId

replace = msgspec.structs.replace

MUTANTS = {
    "started_after_send": "a gate sends the start of a part before it has committed it",
    "start_creates": "a start that a datacenter does not know creates the part",
    "cancel_leaves_no_tombstone": "the cancellation of an unknown part is answered and forgotten",
    "refusal_not_stored": "a refusal is answered and forgotten",
    "fence_ignored": "a datacenter obeys every primary of its gates, also a former one",
    "fence_across_groups": "a datacenter obeys gates that were replaced by a recovery",
    "e_without_cancel": "a part is tried again, and its former try is never cancelled",
    "e_after_started": "a started part moves while its datacenter is out of reach",
    "delivered_before_commit": "a gate answers a report before it has committed it",
    "purge_before_delivered": "a datacenter purges a result that the gates do not have",
    "forget_leaves_nothing": "a forgotten job leaves no trace, so a late message creates it again",
    "late_result_counted": "a result that comes after the loss of its part is counted",
    "barrier_hold_and_wait": "a job takes one datacenter after the other and holds what it has",
    "gate_clock_restarts": "deadlines count from the moment at which a gate began to lead",
    "direct_and_gated_same_key": "a part occupies the key of its job in its datacenter",
    "direct_beside_gates": "a datacenter creates a job that it has sent to the gates",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    with ExitStack() as stack:
        if name is not None:
            for patched in _PATCHES[name]():
                stack.enter_context(patched)
        yield


def _gate_rule(command: type[Any], rule: Callable[..., CommandOutcome]) -> Any:
    return patch.dict(gates_machine._RULES, {command: rule})


def _rule(command: type[Any], rule: Callable[..., CommandOutcome]) -> Any:
    return patch.dict(state_machine._RULES, {command: rule})


# The gates.


def _started_after_send() -> list[Any]:
    original = GateOutbox._try_orders

    def orders(
        self: GateOutbox,
        job: GateJobRecord,
        part: PartRecord,
        tried: PartTry,
        fence: GateFence,
        group_ms: int,
    ) -> Iterator[Any]:
        yield from original(self, job, part, tried, fence, group_ms)
        if tried.state == "ready" and not tried.cancel:
            name = f"start {job.job} {tried.datacenter} {tried.handover}"
            start = StartPart(
                job=job.job, datacenter=tried.datacenter, handover=tried.handover, fence=fence
            )
            yield name, tried.datacenter, lambda: start

    return [patch.object(GateOutbox, "_try_orders", orders)]


def _e_without_cancel() -> list[Any]:
    def queue_again(state: AssignmentTables, command: gate_commands.QueueAgain) -> CommandOutcome:
        outcome = part_rules.queue_again(state, command)
        job = state.jobs.get(command.job)
        for part in job.parts if job is not None and isinstance(outcome, Accepted) else ():
            tried = part.current
            if tried is not None and tried.cancel and tried.state in WAITING:
                state.put_try(
                    command.job, part.index, replace(tried, state="cancelled", settled=True)
                )
        return outcome

    return [_gate_rule(gate_commands.QueueAgain, queue_again)]


def _e_after_started() -> list[Any]:
    tick = Steward.tick

    def moves(self: Steward, now: float, group_ms: int) -> list[StewardEffect]:
        effects = tick(self, now, group_ms)
        state = self.state
        for name in list(state.tables.active):
            job = state.tables.jobs[name]
            tried = job.parts[0].current
            if len(job.parts) > 1 or not job.started_ms or tried is None or job.stop:
                continue
            if tried.state == "started" and state.is_unreachable(tried.datacenter):
                free = [dc for dc in state.tables.datacenters if dc != tried.datacenter]
                number = state.tables.next_handover(job, 0, free[0])
                choice = PartChoice(part=0, datacenter=free[0], handover=number)
                state.submit(f"move {name}", AssignParts(job=name, choices=(choice,)))
            elif tried.state == "ready" and not tried.cancel:
                state.submit(f"start {name}", StartParts(job=name, handovers=(tried.handover,)))
        return [*effects, *state.take_effects()]

    def assign_parts(state: AssignmentTables, command: AssignParts) -> CommandOutcome:
        job = state.jobs.get(command.job)
        if job is not None and job.started_ms and not job.over and not job.stop:
            current = job.parts[0].current
            if current is not None and current.state == "started":
                part_rules.assign(state, job, command.choices)
                return Accepted(job=job.job)
        return part_rules.assign_parts(state, command)

    def start_parts(state: AssignmentTables, command: StartParts) -> CommandOutcome:
        job = state.jobs.get(command.job)
        if job is not None and len(job.parts) == 1 and job.started_ms:
            current = job.parts[0].current
            if current is not None and current.state == "ready":
                state.put_job(replace(job, started_ms=0))
        return part_rules.start_parts(state, command)

    return [
        patch.object(Steward, "tick", moves),
        _gate_rule(AssignParts, assign_parts),
        _gate_rule(StartParts, start_parts),
    ]


def _delivered_before_commit() -> list[Any]:
    async def stored(
        machine: Assignments, report: PartReport, commit: Callable[[gate_commands.GateCommand], Any]
    ) -> PartStored:
        command = reports.stored_report(machine, report)
        if command is not None:
            commit(command)
        return PartStored(known=reports.is_known(machine, report))

    return [patch.object(reports, "stored", stored)]


def _late_result_counted() -> list[Any]:
    original = part_rules._over

    def over(
        state: AssignmentTables,
        job: GateJobRecord,
        part: PartRecord,
        tried: PartTry,
        facts: gate_commands.PartFacts,
    ) -> PartTry:
        if tried.state == "lost":
            tried = replace(tried, state="started")
        return original(state, job, part, tried, facts)

    return [patch.object(part_rules, "_over", over)]


def _barrier_hold_and_wait() -> list[Any]:
    original = waiting_jobs._assign

    def assign(state: Any, job: GateJobRecord, claimed: set[str]) -> float:
        return original(state, job, set())

    def reserved_in(job: GateJobRecord) -> list[str]:
        return []

    return [
        patch.object(tables, "reserved_in", reserved_in),
        patch.object(waiting_jobs, "_assign", assign),
    ]


def _gate_clock_restarts() -> list[Any]:
    def time(self: Steward, now: float, group_ms: int) -> None:
        self.state.now = max(self.state.now, now)
        self.state.group_ms = round((self.state.now - self.state.began) * 1000)

    return [patch.object(Steward, "_time", time)]


# The datacenters.


def _start_creates() -> list[Any]:
    accepted: dict[tuple[int, JobId, int], commands.AcceptJob] = {}

    def accept_job(state: Tables, command: commands.AcceptJob) -> CommandOutcome:
        accepted[(id(state), command.gate_job, command.handover)] = command
        return gated_rules.accept_job(state, command)

    def start_held(state: Tables, command: commands.StartHeld) -> CommandOutcome:
        record = state.gated.get(command.gate_job)
        before = accepted.get((id(state), command.gate_job, command.handover))
        if before is not None and (record is None or record.find(command.handover) is None):
            state.gated.pop(command.gate_job, None)
            accept_job(state, before)
        return gated_rules.start_held(state, command)

    return [_rule(commands.AcceptJob, accept_job), _rule(commands.StartHeld, start_held)]


def _cancel_leaves_no_tombstone() -> list[Any]:
    def cancel_held(state: Tables, command: commands.CancelHeld) -> CommandOutcome:
        record = state.gated.get(command.gate_job)
        if record is None or record.find(command.handover) is None:
            return Accepted()
        return gated_rules.cancel_held(state, command)

    return [_rule(commands.CancelHeld, cancel_held)]


def _refusal_not_stored() -> list[Any]:
    def accept_job(state: Tables, command: commands.AcceptJob) -> CommandOutcome:
        record = state.gated.get(command.gate_job)
        known = record is not None and (record.closed or record.find(command.handover))
        if command.refusal and not known:
            return Accepted()
        return gated_rules.accept_job(state, command)

    return [_rule(commands.AcceptJob, accept_job)]


def _fence_ignored() -> list[Any]:
    original = gated_rules.fence_fault

    def fault(job: JobId, kept: GateFence | None, given: GateFence) -> str:
        if kept is not None and kept.group == given.group:
            return ""
        return original(job, kept, given)

    return [patch.object(gated_rules, "fence_fault", fault)]


def _fence_across_groups() -> list[Any]:
    def fault(state: Tables, job: JobId, fence: GateFence) -> str:
        record = state.gated.get(job)
        if record is not None and record.fence.group != fence.group:
            return ""
        kept = record.fence if record is not None else None
        return gated_rules.fence_fault(job, kept, fence)

    return [patch.object(gated_rules, "_fence_fault", fault)]


def _purge_before_delivered() -> list[Any]:
    def purge(state: Tables, command: Purge) -> CommandOutcome:
        for name in command.jobs:
            job = state.jobs.get(name)
            if job is not None and job.undelivered and job.over:
                state.put_job(replace(job, undelivered=False))
        return job_rules.purge(state, command)

    return [_rule(Purge, purge)]


def _forget_leaves_nothing() -> list[Any]:
    def close(state: Tables, record: GatedRecord) -> None:
        for tried in record.tries:
            gated_rules._start_retention(state, tried)
        state.gated.pop(record.job, None)

    return [patch.object(gated_rules, "_close", close)]


def _direct_and_gated_same_key() -> list[Any]:
    def accept_job(state: Tables, command: commands.AcceptJob) -> CommandOutcome:
        outcome = gated_rules.accept_job(state, command)
        if isinstance(outcome, Accepted) and outcome.job and outcome.changed:
            key = (command.create.principal, command.create.key)
            state.keys[key] = KeyEntry("f", outcome.job)
        return outcome

    return [_rule(commands.AcceptJob, accept_job)]


def _direct_beside_gates() -> list[Any]:
    def create_job(state: Tables, command: commands.CreateJob) -> CommandOutcome:
        return job_rules.create_job(state, replace(command, direct=True))

    return [_rule(commands.CreateJob, create_job)]


_PATCHES: dict[str, Callable[[], list[Any]]] = {
    "started_after_send": _started_after_send,
    "start_creates": _start_creates,
    "cancel_leaves_no_tombstone": _cancel_leaves_no_tombstone,
    "refusal_not_stored": _refusal_not_stored,
    "fence_ignored": _fence_ignored,
    "fence_across_groups": _fence_across_groups,
    "e_without_cancel": _e_without_cancel,
    "e_after_started": _e_after_started,
    "delivered_before_commit": _delivered_before_commit,
    "purge_before_delivered": _purge_before_delivered,
    "forget_leaves_nothing": _forget_leaves_nothing,
    "late_result_counted": _late_result_counted,
    "barrier_hold_and_wait": _barrier_hold_and_wait,
    "gate_clock_restarts": _gate_clock_restarts,
    "direct_and_gated_same_key": _direct_and_gated_same_key,
    "direct_beside_gates": _direct_beside_gates,
}
