"""Carries out the effects of the steward: submits, stores, merges; then reports back.

`EffectTasks` makes each effect a task of its own.
"""

from __future__ import annotations

from squall.cluster.assignments.commands import GateCommand
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.gate.live.job_leader import GateJobLeader
from squall.cluster.gate.result_merger import ResultMerger
from squall.cluster.gate.steward.effects import (
    MergeResults,
    StewardEffect,
    StoreLostPart,
    SubmitCommand,
)
from squall.cluster.gate.steward.policy import Steward
from squall.cluster.gate.steward.volatile_state import job_of
from squall.cluster.group.job_leaders.choice import JobLeaders
from squall.cluster.group.primary.effect_tasks import EffectTasks
from squall.cluster.group.primary.job_end import JobEndFacts, end_or_reason, stored_end
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.group_messages import AskCut, AskJudged, Cut, Judged
from squall.cluster.protocol.job_keys import Attempt, AttemptKey


class StewardEffects:
    """Runs the effects of one gate's stewards."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        machine: Assignments,
        leader: GateJobLeader,
        leaders: JobLeaders[GateCommand],
        merger: ResultMerger,
        effects: EffectTasks,
    ) -> None:
        self._ledger = ledger
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._merger = merger
        self._effects = effects

    def start(self, steward: Steward, effect: StewardEffect) -> None:
        self._effects.start(steward, effect, job_of(effect), lambda: self._do(steward, effect))

    async def _do(self, steward: Steward, effect: StewardEffect) -> None:
        match effect:
            case SubmitCommand():
                await self._effects.submit(steward, effect.tag, effect.command)
            case StoreLostPart():
                await self._store_lost_part(steward, effect)
            case MergeResults():
                await self._merge(steward, effect)

    async def _store_lost_part(self, steward: Steward, effect: StoreLostPart) -> None:
        """Stores the reports that the job's leader has of the part; a leader that died took them
        with it."""
        job = self._machine.tables.jobs[effect.job]
        key = AttemptKey(effect.job, "", effect.part, Attempt(int(effect.handover)))
        cut: Cut | None = await self._leaders.ask_leader(job, AskCut(key))
        data = cut.record if cut is not None else self._leader.lost_part(key)
        blob = await self._ledger.blobs.put(data) if data else ""
        steward.lost_part_stored(effect.tag, effect.job, effect.part, blob, len(data))

    async def _merge(self, steward: Steward, effect: MergeResults) -> None:
        log, failed = self._effects.log, "its results could not be merged"
        facts = await end_or_reason(effect.job, self._merged(effect), failed, log)
        steward.results_merged(effect.tag, effect.job, facts)

    async def _merged(self, effect: MergeResults) -> JobEndFacts:
        tables = self._machine.tables
        job = tables.jobs[effect.job]
        judged: Judged | None = await self._leaders.ask_leader(job, AskJudged(job.job))
        found = judged.results if judged is not None else self._leader.judged(job.job)
        result = await self._merger.merged(job, effect.status, effect.reason, found)
        return await stored_end(self._ledger.blobs, result, tables.events.get(job.job, ()))
