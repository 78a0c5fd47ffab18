"""Carries out the effects of the steward: submits, stores, merges; then reports back.

Every effect is a task of its own. If it fails, the steward asks for it again. The outcome goes only
to the steward that asked: a member that leads again has a new steward, which must not take the
outcome of an earlier effect for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.cluster.assignments.commands import VERSION, GateCommand, encode
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.gate.live.job_leader import GateJobLeader
from squall.cluster.gate.result_merger import ResultMerger
from squall.cluster.gate.steward.effects import (
    MergedFacts,
    MergeResults,
    StewardEffect,
    StoreLostPart,
    SubmitCommand,
)
from squall.cluster.gate.steward.policy import Steward
from squall.cluster.gate.steward.volatile_state import job_of
from squall.cluster.group.job_leaders.choice import JobLeaders
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.command_outcomes import decode_outcome
from squall.cluster.protocol.group_messages import AskCut, AskJudged, Cut, Judged
from squall.cluster.protocol.job_keys import Attempt, AttemptKey
from squall.cluster.results.job_result import encode_result, outcome_of
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

LOG_AGAIN_S = 10.0
"""Effects are tried again every second; the same error is logged once per this interval."""
ACTIVATES_WITHIN_S = 1.0
ACTIVATION_POLL_S = 0.02


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
        tasks: TaskRunner,
        clock: Clock,
        log: Log,
        on_done: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._merger = merger
        self._tasks = tasks
        self._clock = clock
        self._log = log
        self._on_done = on_done
        # Errors that were logged lately, and when.
        self._logged: dict[str, float] = {}

    def start(self, steward: Steward, effect: StewardEffect) -> None:
        name = f"{type(effect).__name__} {effect.tag}"
        self._tasks.start(name, self._run(steward, effect), group="effects")

    async def _run(self, steward: Steward, effect: StewardEffect) -> None:
        try:
            await self._do(steward, effect)
        except (SquallError, OSError, KeyError) as error:
            self._log_failed(effect.tag, str(error))
            steward.failed(effect.tag, self._clock.now())
        except Exception as error:
            # No fault of the disk or of another member: it would fail the same way again. Without
            # an end the effect would stay under way, and what waits for it with it.
            self._log_failed(effect.tag, f"{type(error).__name__}: {error}")
            steward.failed(effect.tag, self._clock.now())
            job = job_of(effect)
            if job is not None:
                steward.fail_job(job, error)
        self._on_done()

    def _log_failed(self, tag: str, error: str) -> None:
        now = self._clock.now()
        if now - self._logged.get(error, -inf) >= LOG_AGAIN_S:
            self._logged = {text: at for text, at in self._logged.items() if now - at < LOG_AGAIN_S}
            self._logged[error] = now
            self._log.warning("effect_failed", effect=tag, error=error)

    async def _do(self, steward: Steward, effect: StewardEffect) -> None:
        match effect:
            case SubmitCommand():
                await self._submit(steward, effect)
            case StoreLostPart():
                await self._store_lost_part(steward, effect)
            case MergeResults():
                await self._merge(steward, effect)

    async def _submit(self, steward: Steward, effect: SubmitCommand) -> None:
        try:
            body = encode(effect.command)
        except SquallError as error:
            # The same command will be too large again.
            raise ValueError(str(error)) from error
        await self._version_active()
        committed = await self._ledger.submit(body, version=VERSION)
        steward.submitted(effect.tag, decode_outcome(committed.result), self._clock.now())

    async def _version_active(self) -> None:
        """Waits for the entry that activates this version: the first primary of a new group
        proposes it when it begins to lead. During an upgrade it comes later, and the command is
        refused meanwhile."""
        until = self._clock.now() + ACTIVATES_WITHIN_S
        while self._ledger.active_version < VERSION and self._clock.now() < until:
            await self._clock.sleep(ACTIVATION_POLL_S)

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
        """A job ends even if its results cannot be merged; its reason says so then (R3)."""
        try:
            facts = await self._merged(effect)
        except (SquallError, OSError):
            raise
        except Exception as error:
            self._log.error("result_failed", job=effect.job, error=error)
            reason = f"internal error: its results could not be merged ({error})"
            facts = MergedFacts(reason=reason, exit_code=int(ExitCode.INTERNAL))
        steward.results_merged(effect.tag, effect.job, facts)

    async def _merged(self, effect: MergeResults) -> MergedFacts:
        tables = self._machine.tables
        job = tables.jobs[effect.job]
        judged: Judged | None = await self._leaders.ask_leader(job, AskJudged(job.job))
        found = judged.results if judged is not None else self._leader.judged(job.job)
        result = await self._merger.merged(job, effect.status, effect.reason, found)
        data = encode_result(result)
        history = msgspec.msgpack.encode(tables.events.get(job.job, ()))
        return MergedFacts(
            result=await self._ledger.blobs.put(data),
            size=len(data),
            exit_code=int(result.refusal_code or outcome_of(result).exit_code),
            history=await self._ledger.blobs.put(history),
            history_size=len(history),
        )
