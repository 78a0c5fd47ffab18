"""Chooses which member leads which job, and sends requests to that member.

The leader of a job merges its telemetry and serves its stream (R1). The log names it: chosen
by a stable hash over the members that are heard when the job is created, and replaced by
another command when that member is gone. It has no authority, so two members that believe
they lead the same job do no harm; the primary stands in for a leader that it does not hear.

Nothing here decides anything about a job or waits for a leader that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from squall.api.errors import SquallError
from squall.cluster.group.committer import RETRY_AFTER_S, Committer
from squall.cluster.group.job_tables import GroupJob, HoldsJobs
from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.group.views import member_state
from squall.cluster.ledger.interface import Ledger, NotPrimary
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.wire.errors import NotSent, RemoteError, WireError
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.interfaces import NodeId
from squall.runtime.log import Log

PARTICIPATING = ("leads", "follows", "electing")
"""The states of members that hold the log and are reachable."""
RELAY_S = 5.0
"""The timeout of a request to another member."""
BATCH_MAX = 500
"""Jobs in one command, which is bounded."""


Command = TypeVar("Command")
NewLeaders = tuple[tuple[JobId, str], ...]
"""The jobs that get another leader, and who that is."""


class JobLeaders(Generic[Command]):
    """Knows the leader of each job, and names new ones on the primary."""

    def __init__(
        self,
        *,
        machine: HoldsJobs[GroupJob],
        ledger: Ledger,
        watch: GroupWatch,
        committer: Committer[Command],
        lead_jobs: Callable[[NewLeaders], Command],
        log: Log,
    ) -> None:
        """`lead_jobs` makes the command that names leaders."""
        self._machine = machine
        self._ledger = ledger
        self._watch = watch
        self._committer = committer
        self._lead_jobs = lead_jobs
        self._log = log

    @property
    def node(self) -> str:
        return self._watch.node

    # The leader of a job.

    def choose(self, key: str) -> str:
        return chosen(key, self.live())

    def live(self) -> list[str]:
        """The members that can lead a job; this one is always among them."""
        ledger = self._ledger
        return sorted({self.node, *able(ledger.standing().members or {}, self._watch)})

    def of(self, job: GroupJob) -> str:
        """The leader of a job as far as this member knows."""
        if job.leader == self.node:
            return self.node
        if self._ledger.is_primary and job.leader not in self.live():
            return self.node
        return job.leader or str(self._ledger.primary or self.node)

    def leads(self, job: GroupJob) -> bool:
        return self.of(job) == self.node

    def elsewhere(self, job: GroupJob | None) -> str:
        """The address of the member that leads a job; "" if this one does. Raises RemoteError when
        this member cannot know and no primary is known."""
        primary = self._ledger.primary
        if primary is None:
            # This member may be cut off: what it knows of the job may be outdated.
            raise self._committer.answer(NotPrimary(None))
        if job is None:
            # It may have been created a moment ago; the primary knows.
            return "" if self._ledger.is_primary else self._watch.address_of(primary)
        if self.leads(job):
            return ""
        return self._watch.address_of(self.of(job)) or self._watch.address_of(primary)

    # On the primary.

    async def replace_lost(self) -> None:
        """Names new leaders for jobs whose leader is gone."""
        if not self._ledger.is_primary:
            return
        live = self.live()
        tables = self._machine.tables
        orphans = [job for name in tables.active if (job := tables.jobs[name]).leader not in live]
        if not orphans:
            return
        leaders = tuple((job.job, chosen(job.key, live)) for job in orphans[:BATCH_MAX])
        try:
            await self._committer.commit(self._lead_jobs(leaders))
        except RemoteError as error:
            self._log.warning("jobs_without_leader", jobs=len(orphans), error=error.text)
            return
        self._log.info("jobs_led_anew", jobs=len(leaders), members=", ".join(live))

    # Requests to other members.

    async def ask(self, node: str, message: msgspec.Struct, timeout_s: float = RELAY_S) -> Any:
        """Returns another member's answer. Raises RemoteError, with `RETRY_LATER` if no answer
        came."""
        transport = self._watch.transport
        try:
            if transport is None:
                raise NotSent(f"there is no link to {node}")
            return await transport.request(NodeId(node), message, timeout_s)
        except RemoteError:
            raise
        except WireError as error:
            raise RemoteError(
                ErrorCode.RETRY_LATER, str(error), retry_after_s=RETRY_AFTER_S
            ) from None

    def tell_all(self, message: msgspec.Struct) -> None:
        """Sends a message to every other member that there is a link to."""
        if self._watch.transport is not None:
            self._watch.transport.broadcast(message)

    async def ask_leader(self, job: GroupJob, message: msgspec.Struct) -> Any:
        """Returns None if this member leads the job. Raises SquallError if the leader does not
        answer: try again."""
        leader = self.of(job)
        if leader == self.node:
            return None
        try:
            return await self.ask(leader, message)
        except RemoteError as error:
            raise SquallError(f"{leader}, the leader of {job.job}: {error.text}") from None

    async def relay(self, message: msgspec.Struct) -> Any:
        """Returns the primary's answer to a request of a worker that cannot reach the primary."""
        primary = self._ledger.primary
        if primary is None or primary == self.node:
            raise self._committer.answer(NotPrimary(None))
        return await self.relay_to(str(primary), message)

    async def relay_to(self, node: str, message: msgspec.Struct, timeout_s: float = RELAY_S) -> Any:
        """As `ask`, but without a link it fails at once: the member is dead or out of reach, and
        the lease of a worker that waits here would end before another member leads."""
        transport = self._watch.transport
        if transport is None or not transport.is_linked(NodeId(node)):
            raise RemoteError(
                ErrorCode.RETRY_LATER,
                f"there is no link to {node}",
                retry_after_s=RETRY_AFTER_S,
                leader_within_s=self._committer.failover_s,
            )
        return await self.ask(node, message, timeout_s)


def able(members: Mapping[str, str], watch: GroupWatch) -> Iterator[str]:
    """The members that were heard lately and hold the log. A member whose disk was wiped is
    reachable but knows nothing."""
    for node, storage in members.items():
        heard = watch.heard.get(node)
        note = heard.note if heard is not None else None
        if member_state(note, watch.silent_s(node), storage) in PARTICIPATING:
            yield node


def chosen(key: str, live: Sequence[str]) -> str:
    """The member with the highest hash together with the key (rendezvous hashing): when a member
    goes, only its jobs move."""
    return max(live, key=lambda name: blake2b(f"{name}/{key}".encode(), digest_size=8).digest())
