"""Follows one part of a job in its datacenter, as a client follows a job.

The leader of the job in that datacenter answers with everything after the follower's cursor: its
snapshot, events, lines, and the reports summed over its shares. A follower without a cursor gets
everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from squall.cluster.assignments.records import GateJobRecord, PartTry
from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.protocol.gates.handover_keys import part_job_id
from squall.cluster.protocol.group_messages import Relay, RelayAnswer
from squall.cluster.protocol.job_records import TERMINAL
from squall.cluster.protocol.messages import (
    Follow,
    Followed,
    StreamEvent,
    StreamItem,
    StreamLine,
    StreamSnapshot,
)
from squall.cluster.results.datacenter_totals import MergedTotals
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.errors import RemoteError, WireError
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.addresses import shown_address
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Clock

WAIT_S = 2.0
"""How long the datacenter may wait for something new; a running job has a snapshot each second."""
ANSWER_S = 10.0
RETRY = Backoff(0.3, cap_s=2.0)
LINK_S = 2.0

AskPart = Callable[[str, Follow], Awaitable[Followed]]
"""Asks a datacenter. Raises WireError."""


class PartAsker:
    """Asks the manager that leads a part's job in its datacenter, directly or, without a link to
    it, through another manager."""

    def __init__(self, links: DatacenterLinks) -> None:
        self._links = links
        # The manager that led a job when it was last asked, as host:port; dropped with its end.
        self._led_at: dict[str, str] = {}

    async def ask(self, datacenter: str, message: Follow) -> Followed:
        peers = await self._links.any_link(datacenter, LINK_S)
        if not peers:
            raise WireError(f"there is no link to a manager of {datacenter}")
        answer = await self._asked(peers, message)
        if answer.state in TERMINAL:
            self._led_at.pop(message.job, None)
        return answer

    async def _asked(self, peers: Sequence[Peer], message: Follow) -> Followed:
        led_at = self._led_at.get(message.job, "")
        peer = next((each for each in peers if shown_address(each.address) == led_at), peers[0])
        try:
            return await peer.request(message, ANSWER_S)
        except RemoteError as error:
            if error.code != ErrorCode.NOT_PRIMARY or not error.primary:
                raise
            led_at = self._led_at[message.job] = error.primary
        for each in peers:
            if shown_address(each.address) == led_at:
                return await each.request(message, ANSWER_S)
        row, body = CATALOGUE.encode(message)
        answer: RelayAnswer = await peer.request(Relay(number=row.number, body=body), ANSWER_S)
        return CATALOGUE.decode(CATALOGUE.by_number[answer.number], answer.body)


class PartFollower:
    """Follows one part in one handover."""

    def __init__(
        self,
        job: GateJobRecord,
        index: int,
        tried: PartTry,
        totals: MergedTotals,
        *,
        ask: AskPart,
        clock: Clock,
        put: Callable[[StreamItem], None],
    ) -> None:
        """`put` receives the events and lines of the part, with its datacenter's name."""
        self._datacenter = tried.datacenter
        self._index = index
        self._job = part_job_id(job.job, tried.datacenter, tried.handover)
        # Events of the datacenter count from the creation of the part there.
        self._later_s = max(tried.assigned_ms - job.created_ms, 0) / 1000.0
        self._totals = totals
        self._ask = ask
        self._clock = clock
        self._put = put

    async def run(self) -> None:
        """Returns when the part is over in its datacenter, or forgotten there."""
        after, failures = 0, 0
        seen: tuple[str, int] = ("", 0)
        while True:
            part = self._totals.parts[self._index]
            message = Follow(
                job=self._job, after=after, wait_s=WAIT_S, seen=seen, reports=part.cursor
            )
            try:
                answer = await self._ask(self._datacenter, message)
            except WireError as error:
                if isinstance(error, RemoteError) and error.code == ErrorCode.NOT_FOUND:
                    return
                failures += 1
                await self._clock.sleep(RETRY.delay_s(failures))
                continue
            failures, after = 0, answer.upto
            if answer.read is not None:
                seen = (answer.read.group, answer.read.op)
            self._take(answer)
            is_behind = answer.more or (answer.reports is not None and answer.reports.more)
            if answer.state in TERMINAL and not is_behind:
                return

    def _take(self, answer: Followed) -> None:
        now, totals = self._clock.now(), self._totals
        if answer.reports is not None:
            totals.take(self._index, answer.reports, now)
        totals.observe(self._index, now, state=answer.state, reason=answer.reason)
        for item in answer.items:
            match item:
                case StreamSnapshot():
                    totals.parts[self._index].shown = item.snapshot
                case StreamEvent():
                    at_s = self._later_s + item.at_s
                    self._put(StreamEvent(at_s, f"{self._datacenter}: {item.text}"))
                case StreamLine():
                    self._put(StreamLine(f"{self._datacenter}/{item.prefix}", item.text))
