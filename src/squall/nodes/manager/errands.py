"""Does what the director asks for: submits, stores, pulls, assembles; then tells it.

Every errand is a task of its own and may fail; the director asks again. Whatever it
brings back is told only to the director that asked: one that has stopped leading is not
told anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.ledger.interface import Digest, Ledger
from squall.nodes.datacenter.commands import CONTEXT_INLINE_MAX, decode_outcome, encode
from squall.nodes.datacenter.contexts import (
    Context,
    collect,
    decode_context,
    encode_context,
    handed_over,
)
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.group_messages import AskCut, AskJudged, Cut, Judged
from squall.nodes.identity import AttemptKey
from squall.nodes.manager.assembling import Assembling
from squall.nodes.manager.director import Director
from squall.nodes.manager.director_effects import (
    AssembleResult,
    CollectContext,
    Effect,
    Push,
    ResultFacts,
    StoreCut,
    StoreValues,
    Submit,
    TakeRecord,
)
from squall.nodes.manager.facts import facts_of
from squall.nodes.manager.job_leaders import JobLeaders
from squall.nodes.manager.leader import JobLeader
from squall.nodes.manager.session_answers import OptionsOf
from squall.nodes.manager.transfers import Transfers
from squall.nodes.manager.views_parts import fitted_manifest, job_parts
from squall.nodes.messages import SessionPush
from squall.nodes.results.assemble import assemble
from squall.nodes.results.result import encode_result, outcome_of
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner
from squall.stats.record import AttemptRecord, RecordEnd
from squall.stats.record_builder import decode_record, encode_record
from squall.wire.channel import Channel
from squall.wire.errors import WireError

ChannelOf = Callable[[str, str, bool], Channel | None]
"""The link that a worker opened to this manager: (node, boot, bulk)."""

KeptCut = Callable[[str, AttemptKey], Awaitable[AttemptRecord | None]]
"""What a worker had reported of an attempt to a member that is gone, where it is kept."""
TELL_AGAIN_S = 10.0


class Errands:
    def __init__(
        self,
        *,
        ledger: Ledger,
        machine: Datacenter,
        leader: JobLeader,
        leaders: JobLeaders,
        transfers: Transfers,
        tasks: TaskRunner,
        clock: Clock,
        log: Log,
        channel_of: ChannelOf,
        options_of: OptionsOf,
        on_done: Callable[[], None],
        kept_cut: KeptCut | None = None,
    ) -> None:
        self._ledger = ledger
        self._kept_cut = kept_cut
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._transfers = transfers
        self._tasks = tasks
        self._clock = clock
        self._log = log
        self._channel_of = channel_of
        self._options_of = options_of
        self._on_done = on_done
        self._told: dict[str, float] = {}
        """Errors that were told, and when."""

    def start(self, director: Director, effect: Effect) -> None:
        if isinstance(effect, Push):
            worker = self._machine.tables.workers.get(effect.node)
            channel = self._channel_of(effect.node, worker.boot, False) if worker else None
            if channel is not None:
                channel.send(SessionPush())
            return
        name = f"{type(effect).__name__} {effect.tag}"
        self._tasks.start(name, self._run(director, effect), group="errands")

    async def _run(self, director: Director, effect: Effect) -> None:
        try:
            await self._do(director, effect)
        except (SquallError, OSError, KeyError) as error:
            assert not isinstance(effect, Push)
            self._tell_failed(effect.tag, str(error))
            director.failed(effect.tag, self._clock.now())
        self._on_done()

    def _tell_failed(self, tag: str, error: str) -> None:
        """Errands are tried again every second: the same trouble is told now and again."""
        now = self._clock.now()
        if now - self._told.get(error, -inf) >= TELL_AGAIN_S:
            self._told = {text: at for text, at in self._told.items() if now - at < TELL_AGAIN_S}
            self._told[error] = now
            self._log.warning("errand_failed", errand=tag, error=error)

    async def _do(self, director: Director, effect: Effect) -> None:
        match effect:
            case Submit():
                await self._submit(director, effect)
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

    async def _submit(self, director: Director, effect: Submit) -> None:
        committed = await self._ledger.submit(encode(effect.command))
        outcome = decode_outcome(committed.result)
        director.submitted(effect.tag, outcome, self._clock.now())

    async def _store_cut(self, director: Director, effect: StoreCut) -> None:
        record = await self._cut_of(effect.key)
        if record is None:
            director.cut_stored(effect.tag, effect.key, None)
            return
        data = encode_record(record)
        facts = facts_of(effect.key, record, await self._ledger.blobs.put(data), len(data))
        director.cut_stored(effect.tag, effect.key, facts)

    async def _cut_of(self, key: AttemptKey) -> AttemptRecord | None:
        """What reached the job's leader; where that is nothing, what was kept elsewhere."""
        job = self._machine.tables.jobs.get(key.job)
        cut: Cut | None = None
        if job is not None:
            cut = await self._leaders.ask_leader(job, AskCut(key))
        if cut is not None and cut.record:
            return decode_record(cut.record)
        record = self._leader.record(key)
        attempt = self._machine.tables.attempt(key)
        led_here = job is not None and job.leader in ("", self._leaders.node)
        if (record is not None and led_here) or attempt is None or self._kept_cut is None:
            return record
        kept = await self._kept_cut(attempt.node, key)
        return kept if kept is not None else record

    async def _take_record(self, director: Director, effect: TakeRecord) -> None:
        worker = self._machine.tables.workers.get(effect.node)
        boot = worker.boot if worker is not None else ""
        record = await self.pulled(effect.node, boot, effect.digest, effect.size)
        director.record_arrived(
            effect.tag, facts_of(effect.key, record, effect.digest, effect.size)
        )

    async def pulled(self, node: str, boot: str, digest: str, size: int) -> AttemptRecord:
        """A worker's record, durable here."""
        if not await self._ledger.blobs.has(Digest(digest)):
            channel = self._channel_of(node, boot, True)
            if channel is not None:
                await self._transfers.pull(digest, size, channel)
            else:
                await self._taken_from_members(node, digest)
        record = await self._transfers.record(digest)
        if record is None:
            raise SquallError(f"the record {digest[:12]} of {node} cannot be read")
        return record

    async def _taken_from_members(self, node: str, digest: str) -> None:
        """A worker that cannot reach this member has given it to another one."""
        try:
            data = await self._ledger.blobs.get(Digest(digest))
        except KeyError:
            raise WireError(f"no link to {node} to fetch its record over") from None
        await self._ledger.blobs.put(data)

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
        """A job ends even if its result cannot be made: then its reason says so."""
        try:
            facts = await self._assemble(effect)
        except (SquallError, OSError):
            raise
        except Exception as error:
            self._log.error("result_failed", job=effect.job, error=error)
            reason = f"internal error: its result could not be made ({error})"
            facts = ResultFacts(reason=reason, exit_code=int(ExitCode.INTERNAL))
        director.result_assembled(effect.tag, effect.job, facts)

    async def _assemble(self, effect: AssembleResult) -> ResultFacts:
        tables = self._machine.tables
        job = tables.jobs[effect.job]
        judged: Judged | None = await self._leaders.ask_leader(job, AskJudged(job.job))
        records = Assembling(self._machine, self._transfers, self._clock, effect.job)
        gathered = await records.gathered()
        job = tables.jobs[effect.job]
        parts = job_parts(tables, job, effect.status, records.gists, self._ledger.group_ms())
        parts.judged = judged.results if judged is not None else self._leader.judged(job.job)
        secrets = self._options_of(job).secrets.values()
        result = assemble(
            fitted_manifest(job),
            job.submission.options,
            parts,
            secrets=secrets,
            gathered=gathered,
        )
        data = encode_result(result)
        history = msgspec.msgpack.encode(tables.events.get(effect.job, ()))
        return ResultFacts(
            result=await self._ledger.blobs.put(data),
            size=len(data),
            exit_code=int(result.refusal_code or outcome_of(result).exit_code),
            history=await self._ledger.blobs.put(history),
            history_size=len(history),
        )
