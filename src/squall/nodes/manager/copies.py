"""Copies of what running shares have reported, in the memory of a second member.

The reports of running shares are with the member that leads their job. When it dies, the
workers send theirs again to the next one; a worker that dies with it does not. So every
few seconds a leader gives another member what it heard since then, and whoever declares an
attempt lost asks the members for what they have of it. A copy is a cut report like any
other: what came after it is unknown, and said to be.

It must never hold up anything, nor decide anything: what cannot be given now is given with
the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from squall.api.errors import SquallError
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.group_messages import AskCut, CopiesKept, CopyPart, Cut, KeepCopies
from squall.nodes.identity import AttemptKey
from squall.nodes.manager.job_leaders import JobLeaders, chosen
from squall.nodes.manager.kept import KeptRecord
from squall.nodes.manager.leader import JobLeader
from squall.stats.record import AttemptRecord
from squall.stats.record_builder import decode_record
from squall.wire.dispatch import Handlers, Incoming
from squall.wire.errors import RemoteError

BATCH_BYTES = 1024 * 1024
"""Of one message: a quarter of what a bulk message may hold."""


class Given(NamedTuple):
    """How much of an attempt a member was given."""

    holder: str = ""
    sequence: int = 0
    health_s: float = -1.0
    errors: int = 0


class Copies:
    """Gives away what is led here, keeps what others give, and finds what is left."""

    def __init__(self, machine: Datacenter, leader: JobLeader, leaders: JobLeaders) -> None:
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._given: dict[AttemptKey, Given] = {}
        self._kept: dict[AttemptKey, KeptRecord] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(CopyPart).decode

    def register(self, handlers: Handlers) -> None:
        handlers.on(KeepCopies, self.keep)

    # What is led here.

    async def give(self) -> None:
        """To one other member for each job: what came since the last time."""
        self._forget()
        for holder, batch in list(self._batches()):
            message = KeepCopies([data for data, _, _ in batch])
            try:
                kept: CopiesKept = await self._leaders.ask(holder, message)
            except RemoteError:
                # Whether it has them is told with the answer to the next.
                continue
            acked = dict(kept.acks)
            for _, key, given in batch:
                upto = acked.get(key, 0)
                self._given[key] = given._replace(sequence=upto) if upto else Given()

    def _batches(self) -> Iterator[tuple[str, list[tuple[bytes, AttemptKey, Given]]]]:
        others = [name for name in self._leaders.live() if name != self._leaders.node]
        tables = self._machine.tables
        for name in list(tables.active) if others else ():
            job = tables.jobs[name]
            if not job.started_ms or not self._leaders.leads(job):
                continue
            holder = chosen(f"copy of {job.key}", others)
            batch: list[tuple[bytes, AttemptKey, Given]] = []
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

    def _part(self, key: AttemptKey, holder: str) -> tuple[bytes, AttemptKey, Given] | None:
        """What the holder lacks, in as many reports as fit; None: nothing."""
        builder = self._leader.kept(key)
        if builder is None:
            return None
        given = self._given.get(key, Given())
        if given.holder != holder:
            given = Given(holder)
        head = builder.head
        if builder.sequence <= given.sequence:
            return None
        reports = builder.since(given.sequence)
        one_by_one = reports is not None
        width_s = 1
        if reports is None:
            given = Given(holder)
            whole = builder.record
            reports, width_s = whole.reports, whole.width_s
        part = CopyPart(
            key=key,
            worker=head.worker,
            joined_s=head.joined_s,
            silent_from_s=head.silent_from_s,
            width_s=width_s,
            after=given.sequence,
            upto=builder.sequence,
            reports=reports,
            health=builder.health_after(given.health_s),
            errors=head.errors[given.errors :],
        )
        data = self._fitted(builder, part, one_by_one)
        health_s = max((each.at_s for each in part.health), default=given.health_s)
        return data, key, Given(holder, 0, health_s, len(head.errors))

    def _fitted(self, builder: KeptRecord, part: CopyPart, one_by_one: bool) -> bytes:
        """Fewer reports, or wider ones where they are not apart any more."""
        data = self._encode(part)
        while len(data) > BATCH_BYTES and len(part.reports) > 1:
            if one_by_one:
                fewer = part.reports[: len(part.reports) // 2]
                part = msgspec.structs.replace(
                    part,
                    reports=fewer,
                    upto=part.after + len(fewer),
                    silent_from_s=float(fewer[-1].window + 1),
                )
            else:
                width_s = part.width_s * 2
                wider = builder.widened(part.reports, width_s)
                part = msgspec.structs.replace(part, reports=wider, width_s=width_s)
            data = self._encode(part)
        return data

    # What others lead.

    def keep(self, message: KeepCopies, incoming: Incoming) -> CopiesKept:
        return CopiesKept([self._keep(self._decode(data)) for data in message.parts])

    def _keep(self, part: CopyPart) -> tuple[AttemptKey, int]:
        """Adds a part that begins where the last one ended; the answer says where that is,
        0: a part that begins with the first report is needed."""
        key = part.key
        builder = self._kept.get(key)
        if part.after == 0 and (builder is None or builder.sequence < part.upto):
            if builder is not None:
                builder.close()
            builder = self._kept[key] = self._begun(part)
        elif builder is None:
            return key, 0
        elif builder.sequence != part.after:
            return key, builder.sequence
        for report in (*part.reports, *part.health, *part.errors):
            builder.add(report)
        builder.sequence = part.upto
        builder.head.silent_from_s = max(builder.head.silent_from_s, part.silent_from_s)
        return key, part.upto

    def _begun(self, part: CopyPart) -> KeptRecord:
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
        return KeptRecord(record, self._leader.room, warmup_s=warmup_s)

    def _forget(self) -> None:
        """What is in the log by now, or of a job that is over."""
        for key in [key for key in self._given if not self._is_live(key)]:
            del self._given[key]
        for key in [key for key in self._kept if not self._is_live(key)]:
            self._kept.pop(key).close()

    def _is_live(self, key: AttemptKey) -> bool:
        """Or not heard of yet: this member may be behind the one that leads the job."""
        tables = self._machine.tables
        if key.job not in tables.active:
            return False
        attempt = tables.attempt(key)
        return attempt is None or attempt.state == "live"

    # What is left of an attempt.

    def best(self, key: AttemptKey) -> AttemptRecord | None:
        """The longer one of what this member heard and what it was given."""
        kept = self._kept.get(key)
        return _longer(self._leader.record(key), kept.record if kept is not None else None)

    async def find(self, worker: str, key: AttemptKey) -> AttemptRecord | None:
        """What any member has of it. SquallError when one that lives does not answer."""
        found = self.best(key)
        for name in self._leaders.live():
            if name == self._leaders.node:
                continue
            try:
                cut: Cut = await self._leaders.ask(name, AskCut(key))
            except RemoteError as error:
                raise SquallError(f"{name}, asked for {key}: {error.text}") from None
            found = _longer(found, decode_record(cut.record) if cut.record else None)
        return found


def _longer(one: AttemptRecord | None, two: AttemptRecord | None) -> AttemptRecord | None:
    if one is None or two is None:
        return one if two is None else two
    return one if one.sequence >= two.sequence else two
