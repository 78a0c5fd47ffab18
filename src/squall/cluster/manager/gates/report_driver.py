"""Sends the reports of the outbox to the gates, while this manager leads.

A report goes to any gate that answers; a gate that does not lead relays it. The gate pulls the
result over the same link before it answers.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import Command
from squall.cluster.datacenter.gated_records import GatedTry, KnownGates
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.committer import Committer
from squall.cluster.group.member_watch import address_in
from squall.cluster.manager.gates.report_outbox import ReportOrder, ReportOutbox
from squall.cluster.protocol.gates.gate_messages import PartStored
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.wire.errors import RemoteError, WireError
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

TICK_S = 0.1
ANSWER_S = 5.0
RESULT_BYTES_PER_S = 500_000.0
"""A slow line between regions: the answer to a report is awaited for so much longer. A transfer
that breaks off goes on where it was."""
TASKS = "gates"


class ReportDriver:
    """Drives one `ReportOutbox` for each term of this manager."""

    def __init__(
        self,
        *,
        datacenter: str,
        machine: Datacenter,
        board: Switchboard,
        committer: Committer[Command],
        clock: Clock,
        tasks: TaskRunner,
        log: Log,
        leads: Callable[[], bool],
    ) -> None:
        self._datacenter = datacenter
        self._machine = machine
        self._board = board
        self._committer = committer
        self._clock = clock
        self._tasks = tasks
        self._log = log
        self._leads = leads
        self._outbox: ReportOutbox | None = None
        self._peers: dict[str, Peer] = {}
        # The gate that answered last, by group: it is asked first.
        self._answered: dict[str, str] = {}

    def begin_term(self) -> None:
        """This manager leads from now on: all that is not delivered is sent again."""
        self._outbox = ReportOutbox(lambda: self._machine.tables, self._datacenter)

    def end_term(self) -> None:
        self._outbox = None

    def ordered(self, job: JobId, tried: GatedTry) -> None:
        """The gates ordered something about a part; see `ReportOutbox.asked_again`."""
        if self._outbox is not None and tried.over and tried.is_delivered:
            self._outbox.asked_again(job, int(tried.handover))

    async def tick(self) -> None:
        outbox = self._outbox
        if outbox is None or not self._leads() or not self._machine.tables.gated:
            return
        for order in outbox.due(self._clock.now()):
            self._tasks.start(order.tag, self._send(outbox, order), group=TASKS)
        await self._close_former()

    async def close(self) -> None:
        while self._peers:
            _, peer = self._peers.popitem()
            await peer.close()

    async def _send(self, outbox: ReportOutbox, order: ReportOrder) -> None:
        report = msgspec.structs.replace(order.report, relay=True)
        timeout_s = ANSWER_S + report.result_size / RESULT_BYTES_PER_S
        group = order.gates.group
        for shown, peer in self._peers_of(order.gates):
            try:
                answer = await peer.request(report, timeout_s)
            except WireError as error:
                if isinstance(error, RemoteError):
                    self._log.debug("report_refused", gate=shown, job=report.job, error=error.text)
                self._answered.pop(group, None)
                continue
            if isinstance(answer, PartStored):
                self._answered[group] = shown
                await self._stored(outbox, order, answer)
                return
        outbox.failed(order, self._clock.now())

    async def _stored(self, outbox: ReportOutbox, order: ReportOrder, answer: PartStored) -> None:
        command = outbox.answered(order, answer, self._clock.now())
        if command is None:
            return
        try:
            await self._committer.commit(command)
        except (RemoteError, SquallError) as error:
            # The outbox asks for it again.
            self._log.debug("report_not_marked", job=order.report.job, error=str(error))

    def _peers_of(self, gates: KnownGates) -> list[tuple[str, Peer]]:
        """The gates of a group; the one that answered last comes first."""
        found: list[tuple[str, Peer]] = []
        for shown in gates.addresses:
            address = address_in(shown)
            if address is None:
                continue
            if shown not in self._peers:
                self._peers[shown] = Peer(self._board, address)
                self._peers[shown].start()
            found.append((shown, self._peers[shown]))
        last = self._answered.get(gates.group, "")
        return sorted(found, key=lambda each: each[0] != last)

    async def _close_former(self) -> None:
        gates = self._machine.tables.gates.values()
        wanted = {address for each in gates for address in each.addresses}
        for shown in [each for each in self._peers if each not in wanted]:
            await self._peers.pop(shown).close()
