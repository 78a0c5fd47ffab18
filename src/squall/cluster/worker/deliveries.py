"""Delivers telemetry and final records to the managers.

Both are sent again until they are acknowledged. Telemetry goes to the manager that leads the
job, whose address any manager knows; the manager sets the interval. As long as there is no link
to the leader, or it does not answer, the manager of the session relays the telemetry. A record is
offered, and the manager pulls it over the same link; it stays here until the session frees it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import (
    BlobHeld,
    OfferBlob,
    Telemetry,
    TelemetryAck,
    TelemetryPart,
)
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.errors import NotSent, OutcomeUnknown, RemoteError, WireError
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.worker.attempt_records import AttemptRecorder
from squall.cluster.worker.attempts import Attempts
from squall.cluster.worker.manager_links import ManagerLinks
from squall.cluster.worker.session import WorkerSession
from squall.runtime.addresses import address_in
from squall.runtime.interfaces import Address, Runtime

OFFER_AGAIN_S = 5.0
"""A record that a manager holds is offered again, in case that manager died with it."""
MESSAGE_MAX_BYTES = 3 * 1024 * 1024
"""One message takes 4 MiB; the reports of one attempt have at most 2 (`PART_MAX_BYTES`)."""
RELAY_S = 5.0
"""How long telemetry for a leader that did not answer is relayed by another manager, although there
is a link to the leader."""

Failed = (NotSent, OutcomeUnknown, RemoteError)


class Unsent(NamedTuple):
    """What the receiver lacks of one attempt."""

    recorder: AttemptRecorder
    part: TelemetryPart
    size: int
    """In bytes, all but a few."""


class Deliveries:
    """Sends the telemetry and offers the final records of one boot."""

    def __init__(
        self,
        runtime: Runtime,
        links: ManagerLinks,
        session: WorkerSession,
        attempts: Attempts,
        timeouts: RequestTimeouts,
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._session = session
        self._attempts = attempts
        self._timeouts = timeouts
        # When a manager last said that it holds the record of this digest.
        self._offered: dict[str, float] = {}
        # The leader of each job, as far as a manager named it.
        self._leaders: dict[JobId, Address] = {}
        # Leaders that did not answer, and when.
        self._silent: dict[Address, float] = {}

    async def send_telemetry(self) -> None:
        """Sends each job's leader what it lacks, once: in as few messages as it fits into, because
        a worker may run a hundred attempts, and its leader may be far away."""
        self._forget_leaders()
        jobs: dict[JobId, list[AttemptKey]] = {}
        for key in self._attempts.recorded():
            jobs.setdefault(key.job, []).append(key)
        for job, keys in jobs.items():
            batch: list[Unsent] = []
            for key in keys:
                unsent = self._unsent(key)
                if unsent is None:
                    continue
                if sum(each.size for each in batch) + unsent.size > MESSAGE_MAX_BYTES:
                    await self._send(job, batch)
                    batch = []
                batch.append(unsent)
            await self._send(job, batch)

    async def send_part(self, key: AttemptKey) -> None:
        """Sends what the receiver lacks of one attempt."""
        unsent = self._unsent(key)
        await self._send(key.job, [unsent] if unsent is not None else [])

    def _unsent(self, key: AttemptKey) -> Unsent | None:
        recorder = self._attempts.recorder(key)
        part = recorder.part() if recorder is not None else None
        if recorder is None or part is None:
            return None
        size = sum(map(len, (*part.reports, *part.health)))
        if part.errors or part.lines:
            size += len(msgspec.msgpack.encode((part.errors, part.lines)))
        return Unsent(recorder, part, size)

    async def _send(self, job: JobId, unsent: list[Unsent]) -> None:
        if not unsent:
            return
        runtime = self._runtime
        leader = self._leaders.get(job)
        relay = leader is not None and self._is_silent(leader)
        parts = [each.part for each in unsent]
        message = Telemetry(
            node=str(runtime.node), boot=str(runtime.boot), parts=parts, relay=relay
        )
        direct = leader is not None and not relay
        peer = self._links.at(leader) if leader is not None and direct else self._links.current
        try:
            answer = await peer.request(message, self._timeouts.telemetry_s)
        except NotSent:
            _keep_lines(unsent)
            self._failed(job, leader, direct)
            return
        except WireError as error:
            if isinstance(error, RemoteError) and error.code != ErrorCode.BAD_MESSAGE:
                # It took nothing. Beyond a relay the leader may have, and shows lines twice then.
                # A manager that cannot read one part may have taken those before it.
                _keep_lines(unsent)
            # The reports are sent again. Whether the manager is gone, the session finds out.
            self._failed(job, leader, direct)
            return
        if not isinstance(answer, TelemetryAck):
            return
        where = address_in(answer.elsewhere.get(job, ""))
        if where is not None:
            _keep_lines(unsent)
            self._leaders[job] = where
            return
        acks = dict(answer.acks)
        for each in unsent:
            if each.part.key in acks:
                each.recorder.on_ack(acks[each.part.key])
        self._session.telemetry_interval_s = max(answer.interval_s, 0.05)

    def _failed(self, job: JobId, leader: Address | None, direct: bool) -> None:
        """After a failed direct send the next parts are relayed. After a failed relay the leader is
        forgotten, and the next part asks the manager of the session for it."""
        if leader is None:
            return
        if direct:
            self._silent[leader] = self._runtime.clock.now()
        else:
            self._leaders.pop(job, None)

    def _is_silent(self, leader: Address) -> bool:
        """Also dials it."""
        if self._links.at(leader).control.session is None:
            return True
        since = self._silent.get(leader)
        if since is not None and self._runtime.clock.now() - since >= RELAY_S:
            del self._silent[leader]
        return leader in self._silent

    def _forget_leaders(self) -> None:
        jobs = {key.job for key in self._attempts.recorded()}
        for job in [job for job in self._leaders if job not in jobs]:
            del self._leaders[job]

    async def offer_records(self) -> None:
        """Offers every record that is held, until a manager says that it holds it too."""
        held = self._attempts.final_records()
        for digest in [digest for digest in self._offered if digest not in held]:
            del self._offered[digest]
        for digest, size in held.items():
            now = self._runtime.clock.now()
            if now - self._offered.get(digest, -OFFER_AGAIN_S) >= OFFER_AGAIN_S and (
                await self.offer(digest, size)
            ):
                self._offered[digest] = self._runtime.clock.now()

    async def offer(self, digest: str, size: int) -> bool:
        try:
            answer = await self._links.current.request(
                OfferBlob(digest, size), self._timeouts.offer_s
            )
        except Failed:
            return False
        return isinstance(answer, BlobHeld)


def _keep_lines(unsent: list[Unsent]) -> None:
    for each in unsent:
        each.recorder.keep_lines(each.part.lines)
