"""The primaries of both sides: the product's steward and outboxes on a model of a log.

`GatePrimary` and `DatacenterPrimary` live for one term. They act on the state of their own member,
so a primary that does not know of its replacement keeps sending from its old state.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from random import Random
from typing import Any, Protocol

from lab.scenarios.handover.execution import Execution
from lab.scenarios.handover.group_model import Term
from lab.scenarios.handover.timeline import LossyNetwork, Reply, Timeline
from squall.cluster.assignments.commands import GateCommand
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.datacenter.commands import Command
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.gate import reports
from squall.cluster.gate.outbox import GateOutbox, PartOrder
from squall.cluster.gate.steward.effects import (
    MergeResults,
    StewardEffect,
    StoreLostPart,
    SubmitCommand,
)
from squall.cluster.gate.steward.policy import Steward
from squall.cluster.gate.steward.volatile_state import Route
from squall.cluster.gate.timers import GateTimers
from squall.cluster.group.primary.job_end import JobEndFacts
from squall.cluster.manager.gates import part_api
from squall.cluster.manager.gates.report_outbox import ReportOrder, ReportOutbox
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome
from squall.cluster.protocol.gates.gate_messages import (
    AcceptPart,
    AnnounceGates,
    GatesKnown,
    PartReport,
    PartStored,
)
from squall.cluster.protocol.gates.handover_keys import GateFence

TIMERS = GateTimers(
    hold_s=4.0,
    unroutable_s=20.0,
    lost_wait_s=5.0,
    again_first_s=0.5,
    again_max_s=4.0,
    retention_s=5.0,
    retention_failed_s=5.0,
)
TICK_S = 0.3


def lost_result(job: str, part: int) -> str:
    """The digest of the gates' own record of a part."""
    return f"cut {job} {part}"


class HandoverWorld(Protocol):
    """The parts of the scenario that the primaries use."""

    timeline: Timeline
    network: LossyNetwork
    random: Random
    route: Route
    timers: GateTimers
    run_ms: int

    def is_unreachable(self, datacenter: str) -> bool: ...
    def silent_s(self, datacenter: str) -> float: ...
    def hears_of_gates(self, datacenter: str) -> None: ...
    def handle_order(self, datacenter: str, message: Any, reply: Reply) -> None: ...
    def handle_report(self, address: str, report: PartReport, reply: Reply) -> None: ...


class Commit:
    """A commit under way, for a handler of the product to await."""

    def __init__(
        self,
        commit: Callable[[GateCommand, Callable[[CommandOutcome | None], None]], None],
        command: GateCommand,
    ) -> None:
        self._outcome: list[CommandOutcome | None] = []
        self._waits: Callable[[CommandOutcome | None], None] | None = None
        commit(command, self._done)

    def __await__(self) -> Generator[Commit, CommandOutcome | None, CommandOutcome | None]:
        return (yield self)

    def then(self, waits: Callable[[CommandOutcome | None], None]) -> None:
        if self._outcome:
            waits(self._outcome[0])
        else:
            self._waits = waits

    def _done(self, outcome: CommandOutcome | None) -> None:
        self._outcome.append(outcome)
        if self._waits is not None:
            self._waits(outcome)


Answering = Coroutine[Commit, CommandOutcome | None, PartStored]


