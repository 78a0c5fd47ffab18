"""Answers workers: registrations of boots, sessions, telemetry.

A session is answered only after a heartbeat round that began after it arrived, so that only
the present primary grants leases (R5). A registration lists the records that a former boot
left; they are pulled first, because the command that registers the boot also ends its former
attempts (R6). Telemetry goes to the member that leads the job.

A worker that cannot reach the primary may ask any manager to relay. That is safe because the
lease counts from the moment the worker sent the request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import Command
from squall.cluster.datacenter.records import JobRecord, RecordFacts
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.committer import RETRY_AFTER_S, Committer
from squall.cluster.group.job_leaders.choice import JobLeaders
from squall.cluster.group.telemetry.job_leader import JobLeader
from squall.cluster.ledger.interface import Fence, Ledger, NotPrimary
from squall.cluster.manager.director.effect_runner import EffectRunner
from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.results.record_facts import facts_of
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.membership.order import MembershipOrder
from squall.cluster.protocol.messages import (
    Registered,
    RegisterWorker,
    SessionAnswer,
    SessionPush,
    SessionRequest,
    Telemetry,
    TelemetryAck,
)
from squall.cluster.protocol.timers import Timers
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.roles import Role
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log


class WorkerApi:
    """Handles the requests of workers."""

    def __init__(
        self,
        *,
        datacenter: str,
        ledger: Ledger,
        committer: Committer[Command],
        machine: Datacenter,
        leader: JobLeader[JobRecord],
        leaders: JobLeaders[Command],
        runner: EffectRunner,
        timers: Callable[[], Timers],
        clock: Clock,
        log: Log,
        director: Callable[[], Director | None],
        on_heard: Callable[[], None],
        managers: Callable[[], list[str]],
        membership: Callable[[int], MembershipOrder | None],
        on_link: Callable[[Incoming], None],
        pace: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`managers` returns the addresses of the group's members, `membership` what a worker with
        this version of the order must learn. `on_link` is called with the sessions of workers that
        take part in membership. `pace`: how many times longer than usual workers wait between two
        reports."""
        self._managers = managers
        self._membership = membership
        self._on_link = on_link
        self._pace = pace
        self._datacenter = datacenter
        self._ledger = ledger
        self._committer = committer
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._runner = runner
        self._timers = timers
        self._clock = clock
        self._log = log
        self._director = director
        self._on_heard = on_heard

    def register_handlers(self, handlers: Handlers) -> None:
        handlers.on(RegisterWorker, self.register)
        handlers.on(SessionRequest, self.session, brief=True)
        handlers.on(Telemetry, self.telemetry, brief=True)
        handlers.on(SessionPush, self.push)

    async def register(self, message: RegisterWorker, incoming: Incoming) -> Registered:
        refused = _wrong_name(message.node, incoming)
        if refused:
            self._log.warning("worker_refused", worker=message.node, why=refused)
            return Registered(refused=refused)
        if message.relay and not self._ledger.is_primary:
            return await self._leaders.relay(msgspec.structs.replace(message, relay=False))
        director = self._leading()
        arrived_ms = self._ledger.group_ms()
        if message.datacenter != self._datacenter:
            return Registered(
                refused=f"this is datacenter {self._datacenter}, not {message.datacenter}"
            )
        in_use = director.name_in_use(message, self._clock.now())
        if in_use:
            self._log.warning("worker_refused", worker=message.node, why=in_use)
            return Registered(refused=in_use, name_in_use=True)
        held: list[RecordFacts] = []
        for each in message.held:
            try:
                record = await self._runner.pulled(
                    message.node, message.boot, each.digest, each.size
                )
            except (SquallError, OSError) as error:
                raise RemoteError(
                    ErrorCode.RETRY_LATER,
                    f"a record of {message.node} cannot be pulled: {error}",
                    retry_after_s=RETRY_AFTER_S,
                ) from None
            held.append(facts_of(each.key, record, each.digest, each.size))
        outcome = director.register(message, held, arrived_ms)
        if isinstance(outcome, str):
            return Registered(refused=outcome)
        await self._committer.commit(outcome)
        self._log.info(
            "worker_registered",
            worker=message.node,
            worker_boot=message.boot,
            cores=message.cores,
            dead_boots=len(message.dead_boots),
            held=len(held),
        )
        self._on_heard()
        return Registered(
            lease_s=self._timers().execution_lease_s, interval_s=director.state.interval_s()
        )

    def session(
        self, message: SessionRequest, incoming: Incoming
    ) -> SessionAnswer | Coroutine[Any, Any, SessionAnswer]:
        """Answers at once in a group of one: thousands of sessions come every second, and a task
        for each would cost more than the answer."""
        arrived = self._clock.now()
        if message.relay and not self._ledger.is_primary:
            return self._leaders.relay(msgspec.structs.replace(message, relay=False))
        director = self._leading()
        if message.membership >= 0:
            self._on_link(incoming)
        if self._ledger.is_alone:
            return self._answered(director, message, arrived, arrived, self._ledger.fence)
        return self._confirmed(message, arrived)

    async def _confirmed(self, message: SessionRequest, arrived: float) -> SessionAnswer:
        try:
            fence = await self._ledger.confirm()
        except SquallError as error:
            raise self._committer.answer(error) from None
        return self._answered(self._leading(), message, arrived, self._clock.now(), fence)

    def _answered(
        self,
        director: Director,
        message: SessionRequest,
        arrived: float,
        now: float,
        fence: Fence,
    ) -> SessionAnswer:
        answer = director.session(
            message,
            arrived=arrived,
            now=now,
            group_ms=self._ledger.group_ms(),
            fence=fence,
            committed=self._ledger.applied,
        )
        if director.has_work:
            self._on_heard()
        # A boot that is not registered gets no key of membership.
        takes_part = message.membership >= 0 and not answer.register
        if takes_part and (order := self._membership(message.membership)):
            answer = msgspec.structs.replace(answer, membership=order)
        if message.managers_epoch != fence.epoch and (managers := self._managers()):
            # Workers keep the list, so that a replacement of all managers strands none of them.
            return msgspec.structs.replace(answer, managers=managers)
        return answer

    def push(self, message: SessionPush, incoming: Incoming) -> None:
        """The primary has something for a worker that it has no link to."""
        self._runner.push(message.node, message.boot)

    def telemetry(
        self, message: Telemetry, incoming: Incoming
    ) -> TelemetryAck | Coroutine[Any, Any, TelemetryAck]:
        """Adds the reports of jobs that this member leads, and answers with the leader's address
        for the others."""
        jobs = self._machine.tables.jobs
        elsewhere: dict[JobId, str] = {}
        for name in {part.key.job: None for part in message.parts}:
            job = jobs.get(name)
            where = self._leaders.elsewhere(job)
            if where and message.relay and job is not None:
                return self._leaders.relay_to(
                    self._leaders.of(job), msgspec.structs.replace(message, relay=False)
                )
            if where:
                elsewhere[name] = where
        mine = message.parts
        if elsewhere:
            mine = [part for part in mine if part.key.job not in elsewhere]
        try:
            acks = self._leader.take(mine, message.node)
        except msgspec.MsgspecError as error:
            text = f"a report of {message.node} cannot be read: {error}"
            raise RemoteError(ErrorCode.BAD_MESSAGE, text) from None
        return TelemetryAck(acks=acks, interval_s=self._telemetry_s(), elsewhere=elsewhere)

    def _telemetry_s(self) -> float:
        usual_s = self._timers().telemetry_interval_s(len(self._machine.tables.workers))
        return usual_s * self._pace()

    def _leading(self) -> Director:
        director = self._director()
        if director is None or not self._ledger.is_primary:
            raise self._committer.answer(NotPrimary(self._ledger.primary))
        return director


def _wrong_name(node: str, incoming: Incoming) -> str:
    """Returns why the sender may not register this name, or "". A manager relays registrations of
    workers whose names it has checked."""
    peer = incoming.peer
    if peer.role is not Role.WORKER:
        return ""
    if peer.name and peer.name != node:
        return f"its credential is for the worker {peer.name}, not for {node}"
    return "" if peer.node == node else f"its link belongs to {peer.node}, not to {node}"
