"""What a worker hands to its managers besides the session: telemetry and final records.

Both are told again until they are acknowledged. Telemetry goes to the manager that leads
the job, which any other one names; its interval is set by the manager. If the leader does
not answer, the one that is asked in the session passes the telemetry on. A record is
offered, and pulled by the manager over the same link; it stays here until the session
frees it.
"""

from __future__ import annotations

from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.messages import BlobHeld, OfferBlob, Telemetry, TelemetryAck
from squall.nodes.patience import Patience
from squall.nodes.worker.attempts import Attempts
from squall.nodes.worker.links import ManagerLinks, address_in
from squall.nodes.worker.session import WorkerSession
from squall.runtime.interfaces import Address, Runtime
from squall.wire.errors import NotSent, OutcomeUnknown, RemoteError, WireError

OFFER_AGAIN_S = 5.0
MESSAGE_MAX_BYTES = 3 * 1024 * 1024
RELAY_S = 5.0
"""How long a leader that did not answer gets its telemetry through another manager."""

Failed = (NotSent, OutcomeUnknown, RemoteError)


class Deliveries:
    def __init__(
        self,
        runtime: Runtime,
        links: ManagerLinks,
        session: WorkerSession,
        attempts: Attempts,
        patience: Patience,
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._session = session
        self._attempts = attempts
        self._patience = patience
        self._offered: dict[str, float] = {}
        """Digest: when a manager last said that it holds it."""
        self._leaders: dict[JobId, Address] = {}
        self._silent: dict[Address, float] = {}
        """Leaders that did not answer, and when."""

    async def send_telemetry(self) -> None:
        """One round: what each attempt's receiver lacks."""
        self._forget_leaders()
        for key in list(self._attempts.books):
            # One attempt per message: each has its own size limit.
            await self.send_part(key)

    async def send_part(self, key: AttemptKey) -> None:
        """What the receiver lacks of one attempt."""
        book = self._attempts.books.get(key)
        part = book.part() if book is not None else None
        if book is None or part is None:
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
            answer = await peer.request(message, self._patience.telemetry_s)
        except NotSent:
            book.keep_lines(part.lines)
            self._failed(key.job, leader, direct)
            return
        except WireError:
            # The session finds out whether the manager is gone; reports are sent again.
            self._failed(key.job, leader, direct)
            return
        if not isinstance(answer, TelemetryAck):
            return
        where = address_in(answer.elsewhere.get(key.job, ""))
        if where is not None:
            book.keep_lines(part.lines)
            self._leaders[key.job] = where
            return
        for key, sequence in answer.acks:
            if key == book.key:
                book.on_ack(sequence)
        self._session.telemetry_interval_s = max(answer.interval_s, 0.05)

    def _failed(self, job: JobId, leader: Address | None, direct: bool) -> None:
        """Another one may lead the job by now: the next part asks."""
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
        jobs = {key.job for key in self._attempts.books}
        for job in [job for job in self._leaders if job not in jobs]:
            del self._leaders[job]

    async def offer_records(self) -> None:
        """Every record that is held, until a manager says that it holds it too."""
        held = dict(self._attempts.records.values())
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
                OfferBlob(digest, size), self._patience.offer_s
            )
        except Failed:
            return False
        return isinstance(answer, BlobHeld)
