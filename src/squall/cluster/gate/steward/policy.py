"""The policy of the primary gate.

Pure: no clock, no I/O. It reads the committed state and asks for effects. It never acts on anything
that is not committed, and holds nothing that a new primary could not learn again.

How to drive it, on the primary only, one new `Steward` for each time of leading:

    steward = Steward(machine, timers, group=..., now=clock.now(), group_ms=ledger.group_ms(), ...)

    always:    after every applied entry, after each of the calls below and at `deadline()`:
               for effect in steward.tick(now, group_ms): do it

    effect             do                                     then call
    SubmitCommand      ledger.submit(encode(command))         submitted(tag, outcome or None)
    StoreLostPart      store the live record of the part      lost_part_stored(tag, job, part, ...)
    MergeResults       merge the results of all parts         results_merged(tag, job, facts)
    any that failed                                           failed(tag): asked for again in 1 s

The messages to datacenters are not effects: the outbox derives them from the committed state.
Commands of clients and reports of datacenters go to the ledger directly; the next `tick` sees what
they changed. `abort` asks for its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from squall.cluster.assignments.commands import ConfigureGates, KnowDatacenters
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.gate.steward.effects import StewardEffect
from squall.cluster.gate.steward.endings import check_deadline, check_end, check_losses
from squall.cluster.gate.steward.retention import PURGE_MAX, next_purge
from squall.cluster.gate.steward.volatile_state import Route, StewardState
from squall.cluster.gate.steward.waiting_jobs import assign_waiting, check_start
from squall.cluster.gate.timers import GateTimers
from squall.cluster.group.primary.job_end import JobEndFacts
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome
from squall.cluster.protocol.job_commands import StopJob
from squall.cluster.protocol.job_keys import JobId

SWEEP_S = 5.0
"""How often expired jobs are searched for."""
SWEEP_AGAIN_S = 0.5


class Steward:
    """Decides while this member is primary, for one term; the next term has a new `Steward`."""

    def __init__(
        self,
        machine: Assignments,
        timers: GateTimers,
        *,
        group: str,
        datacenters: Mapping[str, tuple[str, ...]],
        now: float,
        group_ms: int,
        route: Route,
        is_unreachable: Callable[[str], bool],
        silent_s: Callable[[str], float],
        on_broken: Callable[[JobId, Exception], None] = lambda job, error: None,
    ) -> None:
        """`group` becomes the id of a group that has none yet. `datacenters` are those of this
        gate's flags, with the addresses of their managers. `is_unreachable` says whether a
        datacenter has been silent for so long that its parts may be given up, `silent_s` how long
        it has been silent."""
        self.state = StewardState(
            machine=machine,
            timers=timers,
            route=route,
            is_unreachable=is_unreachable,
            silent_s=silent_s,
            on_broken=on_broken,
            began=now,
            began_ms=group_ms,
            now=now,
            group_ms=group_ms,
        )
        self._group = group
        self._datacenters = dict(datacenters)
        self._queue_at = now
        self._sweep_at = now
        # A new term checks every job once: it has not seen the changes before it.
        machine.take_changed()
        self.state.dirty = dict.fromkeys(machine.tables.jobs)

    # Outcomes that the driver reports.

    def submitted(self, tag: str, outcome: CommandOutcome | None, now: float | None = None) -> None:
        self._back(tag, now, ok=isinstance(outcome, Accepted))

    def failed(self, tag: str, now: float | None = None) -> None:
        self._back(tag, now, ok=False)

    def lost_part_stored(self, tag: str, job: JobId, part: int, blob: str, size: int) -> None:
        self._back(tag, None, ok=True)
        self.state.job(job).lost[part] = (blob, size)

    def results_merged(self, tag: str, job: JobId, facts: JobEndFacts) -> None:
        self._back(tag, None, ok=True)
        self.state.job(job).merged = facts

    # Requests.

    def abort(self, job: JobId, text: str) -> None:
        """A threshold ends the job."""
        self.state.submit(f"stop {job}", StopJob(job=job, kind="aborted", reason=text))

    def fail_job(self, job: JobId, error: Exception) -> None:
        """Fails a job after one of its effects raised an error that it should never raise."""
        self.state.fail_job(job, error)

    def waits_for(self, job: JobId) -> str:
        """Why a job waits in the queue of the gates; "" if the steward knows of no wait."""
        known = self.state.jobs.get(job)
        return known.waits_for if known is not None else ""

    # Time.

    def tick(self, now: float, group_ms: int) -> list[StewardEffect]:
        """Checks every job that changed or is due; returns the effects."""
        state = self.state
        self._time(now, group_ms)
        changed = state.machine.take_changed()
        state.dirty.update(dict.fromkeys(changed))
        for tag in [tag for tag, at in state.blocked.items() if at <= state.now]:
            del state.blocked[tag]
            self._touch(tag)
        self._configure()
        state.dirty.update(dict.fromkeys(job for job, at in state.due.items() if at <= state.now))
        jobs, state.dirty = list(state.dirty), {}
        for job in jobs:
            self._drive_alone(job)
        # A change of one job may free the tickets that another one waits for.
        if jobs or state.now >= self._queue_at:
            self._queue_at = assign_waiting(state)
        if state.now >= self._sweep_at:
            self._sweep()
        return state.take_effects()

    def deadline(self) -> float:
        """The latest moment for the next `tick`."""
        state = self.state
        if state.effects or state.dirty:
            return state.now
        return min([self._queue_at, self._sweep_at, *state.due.values(), *state.blocked.values()])

    def _time(self, now: float, group_ms: int) -> None:
        self.state.now = max(self.state.now, now)
        # Never behind the entries that were applied: their times are deadlines and waits here.
        self.state.group_ms = max(self.state.group_ms, group_ms, self.state.tables.group_ms)

    def _back(self, tag: str, now: float | None, *, ok: bool) -> None:
        state = self.state
        state.now = max(state.now, now or state.now)
        state.returned(tag, ok=ok)
        self._touch(tag)

    def _touch(self, tag: str) -> None:
        """Schedules a check of the job that an effect belongs to."""
        words = tag.split(" ")
        if len(words) > 1 and JobId(words[1]) in self.state.tables.jobs:
            self.state.dirty[JobId(words[1])] = None

    def _configure(self) -> None:
        tables = self.state.tables
        if not tables.group:
            self.state.submit("configure", ConfigureGates(group=self._group))
            return
        known = {name: record.managers for name, record in tables.datacenters.items()}
        if known != self._datacenters:
            # A datacenter that the flags do not name any more leaves once no part is there.
            wanted = {**dict.fromkeys(known, ()), **self._datacenters}
            changed = tuple(sorted((n, m) for n, m in wanted.items() if known.get(n) != m))
            if changed:
                self.state.submit("datacenters", KnowDatacenters(datacenters=changed))

    def _drive_alone(self, name: JobId) -> None:
        """Drives one job so that nothing in it can stop the others (R3)."""
        try:
            self._drive(name)
        except Exception as error:
            self.state.fail_job(name, error)
            # Its command may be lost with the primary's lead of the moment; it is asked for again.
            self.state.due[name] = self.state.now + 1.0

    def _drive(self, name: JobId) -> None:
        state = self.state
        job = state.tables.jobs.get(name)
        if job is None or job.over:
            state.forget(name)
            return
        checks = [check_deadline(state, job), check_end(state, job)]
        if job.started_ms:
            checks.append(check_losses(state, job))
        elif not job.stop:
            checks.append(check_start(state, job))
        check_at = min(checks)
        if math.isfinite(check_at):
            # At least a moment away: a check that is due and changes nothing must not spin.
            state.due[name] = max(check_at, state.now + 0.01)
        else:
            state.due.pop(name, None)

    def _sweep(self) -> None:
        """Forgets expired jobs and idempotency keys."""
        state = self.state
        self._sweep_at = state.now + SWEEP_S
        purge = next_purge(state.tables, state.timers, state.group_ms)
        if purge is not None:
            state.submit("purge", purge)
            if max(len(purge.jobs), len(purge.keys)) == PURGE_MAX:
                # There may be more than one command holds.
                self._sweep_at = state.now + SWEEP_AGAIN_S