class GatePrimary:
    """One term of a primary gate."""

    def __init__(
        self, world: HandoverWorld, term: Term[Assignments], new_group: str, datacenters: list[str]
    ) -> None:
        self._world = world
        self.term = term
        self._next_at = 0.0
        self.steward = Steward(
            term.machine,
            world.timers,
            group=new_group,
            datacenters={name: (f"{name}:1",) for name in datacenters},
            now=world.timeline.now,
            group_ms=term.group.group_ms(),
            route=world.route,
            is_unreachable=world.is_unreachable,
            silent_s=world.silent_s,
        )
        self.outbox = GateOutbox(
            lambda: term.machine.tables,
            self._fence,
            lambda job, part: job.submission,
            # The address of its gates is the name of the group: the scenario finds them by it.
            lambda: [term.machine.tables.group] if term.machine.tables.group else [],
        )
        self.wake()

    def wake(self) -> None:
        self._world.timeline.after(0.0, self.tick)

    def tick(self) -> None:
        now = self._world.timeline.now
        if self.term.ended:
            return
        group_ms = self.term.group.group_ms()
        for effect in self.steward.tick(now, group_ms):
            self._do(effect)
        for order in self.outbox.due(now, group_ms):
            self._send(order)
        if now >= self._next_at:
            self._next_at = now + TICK_S
            self._world.timeline.after(TICK_S + 0.001, self.tick)

    def commit(self, command: GateCommand, done: Callable[[CommandOutcome | None], None]) -> None:
        def committed(outcome: CommandOutcome | None) -> None:
            done(outcome)
            self.wake()

        self.term.submit(command, committed)

    def handle_report(self, report: PartReport, reply: Reply) -> None:
        """As `PartReports.report`, on a member that has confirmed that it leads."""
        if not self.term.leads:
            reply(None)
            return
        answering = reports.stored(
            self.term.machine, report, lambda command: Commit(self.commit, command)
        )
        self._answer(answering, None, reply)

    def _answer(self, answering: Answering, outcome: CommandOutcome | None, reply: Reply) -> None:
        """Runs the handler to its next commit or to its answer. A failed commit ends it."""
        try:
            awaited = answering.send(outcome)
        except StopIteration as ended:
            reply(ended.value)
            return

        def done(outcome: CommandOutcome | None) -> None:
            if isinstance(outcome, Accepted):
                self._answer(answering, outcome, reply)
            else:
                answering.close()
                reply(None)

        awaited.then(done)

    def _fence(self) -> GateFence:
        tables, fence = self.term.machine.tables, self.term.fence
        return GateFence(tables.group, fence.epoch, fence.view, tables.former)

    def _do(self, effect: StewardEffect) -> None:
        steward, timeline = self.steward, self._world.timeline
        match effect:
            case SubmitCommand():
                self.commit(
                    effect.command,
                    lambda outcome: steward.submitted(effect.tag, outcome, timeline.now),
                )
            case StoreLostPart():
                blob = lost_result(effect.job, effect.part)
                steward.lost_part_stored(effect.tag, effect.job, effect.part, blob, 1)
                self.wake()
            case MergeResults():
                steward.results_merged(effect.tag, effect.job, JobEndFacts(result="merged"))
                self.wake()

    def _send(self, order: PartOrder) -> None:
        world = self._world
        world.network.request(
            "gates",
            order.datacenter,
            lambda reply: world.handle_order(order.datacenter, order.message, reply),
            lambda answer: self._answered(order, answer),
            lambda: self.outbox.failed(order, world.timeline.now),
        )

    def _answered(self, order: PartOrder, answer: Any) -> None:
        command = self.outbox.answered(order, answer, self._world.timeline.now)
        if command is not None:
            self.commit(command, lambda outcome: None)


class DatacenterPrimary:
    """One term of the primary manager of a datacenter."""

    def __init__(
        self, world: HandoverWorld, name: str, term: Term[Datacenter], cores: int, refuses: float
    ) -> None:
        self._world = world
        self.name = name
        self.term = term
        self._refuses = refuses
        self.execution = Execution(world.timeline, world.random, term, name, cores, world.run_ms)
        self.outbox = ReportOutbox(lambda: term.machine.tables, name)
        world.timeline.after(0.0, self.tick)

    def tick(self) -> None:
        if self.term.ended:
            return
        self.execution.tick()
        for order in self.outbox.due(self._world.timeline.now):
            self._send(order)
        self._world.timeline.after(TICK_S, self.tick)

    def handle_order(self, message: Any, reply: Reply) -> None:
        """As `PartApi`."""
        tables = self.term.machine.tables
        if isinstance(message, AnnounceGates):
            command = part_api.unknown_gates(tables, message)
            if command is None and self.term.leads:
                reply(GatesKnown())
            elif command is not None:
                self._world.hears_of_gates(self.name)
                self._commit(command, lambda: GatesKnown(), reply)
            return
        if isinstance(message, AcceptPart):
            full = self._world.random.random() < self._refuses
            command = part_api.accept_command(
                message, leader="m1", created_at=0.0, refusal="the queue is full" if full else ""
            )
        else:
            command = part_api.order_command(message)

        def answer() -> Any:
            record = tables.gated.get(message.job)
            tried = record.find(message.handover) if record is not None else None
            if tried is not None and tried.over and tried.is_delivered:
                self.outbox.asked_again(message.job, int(tried.handover))
            return part_api.part_answer(tables, message)

        self._commit(command, answer, reply)

    def _commit(self, command: Command, answer: Callable[[], Any], reply: Reply) -> None:
        def done(outcome: CommandOutcome | None) -> None:
            reply(answer() if isinstance(outcome, Accepted) else None)

        self.term.submit(command, done)

    def _send(self, order: ReportOrder) -> None:
        address = order.gates.addresses[0]
        world = self._world
        world.network.request(
            self.name,
            "gates",
            lambda reply: world.handle_report(address, order.report, reply),
            lambda answer: self._stored(order, answer),
            lambda: self.outbox.failed(order, world.timeline.now),
        )

    def _stored(self, order: ReportOrder, answer: PartStored) -> None:
        command = self.outbox.answered(order, answer, self._world.timeline.now)
        if command is not None:
            self.term.submit(command, lambda outcome: None)
