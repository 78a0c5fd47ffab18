"""Carries out the effects of the director: submits, stores, pulls, assembles; then reports back.

`EffectTasks` makes each effect a task of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import (
    CONTEXT_INLINE_MAX,
    Command,
)
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.workflow_contexts import (
    Context,
    collect,
    decode_context,
    encode_context,
    handed_over,
)
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.group.job_leaders.choice import JobLeaders
from squall.cluster.group.primary.effect_tasks import EffectTasks
from squall.cluster.group.primary.job_end import JobEndFacts, end_or_reason, stored_end
from squall.cluster.group.telemetry.job_leader import JobLeader
from squall.cluster.ledger.interface import Digest, Ledger
from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.primary.effects import (
    AssembleResult,
    CollectContext,
    DirectorEffect,
    Push,
    StoreCut,
    StoreValues,
    Submit,
    TakeRecord,
)
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.manager.results.record_facts import facts_of
from squall.cluster.protocol.group_messages import AskCut, AskJudged, Cut, Judged
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import SessionPush
from squall.cluster.wire.errors import WireError
from squall.cluster.wire.links.channel import Channel
from squall.stats.attempt_record import AttemptRecord, RecordEnd
from squall.stats.record_builder import decode_record, encode_record

ChannelOf = Callable[[str, str, bool], Channel | None]
"""The link that a worker opened to this manager: (node, boot, bulk)."""

FindCut = Callable[[str, AttemptKey], Awaitable[AttemptRecord | None]]
"""Finds the reports on an attempt that a worker sent to a member that is gone."""


class EffectRunner:
    """Runs the effects of one manager's directors."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        machine: Datacenter,
        leader: JobLeader[JobRecord],
        leaders: JobLeaders[Command],
        transfers: Transfers,
        channel_of: ChannelOf,
        results: ResultAssembler,
        effects: EffectTasks,
        find_cut: FindCut | None = None,
    ) -> None:
        self._ledger = ledger
        self._find_cut = find_cut
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._transfers = transfers
        self._channel_of = channel_of
        self._results = results
        self._effects = effects

    def start(self, director: Director, effect: DirectorEffect) -> None:
        if isinstance(effect, Push):
            worker = self._machine.tables.workers.get(effect.node)
            if worker is not None and not self.push(effect.node, worker.boot):
                # Another manager relays for it, if it lives: only that one has a link to it.
                self._leaders.tell_all(SessionPush(effect.node, worker.boot))
            return
        job = _job_of(effect)
        self._effects.start(director, effect, job, lambda: self._do(director, effect))

    def push(self, node: str, boot: str) -> bool:
        """False: the worker has no link to this manager."""
        channel = self._channel_of(node, boot, False)
        if channel is not None:
            channel.send(SessionPush())
        return channel is not None

    async def _do(self, director: Director, effect: DirectorEffect) -> None:
        match effect:
            case Submit():
                await self._effects.submit(director, effect.tag, effect.command)
            case StoreCut():
                await self._store_cut(director, effect)
            case TakeRecord():
                await self._take_record(director, effect)
            case CollectContext():
                await self._collect_context(director, effect)
            case StoreValues():
                await self._store_values(director, effect)
            case AssembleResult():
                await self._finish(director, effect)
            case Push():
                pass

    async def _store_cut(self, director: Director, effect: StoreCut) -> None:
        record = await self._cut_of(effect.key)
        if record is None:
            director.cut_stored(effect.tag, effect.key, None)
            return
        data = encode_record(record)
        facts = facts_of(effect.key, record, await self._ledger.blobs.put(data), len(data))
        director.cut_stored(effect.tag, effect.key, facts)

    async def _cut_of(self, key: AttemptKey) -> AttemptRecord | None:
        """The record that reached the job's leader; without one, the best copy of it."""
        job = self._machine.tables.jobs.get(key.job)
        cut: Cut | None = None
        if job is not None:
            cut = await self._leaders.ask_leader(job, AskCut(key))
        if cut is not None and cut.record:
            return decode_record(cut.record)
        record = self._leader.record(key)
        attempt = self._machine.tables.attempt(key)
        led_here = job is not None and job.leader in ("", self._leaders.node)
        if (record is not None and led_here) or attempt is None or self._find_cut is None:
            return record
        kept = await self._find_cut(attempt.node, key)
        return kept if kept is not None else record

    async def _take_record(self, director: Director, effect: TakeRecord) -> None:
        worker = self._machine.tables.workers.get(effect.node)
        boot = worker.boot if worker is not None else ""
        record = await self.pulled(effect.node, boot, effect.digest, effect.size)
        director.record_arrived(
            effect.tag, facts_of(effect.key, record, effect.digest, effect.size)
        )

    async def pulled(self, node: str, boot: str, digest: str, size: int) -> AttemptRecord:
        """Returns a worker's record after it is durable on a quorum (R9)."""
        blobs = self._ledger.blobs
        channel = None
        if not await blobs.has(Digest(digest)):
            channel = self._channel_of(node, boot, True)
        if channel is not None:
            await self._transfers.pull(digest, size, channel)
        elif not await blobs.ensure(Digest(digest)):
            # The worker cannot reach this member, and has given the record to no other one.
            raise WireError(f"there is no link to {node} to fetch its record over")
        record = await self._transfers.record(digest)
        if record is None:
            raise SquallError(f"the record {digest[:12]} of worker {node} cannot be read")
        return record

    async def _collect_context(self, director: Director, effect: CollectContext) -> None:
        ends: list[RecordEnd] = []
        for digest in effect.records:
            record = await self._transfers.record(digest)
            if record is not None and record.end is not None:
                ends.append(record.end)
        data = encode_context(collect(ends))
        if len(data) <= CONTEXT_INLINE_MAX:
            director.context_collected(effect.tag, effect.job, effect.workflow, inline=data)
            return
        blob = await self._ledger.blobs.put(data)
        director.context_collected(
            effect.tag, effect.job, effect.workflow, blob=blob, size=len(data)
        )

    async def _store_values(self, director: Director, effect: StoreValues) -> None:
        contexts: dict[str, Context] = {}
        for name, inline, blob in effect.contexts:
            data = await self._ledger.blobs.get(Digest(blob)) if blob else inline
            contexts[name] = decode_context(data)
        manifest = self._machine.tables.jobs[effect.job].submission.manifest
        values = handed_over(manifest, manifest.workflow(effect.workflow), contexts)
        data = msgspec.msgpack.encode(values)
        blob = await self._ledger.blobs.put(data)
        director.values_stored(effect.tag, effect.job, effect.workflow, blob, len(data))

    async def _finish(self, director: Director, effect: AssembleResult) -> None:
        log, failed = self._effects.log, "its result could not be assembled"
        facts = await end_or_reason(effect.job, self._assemble(effect), failed, log)
        director.result_assembled(effect.tag, effect.job, facts)

    async def _assemble(self, effect: AssembleResult) -> JobEndFacts:
        tables = self._machine.tables
        job = tables.jobs[effect.job]
        judged: Judged | None = await self._leaders.ask_leader(job, AskJudged(job.job))
        found = judged.results if judged is not None else self._leader.judged(job.job)
        result = await self._results.job(effect.job, effect.status, found)
        return await stored_end(self._ledger.blobs, result, tables.shown_events(job))


def _job_of(effect: DirectorEffect) -> JobId | None:
    """The job that an effect belongs to, if it is one."""
    match effect:
        case Submit():
            return cast("JobId | None", getattr(effect.command, "job", None))
        case StoreCut() | TakeRecord():
            return effect.key.job
        case CollectContext() | StoreValues() | AssembleResult():
            return effect.job
        case Push():
            return None
