"""Answers the probes of gates with the sums of this datacenter.

Every manager answers, from the committed state and the notes of the other managers. Only the
primary hears the workers: another manager counts all that are registered, and says that it does
not lead. The answer decides nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from squall.cluster.datacenter.records import WorkerRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.ledger.interface import Ledger
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.protocol.gates.federation_messages import AskDatacenter, DatacenterState
from squall.cluster.protocol.group_messages import GroupView
from squall.cluster.wire.links.dispatch import Handlers, Incoming

NOT_HEARD = ("silent", "failed")


class DatacenterStateApi:
    """Handles `AskDatacenter`."""

    def __init__(
        self,
        *,
        datacenter: str,
        machine: Datacenter,
        ledger: Ledger,
        group: Callable[[], GroupView],
        addresses: Callable[[], list[str]],
        state: Callable[[], VolatileState | None],
        overload: Callable[[], int],
    ) -> None:
        """`state` is that of the primary, None on other members. `addresses` are those of all
        members, empty while one is unknown."""
        self._datacenter = datacenter
        self._machine = machine
        self._ledger = ledger
        self._group = group
        self._addresses = addresses
        self._state = state
        self._overload = overload

    def register(self, handlers: Handlers) -> None:
        handlers.on(AskDatacenter, self.answer, brief=True)

    def answer(self, message: AskDatacenter, incoming: Incoming) -> DatacenterState:
        tables = self._machine.tables
        state = self._state() if self._ledger.is_primary else None
        # A worker that drains gets no work: its cores are no capacity, and that is no damage.
        workers = [w for w in tables.workers.values() if not w.gone and not w.draining]
        healthy = [w for w in workers if state is None or state.is_present(w)]
        queued = sum(tables.jobs[job].state == "queued" for job in tables.active)
        group = self._group()
        members = [each for each in group.members if each.is_member]
        leader = next((each for each in members if each.name == group.leader), None)
        return DatacenterState(
            datacenter=self._datacenter,
            group=group.group,
            reported_by=group.reported_by,
            epoch=group.epoch,
            committed=self._ledger.standing().committed,
            leader=group.leader,
            leads=state is not None,
            leader_address=leader.address if leader is not None else "",
            managers=self._addresses(),
            managers_heard=sum(each.state not in NOT_HEARD for each in members),
            managers_total=len(members),
            workers=len(workers),
            healthy=len(healthy),
            cores=sum(worker.cores for worker in workers),
            free=self._free_cores(healthy),
            queued=queued,
            active_jobs=len(tables.active) - queued,
            overload=self._overload(),
        )

    def _free_cores(self, workers: list[WorkerRecord]) -> int:
        taken = Counter(node for node, _ in self._machine.tables.slots)
        return sum(max(worker.cores - taken[worker.node], 0) for worker in workers)
