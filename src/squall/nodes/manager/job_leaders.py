"""Which member leads which job, and how the others reach it.

A job's leader merges its telemetry and serves its streams. It is named in the log: chosen
by a stable hash over the members that are heard when the job is created, and by another
command when that member is gone. It has no authority, so two that believe to lead a job
harm nobody; the primary stands in for a leader that it does not hear.

It must never decide anything about a job, nor wait for a leader that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from squall.api.errors import SquallError
from squall.ledger.interface import NotPrimary
from squall.ledger.replica.ledger import GroupLedger
from squall.ledger.replica.types import Config
from squall.nodes.datacenter.commands import LeadJobs
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import JobRecord
from squall.nodes.manager.clients import Committer
from squall.nodes.manager.group_views import member_state
from squall.nodes.manager.group_watch import GroupWatch
from squall.nodes.manager.log import ManagerLog
from squall.runtime.interfaces import NodeId
from squall.runtime.log import Log
from squall.wire.errors import NotSent, RemoteError, WireError
from squall.wire.messages import ErrorCode

TAKE_PART = ("leads", "follows", "electing")
RELAY_S = 5.0
RETRY_S = 0.3
BATCH_MAX = 500
"""Jobs in one command."""


class JobLeaders:
    def __init__(
        self,
        *,
        machine: Datacenter,
        ledger: ManagerLog,
        watch: GroupWatch,
        committer: Committer,
        log: Log,
    ) -> None:
        self._machine = machine
        self._ledger = ledger
        self._watch = watch
        self._committer = committer
        self._log = log

    @property
    def node(self) -> str:
        return self._watch.node

    # Who leads.

    def choose(self, key: str) -> str:
        return chosen(key, self.live())

    def live(self) -> list[str]:
        """The members that can lead a job; this one is always among them."""
        ledger = self._ledger
        config = ledger.replica.core.config if isinstance(ledger, GroupLedger) else None
        others = able(config, self._watch) if config is not None else ()
        return sorted({self.node, *others})

    def of(self, job: JobRecord) -> str:
        """Who leads a job as far as this member knows."""
        if job.leader == self.node:
            return self.node
        if self._ledger.is_primary and job.leader not in self.live():
            return self.node
        return job.leader or str(self._ledger.primary or self.node)

    def leads(self, job: JobRecord) -> bool:
        return self.of(job) == self.node

    def elsewhere(self, job: JobRecord | None) -> str:
        """Address of the member that leads it; empty: this one does. Raises RemoteError when
        only somebody else can know, and nobody is known."""
        primary = self._ledger.primary
        if primary is None:
            # Cut off, perhaps: what it knows of the job may be long over.
            raise self._committer.answer(NotPrimary(None))
        if job is None:
            # Perhaps it was created a moment ago.
            return "" if self._ledger.is_primary else self._watch.address_of(primary)
        if self.leads(job):
            return ""
        return self._watch.address_of(self.of(job)) or self._watch.address_of(primary)

    # What the primary does.

    async def look(self) -> None:
        """Names others for jobs whose leader is gone."""
        if not self._ledger.is_primary:
            return
        live = self.live()
        tables = self._machine.tables
        orphans = [job for name in tables.active if (job := tables.jobs[name]).leader not in live]
        if not orphans:
            return
        leaders = tuple((job.job, chosen(job.key, live)) for job in orphans[:BATCH_MAX])
        try:
            await self._committer.commit(LeadJobs(leaders=leaders))
        except RemoteError as error:
            self._log.warning("jobs_without_leader", jobs=len(orphans), error=error.text)
            return
        self._log.info("jobs_led_anew", jobs=len(leaders), members=", ".join(live))

    # Asking others.

    async def ask(self, node: str, message: msgspec.Struct, timeout_s: float = RELAY_S) -> Any:
        """Another manager's answer. Raises RemoteError; `RETRY_LATER` if it gave none."""
        transport = self._watch.transport
        try:
            if transport is None:
                raise NotSent(f"no link to {node}")
            return await transport.request(NodeId(node), message, timeout_s)
        except RemoteError:
            raise
        except WireError as error:
            raise RemoteError(ErrorCode.RETRY_LATER, str(error), retry_after_s=RETRY_S) from None

    async def ask_leader(self, job: JobRecord, message: msgspec.Struct) -> Any:
        """None when the job is led here or its leader is gone; SquallError to try again."""
        leader = self.of(job)
        if leader == self.node:
            return None
        try:
            return await self.ask(leader, message)
        except RemoteError as error:
            raise SquallError(f"{leader}, which leads {job.job}: {error.text}") from None

    async def relay(self, message: msgspec.Struct) -> Any:
        """The primary's answer to what a worker that cannot reach it sent here."""
        primary = self._ledger.primary
        if primary is None or primary == self.node:
            raise self._committer.answer(NotPrimary(None))
        return await self.ask(str(primary), message)


def able(config: Config, watch: GroupWatch) -> Iterator[str]:
    """Members by the log that were heard lately and hold its state: one whose disk was wiped
    is there, and knows nothing."""
    for member in config.members:
        heard = watch.heard.get(str(member.node))
        note = heard.note if heard is not None else None
        silent_s = watch.silent_s(str(member.node))
        if member_state(note, silent_s, str(member.storage)) in TAKE_PART:
            yield str(member.node)


def chosen(key: str, live: Sequence[str]) -> str:
    """The member with the highest hash together with the key: when one goes, only its jobs
    move."""
    return max(live, key=lambda name: blake2b(f"{name}/{key}".encode(), digest_size=8).digest())
