"""Watches both logs from outside, and fails the run when the handover breaks a promise (R15).

Unlike any node, it sees the commands of all groups when they are committed. It never trusts the
tables that it judges: it keeps its own record of past commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.scenarios.handover.execution import result_of
from lab.scenarios.handover.group_model import GroupModel
from lab.scenarios.handover.nodes import lost_result
from lab.scenarios.handover.timeline import Timeline
from lab.sim.checks import check
from squall.cluster.assignments import commands as gate_commands
from squall.cluster.assignments.records import GateJobRecord
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.datacenter import commands
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome
from squall.cluster.protocol.gates.gate_messages import OVER
from squall.cluster.protocol.gates.handover_keys import GateFence
from squall.cluster.protocol.job_commands import FinishJob, Purge
from squall.cluster.protocol.job_keys import JobId

TryKey = tuple[str, str, int]
"""(gates' job, datacenter, handover)."""
LATE_S = 6.0
"""How long after its deadline, while a gate leads, a job may not be stopped yet."""


class HandoverChecks:
    def __init__(
        self, timeline: Timeline, last_gates: Callable[[], GroupModel[Assignments]]
    ) -> None:
        self._timeline = timeline
        self.last_gates = last_gates
        # From the gates' logs.
        self.part_of: dict[TryKey, tuple[str, int]] = {}
        self.started: set[TryKey] = set()
        self.settled: set[TryKey] = set()
        self.disowned: set[TryKey] = set()
        self.over_jobs: dict[tuple[int, str], str] = {}
        self.lost: set[tuple[int, str, int]] = set()
        # By group: a recovery may have lost a job, whose client then gets another one.
        self.gate_keys: dict[int, dict[str, set[str]]] = {}
        # From the datacenters' logs.
        self.runs: dict[str, tuple[TryKey, float]] = {}
        self.direct_keys: dict[str, set[str]] = {}
        self.never: dict[TryKey, str] = {}
        self.fences: dict[tuple[str, str], GateFence] = {}
        self.local: dict[str, TryKey] = {}

    # The gates.

    def gates_committed(
        self, group: GroupModel[Any], command: Any, outcome: CommandOutcome
    ) -> None:
        if not isinstance(outcome, Accepted):
            return
        tables = group.machine.tables
        match command:
            case gate_commands.CreateGateJob() | gate_commands.AssignParts() if outcome.changed:
                job: GateJobRecord = tables.jobs[outcome.job]
                if isinstance(command, gate_commands.CreateGateJob):
                    keys = self.gate_keys.setdefault(id(group), {})
                    keys.setdefault(command.key, set()).add(job.job)
                for part in job.parts:
                    for tried in part.tries:
                        key = (str(job.job), tried.datacenter, int(tried.handover))
                        known = self.part_of.setdefault(key, (str(job.job), part.index))
                        check(known[1] == part.index, f"{key} is a try of two parts")
            case gate_commands.StartParts() if outcome.changed:
                for part in tables.jobs[command.job].parts:
                    if part.current is not None:
                        where, number = part.current.datacenter, int(part.current.handover)
                        self.started.add((str(command.job), where, number))
            case gate_commands.ReportParts():
                for facts in command.reports:
                    if facts.state in OVER and facts.job in tables.jobs:
                        found = tables.jobs[facts.job].find(facts.datacenter, facts.handover)
                        if found is not None and found[1].settled:
                            self.settled.add(
                                (str(facts.job), facts.datacenter, int(facts.handover))
                            )
            case gate_commands.LosePart():
                self.lost.add((id(group), str(command.job), command.part))
            case FinishJob() if outcome.changed:
                self._finished(group, tables.jobs[command.job])
            case _:
                pass
        self._stable(group)

    def recovered(self, group: GroupModel[Assignments]) -> None:
        """A group begins with what is in its copy of another log."""
        entries = group.machine.tables.keys.items()
        self.gate_keys[id(group)] = {key: {str(entry.job)} for (_, key), entry in entries}
        for job in group.machine.tables.jobs.values():
            for part in job.parts:
                if part.current is not None and part.current.state == "lost":
                    self.lost.add((id(group), str(job.job), part.index))

    def _finished(self, group: GroupModel[Any], job: GateJobRecord) -> None:
        """The result counts each part once: by the outcome of its current try."""
        for part in job.parts:
            tried = part.current
            if tried is None or not tried.result:
                continue
            key = (str(job.job), tried.datacenter, int(tried.handover))
            local = f"{job.job}.{tried.datacenter}{tried.handover}"
            if (id(group), str(job.job), part.index) in self.lost:
                wanted = lost_result(job.job, part.index)
                check(tried.result == wanted, f"{key}: a result after its loss is counted")
            else:
                check(tried.result == result_of(local), f"{key}: counts {tried.result}")
                check(key in self.settled, f"{key}: a result that was never reported is counted")

    def _stable(self, group: GroupModel[Any]) -> None:
        """A job has one terminal state; a lost part stays lost."""
        tables = group.machine.tables
        for job in tables.jobs.values():
            if job.over:
                state = self.over_jobs.setdefault((id(group), job.job), job.state)
                check(state == job.state, f"{job.job} was {state} and is {job.state}")
        for ident, name, index in self.lost:
            job = tables.jobs.get(JobId(name)) if ident == id(group) else None
            if job is not None:
                state = job.parts[index].current.state
                check(state == "lost", f"{name}: part {index} was lost and is {state}")

    # The datacenters.

    def datacenter_committed(
        self, group: GroupModel[Any], command: Any, outcome: CommandOutcome, name: str
    ) -> None:
        if not isinstance(outcome, Accepted):
            return
        tables = group.machine.tables
        fence: GateFence | None = getattr(command, "fence", None)
        if fence is not None and outcome.changed:
            self._fenced(str(command.gate_job), name, fence)
        match command:
            case commands.CreateJob() if outcome.changed:
                if not command.direct:
                    self.direct_keys.setdefault(command.key, set()).add(str(outcome.job))
            case commands.StartWorkflows() if outcome.changed:
                self._run_begins(name, str(command.job))
            case commands.EndAttempts():
                for facts in command.ended:
                    self._run_ends(str(facts.key.job))
            case commands.MarkDelivered() if outcome.changed:
                key = (str(command.gate_job), name, int(command.handover))
                record = tables.gated.get(command.gate_job)
                tried = record.find(command.handover) if record is not None else None
                if tried is not None and tried.over and tried.is_delivered:
                    check(key in self.settled, f"{key} is delivered, and no gate has committed it")
            case commands.DisownHeld() if outcome.changed:
                self._disowned((str(command.gate_job), name, int(command.handover)))
            case commands.CancelHeld() | commands.AcceptJob() | commands.ForgetGated():
                self._remember(tables, name, command)
            case Purge() if outcome.changed:
                for job in command.jobs:
                    if job in self.local and job not in tables.jobs:
                        key = self.local[job]
                        known = key in self.settled or key in self.disowned
                        check(known, f"{job} is purged, and no gate has its result")
            case _:
                pass
        for job in tables.jobs.values():
            if job.gate_job and str(job.job) not in self.local:
                key = (str(job.gate_job), name, int(job.handover))
                why = self.never.get(key) or self.never.get((key[0], name, 0), "")
                check(not why, f"{job.job} is created although {why}")
                self.local[str(job.job)] = key

    def _disowned(self, key: TryKey) -> None:
        """Only a try that the last group of gates does not know may be ended like this."""
        job = self.last_gates().machine.tables.jobs.get(JobId(key[0]))
        found = job.find(key[1], key[2]) if job is not None else None
        check(found is None or found[1].settled, f"{key} is disowned, and the gates know it")
        self.disowned.add(key)

    def _remember(self, tables: Any, name: str, command: Any) -> None:
        """Notes the handovers that no group may create from now on."""
        job, number = str(command.gate_job), int(command.handover)
        record = tables.gated.get(command.gate_job)
        if isinstance(command, commands.ForgetGated):
            for key in list(self.local.values()):
                if key[:2] == (job, name) and key[2] > number:
                    self._disowned(key)
        gone = record is None and isinstance(command, commands.ForgetGated)
        if gone or (record is not None and record.closed):
            self.never.setdefault((job, name, 0), "the gates have forgotten the job")
            return
        exists = f"{job}.{name}{number}" in self.local
        if isinstance(command, commands.CancelHeld) and not exists:
            self.never.setdefault((job, name, number), "its cancellation was answered before")
        elif isinstance(command, commands.AcceptJob) and command.refusal and not exists:
            self.never.setdefault((job, name, number), "its refusal was answered before")

    def _fenced(self, job: str, name: str, fence: GateFence) -> None:
        highest = self.fences.get((job, name))
        if highest is not None:
            if highest.group == fence.group:
                check(fence.term >= highest.term, f"{name} obeys a former primary for {job}")
            else:
                check(
                    fence.group not in highest.former,
                    f"{name} obeys the gates {fence.group}, which {highest.group} replaced",
                )
        self.fences[(job, name)] = fence

    def _run_begins(self, name: str, job: str) -> None:
        key = self.local.get(job)
        if key is None:
            return
        check(key in self.started, f"{job} runs, and no gate has committed its start")
        check(key not in self.settled, f"{job} runs after its end was reported")
        self.runs[job] = (key, self._timeline.now)
        part = self.part_of[key]
        for other, (other_key, _) in self.runs.items():
            same = other != job and self.part_of.get(other_key) == part
            check(not same, f"part {part[1]} of {part[0]} runs as {other} and as {job}")

    def _run_ends(self, job: str) -> None:
        self.runs.pop(job, None)

    # Clients.

    def one_job_per_key(self) -> None:
        gates = self.gate_keys.get(id(self.last_gates()), {})
        for key in sorted({*gates, *self.direct_keys}):
            jobs = {*gates.get(key, ()), *self.direct_keys.get(key, ())}
            check(len(jobs) <= 1, f"the key {key} has created {', '.join(sorted(jobs))}")

    # Time.

    def on_time(self, group: GroupModel[Any], led_since: float) -> None:
        """While a gate leads, a job is stopped soon after its deadline."""
        tables, now_ms = group.machine.tables, group.group_ms()
        if self._timeline.now - led_since < LATE_S:
            return
        for name in tables.active:
            job = tables.jobs[name]
            limit_ms = job.deadline_ms + job.extension_ms
            late = job.deadline_ms and now_ms > limit_ms + LATE_S * 1000
            check(not late or job.stop, f"{name} is {job.state} {LATE_S:g} s after its deadline")
