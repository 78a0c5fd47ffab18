"""Single-instance mode: a member that leads at once, without heartbeats and elections.

It still writes the lease record, under the next epoch, because a fenced write needs an epoch in the
store. This also keeps a misconfigured second instance harmless: it takes a higher epoch, and the
first refused write ends the term of this member. A start is refused where another member lives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from squall.coordination.election import leases, messages
from squall.coordination.election.term import Term, TermRunner
from squall.coordination.errors import (
    ConfigurationError,
    LeadershipLost,
    StaleEpochError,
    StoreError,
    VersionConflict,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.records import keys
from squall.coordination.records.schemas import LeaseRecord
from squall.coordination.stores.interface import ABSENT, Fence, Put

# Each lost race means that another process took the lease; ten in a row are no accident.
TRIES = 10


class SingleInstance:
    """Holds the one term of a member in single-instance mode.

    `report(effect)` receives its begin and end, for events, metrics and logs.
    """

    def __init__(self, parts: MemberParts, report: Callable[[messages.Effect], None]) -> None:
        self._parts = parts
        self._report = report
        self._lease: LeaseRecord | None = None
        self._version = ""
        self._running: asyncio.Task[None] | None = None
        self._term: Term | None = None

    @property
    def term(self) -> Term:
        """Raises `LeadershipLost` when the term is over; there is no second one."""
        term = self._term
        assert term is not None, "begin() comes first"
        if not term.valid:
            raise LeadershipLost(term.epoch, term.reason)
        return term

    @property
    def epoch(self) -> int:
        return self._term.epoch if self._term is not None else 0

    @property
    def leads(self) -> bool:
        return self._term is not None and self._term.valid

    async def begin(self, runner: TermRunner) -> None:
        parts = self._parts
        capabilities = parts.patient.capabilities
        if capabilities.cross_process and await parts.live_members(pages=1):
            raise ConfigurationError(
                "enable_coordinator is False, but another live member is registered in this"
                " namespace: both would act as the leader; set enable_coordinator=True"
            )
        self._lease = lease = await self._take()
        term = self._term = Term(lease.epoch, parts.patient, lambda: True, self._end_fenced)
        self._report(messages.HolderChanged("", lease))
        self._report(messages.Promote(lease.epoch))
        token = parts.tasks.start("alone", runner.run(term))
        self._running = token.task

    async def end(self) -> None:
        """Ends the work, then releases the lease, so that the next start need not wait for it to
        run out."""
        self._end("stopped")
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled() and not self._running.result():
                return
        if self._lease is None or self._term is None or self._term.reason != "stopped":
            return
        released_lease = leases.released_lease(self._lease, number=1, successor="", standbys=())
        put = Put(
            keys.LEADER, self._parts.codec.encode(released_lease), expect=self._version, ttl_s=None
        )
        with contextlib.suppress(VersionConflict, StaleEpochError, StoreError):
            await self._parts.urgent.write(put, fence=Fence(keys.LEADER, self._lease.epoch))

    def exempt(self, task: asyncio.Task[Any] | None) -> None:
        if self._term is not None:
            self._term.exempt(task)

    def cancel_scopes(self) -> None:
        if self._term is not None:
            self._term.cancel_scopes()

    async def _take(self) -> LeaseRecord:
        parts = self._parts
        for _ in range(TRIES):
            (record,) = await parts.patient.get(keys.LEADER)
            now = parts.store_time()
            lease = leases.candidate_lease(
                None,
                epoch=leases.next_epoch(record, 0, parts.clock.wall()),
                member_id=parts.member_id,
                boot=round(now * 1000.0),
                number=1,
                elected_at=now,
                term_ends_at=now,
                lease_ttl=parts.timing.lease_ttl,
                pace=None,
            )
            expect = ABSENT if record is None else record.version
            put = Put(keys.LEADER, parts.codec.encode(lease), expect=expect, ttl_s=None)
            try:
                (self._version,) = await parts.patient.write(
                    put, fence=Fence(keys.LEADER, lease.epoch)
                )
            except (VersionConflict, StaleEpochError):
                continue
            return lease
        raise ConfigurationError(
            "enable_coordinator is False, but another process keeps changing the lease of this"
            " namespace; set enable_coordinator=True"
        )

    def _end_fenced(self, epoch: int) -> None:
        self._report(messages.WriteFenced(epoch))
        self._end("fenced")

    def _end(self, reason: str) -> None:
        term = self._term
        if term is not None and term.valid:
            term.end(reason)
            self._report(messages.Demote(term.epoch, reason))
