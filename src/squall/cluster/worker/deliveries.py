"""Delivers telemetry and final records to the managers.

Both are sent again until they are acknowledged. Telemetry goes to the manager that leads the
job, whose address any manager knows; the manager sets the interval. If the leader does not
answer, the manager of the session relays the telemetry. A record is offered, and the manager
pulls it over the same link; it stays here until the session frees it.
"""

from __future__ import annotations

from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import BlobHeld, OfferBlob, Telemetry, TelemetryAck
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.errors import NotSent, OutcomeUnknown, RemoteError, WireError
from squall.cluster.worker.attempts import Attempts
from squall.cluster.worker.manager_links import ManagerLinks, address_in
from squall.cluster.worker.session import WorkerSession
from squall.runtime.interfaces import Address, Runtime

OFFER_AGAIN_S = 5.0
"""A record that a manager holds is offered again, in case that manager died with it."""
MESSAGE_MAX_BYTES = 3 * 1024 * 1024
RELAY_S = 5.0
"""How long telemetry for a leader that did not answer is relayed by another manager."""

Failed = (NotSent, OutcomeUnknown, RemoteError)


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
        """Sends each attempt's leader what it lacks, once."""
        self._forget_leaders()
        for key in self._attempts.recorded():
            # One attempt per message, so that each has the whole size limit.
            await self.send_part(key)

    async def send_part(self, key: AttemptKey) -> None:
        """Sends what the receiver lacks of one attempt."""
        recorder = self._attempts.recorder(key)
        part = recorder.part() if recorder is not None else None
        if recorder is None or part is None:
            return
        runtime = self._runtime
        leader = self._leaders.get(key.job)
        relay = leader is not None and self._is_silent(leader)
        message = Telemetry(
            node=str(runtime.node), boot=str(runtime.boot), parts=[part], relay=relay
        )
        direct = leader is not None and not relay
        peer = self._links.at(leader) if leader is not None and direct else self._links.current
        try:
            answer = await peer.request(message, self._timeouts.telemetry_s)
        except NotSent:
            recorder.keep_lines(part.lines)
            self._failed(key.job, leader, direct)
            return
        except WireError:
            # The reports are sent again. Whether the manager is gone, the session finds out.
            self._failed(key.job, leader, direct)
            return
        if not isinstance(answer, TelemetryAck):
            return
        where = address_in(answer.elsewhere.get(key.job, ""))
        if where is not None:
            recorder.keep_lines(part.lines)
            self._leaders[key.job] = where
            return
        for key, sequence in answer.acks:
            if key == recorder.key:
                recorder.on_ack(sequence)
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
