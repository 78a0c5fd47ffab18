"""What workers tell a manager: a new boot, the state of a session, telemetry.

A session is answered only after a heartbeat round that began after it arrived, so that a
lease is always granted by the primary of that moment. A registration lists what a former
boot left behind; those records are pulled first, because the command that registers the
boot also ends its former attempts. Telemetry goes to the member that leads the job.

A worker that cannot reach the primary may ask any manager to relay: its lease counts from
the moment it sent the request, whichever way the answer takes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from squall.api.errors import SquallError
from squall.ledger.interface import Fence, Ledger, NotPrimary
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import RecordFacts
from squall.nodes.identity import JobId
from squall.nodes.manager.clients import Committer
from squall.nodes.manager.director import Director
from squall.nodes.manager.errands import Errands
from squall.nodes.manager.facts import facts_of
from squall.nodes.manager.job_leaders import JobLeaders
from squall.nodes.manager.leader import JobLeader
from squall.nodes.manager.log import is_alone
from squall.nodes.messages import (
    Registered,
    RegisterWorker,
    SessionAnswer,
    SessionRequest,
    Telemetry,
    TelemetryAck,
)
from squall.nodes.timers import Timers
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.wire.dispatch import Handlers, Incoming
from squall.wire.errors import RemoteError
from squall.wire.messages import ErrorCode


class WorkerApi:
    def __init__(
        self,
        *,
        datacenter: str,
        ledger: Ledger,
        committer: Committer,
        machine: Datacenter,
        leader: JobLeader,
        leaders: JobLeaders,
        errands: Errands,
        timers: Callable[[], Timers],
        clock: Clock,
        log: Log,
        director: Callable[[], Director | None],
        on_heard: Callable[[], None],
        pace: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`pace`: how many times longer than usual workers wait between two reports."""
        self._pace = pace
        self._datacenter = datacenter
        self._ledger = ledger
        self._committer = committer
        self._machine = machine
        self._leader = leader
        self._leaders = leaders
        self._errands = errands
        self._timers = timers
        self._clock = clock
        self._log = log
        self._director = director
        self._on_heard = on_heard

    def register_handlers(self, handlers: Handlers) -> None:
        handlers.on(RegisterWorker, self.register)
        handlers.on(SessionRequest, self.session, brief=True)
        handlers.on(Telemetry, self.telemetry, brief=True)

    async def register(self, message: RegisterWorker, incoming: Incoming) -> Registered:
        if message.relay and not self._ledger.is_primary:
            return await self._leaders.relay(msgspec.structs.replace(message, relay=False))
        director = self._leading()
        if message.datacenter != self._datacenter:
            return Registered(
                refused=f"this is datacenter {self._datacenter}, not {message.datacenter}"
            )
        held: list[RecordFacts] = []
        for each in message.held:
            try:
                record = await self._errands.pulled(
                    message.node, message.boot, each.digest, each.size
                )
            except (SquallError, OSError) as error:
                raise RemoteError(
                    ErrorCode.RETRY_LATER, f"a held record: {error}", retry_after_s=0.2
                ) from None
            held.append(facts_of(each.key, record, each.digest, each.size))
        outcome = director.register(message, held)
        if isinstance(outcome, str):
            return Registered(refused=outcome)
        await self._committer.commit(outcome)
        self._log.info(
            "worker_registered",
            worker=message.node,
            worker_boot=message.boot,
            cores=message.cores,
            proven=message.proven,
            held=len(held),
        )
        self._on_heard()
        return Registered(
            lease_s=self._timers().execution_lease_s, interval_s=director.facts.interval_s()
        )

    def session(
        self, message: SessionRequest, incoming: Incoming
    ) -> SessionAnswer | Coroutine[Any, Any, SessionAnswer]:
        """At once where no other member has to be asked: thousands come every second."""
        arrived = self._clock.now()
        if message.relay and not self._ledger.is_primary:
            return self._leaders.relay(msgspec.structs.replace(message, relay=False))
        director = self._leading()
        if is_alone(self._ledger):
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
        if director.stirred:
            self._on_heard()
        return answer

    def telemetry(
        self, message: Telemetry, incoming: Incoming
    ) -> TelemetryAck | Coroutine[Any, Any, TelemetryAck]:
        """What is led here is added; of the rest the worker hears who leads it."""
        jobs = self._machine.tables.jobs
        elsewhere: dict[JobId, str] = {}
        for name in {part.key.job: None for part in message.parts}:
            job = jobs.get(name)
            where = self._leaders.elsewhere(job)
            if where and message.relay and job is not None:
                return self._leaders.ask(
                    self._leaders.of(job), msgspec.structs.replace(message, relay=False)
                )
            if where:
                elsewhere[name] = where
        mine = message.parts
        if elsewhere:
            mine = [part for part in mine if part.key.job not in elsewhere]
        acks = self._leader.take(mine, message.node)
        return TelemetryAck(acks=acks, interval_s=self._telemetry_s(), elsewhere=elsewhere)

    def _telemetry_s(self) -> float:
        usual_s = self._timers().telemetry_interval_s(len(self._machine.tables.workers))
        return usual_s * self._pace()

    def _leading(self) -> Director:
        director = self._director()
        if director is None or not self._ledger.is_primary:
            raise self._committer.answer(NotPrimary(self._ledger.primary))
        return director
