"""Keeps copies of the reports of running shares in the memory of a second member (R8).

The member that leads a job has the reports of its running shares. When that member dies, the
workers send their reports again to the next leader, except for a worker that dies with it. So
every few seconds a leader sends what is new to one other member, and a primary that declares
an attempt lost asks all members for what they have of it. A copy counts as a cut report like
any other: what came after it is unknown, and the result says so.

Copies never delay or decide anything: what cannot be sent now is sent with the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from squall.api.errors import SquallError
from squall.cluster.group.job_leaders.choice import JobLeaders, chosen
from squall.cluster.group.job_tables import HoldsLiveJobs
from squall.cluster.group.telemetry.job_leader import JobLeader
from squall.cluster.group.telemetry.report_store import RunningRecord
from squall.cluster.protocol.encoded_reports import (
    decode_windows,
    healths_in,
    raw,
    windows_in,
)
from squall.cluster.protocol.group_messages import AskCut, CopiesStored, CopyPart, Cut, StoreCopies
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.stats.attempt_record import AttemptRecord
from squall.stats.record_builder import decode_record, encode_record

BATCH_BYTES = 1024 * 1024
"""The bytes of one message: a quarter of the limit of a bulk message."""


class CopyProgress(NamedTuple):
    """How much of an attempt the holder has."""

    holder: str = ""
    sequence: int = 0
    health_s: float = -1.0
    errors: int = 0


class MemberCopies:
    """Sends copies of the jobs that this member leads, keeps those of other leaders, and finds the
    best copy of an attempt."""

    def __init__(
        self,
        machine: HoldsLiveJobs[Any],
        leader: JobLeader[Any],
        leaders: JobLeaders[Any],
    ) -> None:
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._given: dict[AttemptKey, CopyProgress] = {}
        self._copies: dict[AttemptKey, RunningRecord] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(CopyPart).decode

    def register(self, handlers: Handlers) -> None:
        handlers.on(StoreCopies, self.keep)

    # Copies that this member sends.

    async def give(self) -> None:
        """Sends what is new to one other member for each job."""
        self._forget()
        for holder, batch in list(self._batches()):
            message = StoreCopies([data for data, _, _ in batch])
            try:
                kept: CopiesStored = await self._leaders.ask(holder, message)
            except RemoteError:
                # The holder may or may not have them; its answer to the next message shows which.
                continue
            acked = dict(kept.acks)
            for _, key, given in batch:
                upto = acked.get(key, 0)
                self._given[key] = given._replace(sequence=upto) if upto else CopyProgress()

    def _batches(self) -> Iterator[tuple[str, list[tuple[bytes, AttemptKey, CopyProgress]]]]:
        others = [name for name in self._leaders.live() if name != self._leaders.node]
        tables = self._machine.tables
        for name in list(tables.active) if others else ():
            job = tables.jobs[name]
            if not job.started_ms or not self._leaders.leads(job):
                continue
            holder = chosen(f"copy of {job.key}", others)
            batch: list[tuple[bytes, AttemptKey, CopyProgress]] = []
            size = 0
            for key, _ in tables.live_of(name):
                made = self._part(key, holder)
                if made is None:
                    continue
                if batch and size + len(made[0]) > BATCH_BYTES:
                    yield holder, batch
                    batch, size = [], 0
                batch.append(made)
                size += len(made[0])
            if batch:
                yield holder, batch

    def _part(self, key: AttemptKey, holder: str) -> tuple[bytes, AttemptKey, CopyProgress] | None:
        """What the holder lacks, as many reports as fit; None: it lacks nothing."""
        builder = self._leader.running_record(key)
        if builder is None:
            return None
        given = self._given.get(key, CopyProgress())
        if given.holder != holder:
            given = CopyProgress(holder)
        head = builder.head
        if builder.sequence <= given.sequence:
            return None
        since = builder.since(given.sequence)
        width_s = 1
        if since is not None:
            reports = [msgspec.Raw(data) for data in since]
        else:
            given = CopyProgress(holder)
            whole = builder.record
            reports, width_s = [raw(report) for report in whole.reports], whole.width_s
        health = builder.health_after(given.health_s)
        part = CopyPart(
            key=key,
            worker=head.worker,
            joined_s=head.joined_s,
            silent_from_s=head.silent_from_s,
            width_s=width_s,
            after=given.sequence,
            upto=builder.sequence,
            reports=reports,
            health=[msgspec.Raw(data) for _, data in health],
            errors=head.errors[given.errors :],
        )
        data = self._fitted(builder, part, one_by_one=since is not None)
        health_s = max((at_s for at_s, _ in health), default=given.health_s)
        return data, key, CopyProgress(holder, 0, health_s, len(head.errors))

    def _fitted(self, builder: RunningRecord, part: CopyPart, *, one_by_one: bool) -> bytes:
        """Encodes a part that fits: with fewer reports, or with wider windows where the reports
        were merged already."""
        data = self._encode(part)
        while len(data) > BATCH_BYTES and len(part.reports) > 1:
            if one_by_one:
                fewer = part.reports[: len(part.reports) // 2]
                part = msgspec.structs.replace(
                    part,
                    reports=fewer,
                    upto=part.after + len(fewer),
                    silent_from_s=float(windows_in(fewer[-1:])[0].second + 1),
                )
            else:
                width_s = part.width_s * 2
                wider = builder.widened(decode_windows(map(bytes, part.reports)), width_s)
                part = msgspec.structs.replace(
                    part, reports=[raw(report) for report in wider], width_s=width_s
                )
            data = self._encode(part)
        return data

    # Copies of other leaders.

    def keep(self, message: StoreCopies, incoming: Incoming) -> CopiesStored:
        return CopiesStored([self._keep(self._decode(data)) for data in message.parts])

    def _keep(self, part: CopyPart) -> tuple[AttemptKey, int]:
        """Adds a part that begins where the last one ended; returns up to where the copy reaches,
        0 if it needs a part that begins with the first report."""
        key = part.key
        builder = self._copies.get(key)
        if part.after == 0 and (builder is None or builder.sequence < part.upto):
            if builder is not None:
                builder.close()
            builder = self._copies[key] = self._begun(part)
        elif builder is None:
            return key, 0
        elif builder.sequence != part.after:
            return key, builder.sequence
        for report in windows_in(part.reports):
            builder.add_window(report)
        for health, data in healths_in(part.health):
            builder.add_health(health, data)
        for error in part.errors:
            builder.add_error(error)
        builder.sequence = part.upto
        builder.head.silent_from_s = max(builder.head.silent_from_s, part.silent_from_s)
        return key, part.upto

    def _begun(self, part: CopyPart) -> RunningRecord:
        key = part.key
        job = self._machine.tables.jobs.get(key.job)
        record = AttemptRecord(
            workflow=key.workflow,
            share=key.share,
            attempt=key.attempt,
            worker=part.worker,
            joined_s=part.joined_s,
            width_s=part.width_s,
        )
        warmup_s = job.submission.options.warmup_s if job is not None else 0.0
        return RunningRecord(record, self._leader.memory, warmup_s=warmup_s)

    def _forget(self) -> None:
        """Drops copies of attempts that are over or in the log by now."""
        for key in [key for key in self._given if not self._is_live(key)]:
            del self._given[key]
        for key in [key for key in self._copies if not self._is_live(key)]:
            self._copies.pop(key).close()

    def _is_live(self, key: AttemptKey) -> bool:
        """Live, or unknown yet: this member may be behind the one that leads the job."""
        tables = self._machine.tables
        if key.job not in tables.active:
            return False
        attempt = tables.attempt(key)
        return attempt is None or attempt.state == "live"

    # The best copy of an attempt.

    def best(self, key: AttemptKey) -> AttemptRecord | None:
        """This member's own reports, or its copy for another leader, whichever reaches further."""
        copy = self._copies.get(key)
        return _longer(self._leader.record(key), copy.record if copy is not None else None)

    def encoded(self, key: AttemptKey) -> bytes:
        """The best record of this member; empty if it has none."""
        record = self.best(key)
        return encode_record(record) if record is not None else b""

    async def find(self, worker: str, key: AttemptKey) -> AttemptRecord | None:
        """The longest record that any member has of an attempt. Raises SquallError when a live
        member does not answer: it may have more."""
        found = self.best(key)
        for name in self._leaders.live():
            if name == self._leaders.node:
                continue
            try:
                cut: Cut = await self._leaders.ask(name, AskCut(key))
            except RemoteError as error:
                raise SquallError(
                    f"{name} was asked for the reports of {key}: {error.text}"
                ) from None
            found = _longer(found, decode_record(cut.record) if cut.record else None)
        return found


def _longer(one: AttemptRecord | None, two: AttemptRecord | None) -> AttemptRecord | None:
    if one is None or two is None:
        return one if two is None else two
    return one if one.sequence >= two.sequence else two
