"""Runs one boot of a member after another, until the member stops.

A boot ends when it was declared dead, when the store lost its registration, or when its election
failed unexpectedly. The member then registers as a new boot and retries for as long as it takes,
also while another process has its id. So a member is registered, about to register, or stopped.

Invariants: a boot that has ended does not act, and nothing registers once the member stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from squall.coordination.election import messages
from squall.coordination.election.core import Election
from squall.coordination.election.health_check import HealthChecker
from squall.coordination.election.leadership import Leadership
from squall.coordination.election.ranking import rank_of
from squall.coordination.election.term import Term, TermRunner, Work
from squall.coordination.errors import (
    CoordinationError,
    DuplicateMemberError,
    MemberFencedError,
    NotRunningError,
    StateLostError,
    StoreUnavailableError,
)
from squall.coordination.instrumentation import Instrumentation
from squall.coordination.member_parts import MemberParts
from squall.coordination.members.auto_profile import AutoProfile
from squall.coordination.members.health_rules import GracePeriod
from squall.coordination.members.heartbeat_loop import HeartbeatLoop
from squall.coordination.members.monitor import Monitor
from squall.coordination.members.registration import LeaderFields, Registration
from squall.coordination.options import Options
from squall.coordination.records import keys
from squall.coordination.records.plain_json import Metadata
from squall.coordination.stores.guarded_store import TOKEN_BYTES
from squall.coordination.timing import LOCAL_LIMIT
from squall.runtime.backoff import Backoff
from squall.runtime.tasks import TaskToken

# A boot ended for a reason that is no error of this library, so it may come back at once.
FAILED_BOOT = Backoff(first_s=1.0, factor=1.0)
# Every heartbeat reads the lease as well. If none did for so many intervals, the election reads it
# by itself.
OWN_READS_PER_BEAT = 3.0
# How often the log repeats why a member cannot register: another process may hold the id for days.
REPORT_AGAIN_S = 300.0


class BootLoop:
    """Runs the boots of one member. Call `registration.register`, then `begin`.

    `watch` is the work of the monitor, whose interval follows the profile.
    """

    def __init__(
        self,
        parts: MemberParts,
        options: Options,
        instrumentation: Instrumentation,
        *,
        grace: GracePeriod,
        monitor: Monitor,
        watch: Work,
        auto_profile: AutoProfile,
        health_check: HealthChecker,
        works: Callable[[], Sequence[Work]],
        on_state_lost: Callable[[], None],
        before_register: Callable[[], Awaitable[None]],
        highest_epoch: int,
    ) -> None:
        # Both belong to the present boot, or to the last one until the next one is registered.
        self.heartbeats: HeartbeatLoop | None = None
        self.leadership: Leadership | None = None
        self._parts = parts
        self._options = options
        self._instrumentation = instrumentation
        self._grace = grace
        self._monitor = monitor
        self._watch = watch
        self._auto_profile = auto_profile
        self._health_check = health_check
        self._works = works
        self._on_state_lost = on_state_lost
        self._before_register = before_register
        self._known_epoch = highest_epoch
        # Set before the last term is released: the end of that boot must not begin another one.
        self.stopping = False
        # Set when a boot begins and when the member stops.
        self._changed = asyncio.Event()
        self._token: TaskToken | None = None
        self.registration = self._make_registration()

    def begin(self) -> None:
        """The first boot is registered; runs it and all later ones."""
        for store in (self._parts.patient, self._parts.urgent):
            store.rebinds[keys.member(self._parts.member_id)] = self.registration.renewed_check
        self._token = self._parts.tasks.start("life", self._run())

    async def leave(self) -> None:
        """Ends the last boot, then marks the member as left."""
        self.stopping = True
        self._changed.set()
        for store in (self._parts.patient, self._parts.urgent):
            store.rebinds.pop(keys.member(self._parts.member_id), None)
        if self.leadership is not None:
            self.leadership.handle(messages.Retire())
        if self._token is not None:
            self._parts.tasks.cancel(self._token)
            await self._parts.tasks.stopped(self._token)
        await self.registration.leave()

    @property
    def highest_epoch(self) -> int:
        """The highest epoch that any boot of this member has seen."""
        known = self.leadership.election.highest_epoch if self.leadership is not None else 0
        return max(known, self._known_epoch)

    async def next_term(self) -> Term:
        """The present term, or the next one, in this boot or a later one."""
        while not self.stopping:
            leadership = self.leadership
            term = await leadership.next_term() if leadership is not None else None
            if term is not None:
                return term
            if leadership is self.leadership and not self.stopping:
                self._changed.clear()
                await self._changed.wait()
        raise NotRunningError("the coordinator has stopped")

    async def _run(self) -> None:
        while not self.stopping:
            try:
                cause = await self._run_boot()
            except Exception as error:
                self._parts.on_failure("incarnation_failed", error)
                cause = error
            if self.stopping:
                return
            self._instrumentation.ended(cause, self.highest_epoch)
            if isinstance(cause, StateLostError):
                self._on_state_lost()
            if not isinstance(cause, CoordinationError):
                await self._parts.clock.sleep(FAILED_BOOT.delay_s(1))
            await self._register_again()
            if isinstance(cause, MemberFencedError):
                self._instrumentation.recovered(self._parts.member_id)

    async def _run_boot(self) -> Exception:
        """Runs one boot until its heartbeats or its election end; returns the cause."""
        parts, registration = self._parts, self.registration
        group = parts.tasks.group(f"boot {registration.boot}")
        self._known_epoch = self.highest_epoch
        self.leadership = leadership = self._make_leadership()
        self.heartbeats = heartbeats = self._make_heartbeats(leadership)
        self._changed.set()
        parts.add_to_log(incarnation=registration.boot)
        self._auto_profile.follow(
            self._watch, self._grace, registration, heartbeats, leadership.election
        )
        started = (
            group.start("election", leadership.run()),
            # The name is part of a log event: `task_failed_heart`.
            group.start("heart", heartbeats.run()),
        )
        running = [token.task for token in started if token.task is not None]
        try:
            if running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            cause = _cause(running)
            heartbeats.end()
            if isinstance(cause, StateLostError):
                # Before the work of a term ends: a member of another environment that starts now
                # would bind the empty namespace. Failures show before the registration.
                parts.tasks.start("environment", self._bind_lost())
            await leadership.retire()
            group.cancel()
            return cause
        finally:
            # Not the whole group: a callback of the last term may be what stops the member.
            for token in started:
                parts.tasks.cancel(token)

    async def _bind_lost(self) -> None:
        with contextlib.suppress(CoordinationError):
            await self._before_register()

    async def _register_again(self) -> None:
        parts, reported, reported_at = self._parts, "", 0.0
        while not self.stopping:
            try:
                await self._before_register()
                await self.registration.register()
                return
            except StoreUnavailableError:
                pass
            except Exception as error:
                now = parts.clock.now()
                if reported != type(error).__name__ or now - reported_at >= REPORT_AGAIN_S:
                    reported, reported_at = type(error).__name__, now
                    taken = isinstance(error, DuplicateMemberError)
                    parts.on_failure("id_taken_over" if taken else "register_failed", error)
            await parts.clock.sleep(parts.timing.outage_retry.delay_s(1))

    # The parts of a boot.

    def _make_registration(self) -> Registration:
        parts, options = self._parts, self._options

        def leading() -> LeaderFields:
            leads = self.leadership is not None and self.leadership.leads
            failing = tuple(work.name for work in self._works() if work.failures > 1)
            return LeaderFields(self.highest_epoch, leads, failing if leads else ())

        return Registration(
            parts.urgent,
            parts.codec,
            parts.member_id,
            parts.timing,
            parts.clock,
            parts.identity,
            eligible=options.eligible,
            sign_heartbeats=parts.signs_heartbeats,
            leading=leading,
            metadata=Metadata(options.metadata, parts.on_failure),
            make_token=lambda: parts.random.randbytes(TOKEN_BYTES).hex(),
            awaited=parts.awaited,
            transient=options.transient,
            keep_heartbeats=options.keep_heartbeats,
        )

    def _make_heartbeats(self, leadership: Leadership) -> HeartbeatLoop:
        parts, registration = self._parts, self.registration

        def on_beat(took_s: float, failure: Exception | None) -> None:
            if failure is None:
                self._grace.reached(parts.clock.boot_time())
            self._instrumentation.beat(registration.sequence, took_s, failure)

        return HeartbeatLoop(
            registration,
            parts.timing,
            parts.clock,
            parts.random,
            parts.contention,
            lease=leadership,
            on_store_time=parts.note_store_time,
            on_beat=on_beat,
            on_contention=self._instrumentation.contention,
            on_isolated=self._instrumentation.isolated,
        )

    def _make_runner(self) -> TermRunner:
        def unhealthy() -> None:
            leadership = self.leadership
            if leadership is not None and leadership.election.standbys:
                leadership.handle(messages.Resign("unhealthy"))

        parts = self._parts
        return TermRunner(self._works, parts.tasks.group("terms"), parts.on_failure, unhealthy)

    def _make_leadership(self) -> Leadership:
        parts, registration = self._parts, self.registration
        capabilities = parts.patient.capabilities
        watches = capabilities.blocking_wait or not capabilities.cross_host
        election = Election(
            parts.member_id,
            registration.boot,
            parts.timing,
            parts.clock.boot_time(),
            uniform=parts.random.uniform,
            wall=parts.clock.wall,
            eligible=self._options.eligible,
            highest_epoch=self._known_epoch,
            skip_cold_start=self._options.skip_cold_start,
            read_interval_s=parts.timing.heartbeat_interval * OWN_READS_PER_BEAT
            if watches
            else None,
        )
        election.store_offset = parts.store_time() - parts.clock.boot_time()
        return Leadership(
            election,
            parts.urgent,
            parts.patient,
            parts.codec,
            parts.clock,
            parts.tasks.group(f"boot {registration.boot}"),
            alive=lambda: registration.alive,
            rank=self._rank,
            runner=self._make_runner(),
            report=self._instrumentation.election,
            standbys=lambda: self._monitor.standbys,
            live=lambda: self._monitor.statistics.coordinators_monitored,
            signing_key=lambda: self._monitor.signing_key,
            pace=lambda: self._auto_profile.pace,
            healthy=lambda: self._health_check.fit,
            on_lease=self._auto_profile.heard,
            on_renewed=self._renewed,
            on_failure=parts.on_failure,
            watches=watches,
        )

    def _renewed(self, lease_left: float) -> None:
        parts = self._parts
        ratio = parts.contention.cycle(0.0, 0.0, lease_left, parts.clock.now())
        if ratio is not None:
            self._instrumentation.contention(
                (LOCAL_LIMIT - lease_left) * parts.timing.lease_ttl, ratio
            )

    async def _rank(self) -> int:
        lease = self.leadership.election.seen_lease if self.leadership is not None else None
        return await rank_of(self._parts, lease.member_id if lease is not None else "")


def _cause(ended: Sequence[asyncio.Task[object]]) -> Exception:
    """The exception that the first ended task returned or raised."""
    for task in ended:
        if not task.done() or task.cancelled():
            continue
        cause = task.exception() or task.result()
        if isinstance(cause, Exception):
            return cause
    return NotRunningError("the coordinator has stopped")
