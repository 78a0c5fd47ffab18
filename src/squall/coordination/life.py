"""The life of a member: one incarnation after another.

An incarnation ends when it was declared dead, when the store lost it, or when its election broke
for a reason that nobody foresaw. Then the member registers anew and goes on trying for as long as
it takes: also while another process has its id, until that one is gone. So a member is alive, or
on its way to be, or stopped.

It must never let an incarnation that has ended act, nor register while the member stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from squall.coordination import election_messages as messages
from squall.coordination import keys
from squall.coordination.assembly import Assembly
from squall.coordination.election import Election
from squall.coordination.errors import (
    CoordinationError,
    DuplicateMemberError,
    MemberFencedError,
    NotRunningError,
    StateLostError,
    StoreUnavailableError,
)
from squall.coordination.fitness import Fitness
from squall.coordination.health import Grace
from squall.coordination.heart import Heart
from squall.coordination.leadership import Leadership
from squall.coordination.monitor import Monitor
from squall.coordination.options import Options
from squall.coordination.plain import Metadata
from squall.coordination.pulse import Leading, Pulse
from squall.coordination.ranking import rank_of
from squall.coordination.scaling import Pacer
from squall.coordination.stores.guard import TOKEN_BYTES
from squall.coordination.telling import Teller
from squall.coordination.terms import Term, TermRunner, Work
from squall.coordination.timing import LOCAL_LIMIT
from squall.runtime.tasks import TaskToken

REGISTER_RETRY_S = 1.0
LOOKS_BESIDE_BEATS = 3.0
"""Every beat looks at the lease too; so many intervals after a look, it is made without one."""


class Life:
    """Of one member; `pulse.register`, then `begin`. `watch` is the work of the monitor."""

    def __init__(
        self,
        parts: Assembly,
        options: Options,
        teller: Teller,
        *,
        grace: Grace,
        monitor: Monitor,
        watch: Work,
        pacer: Pacer,
        fitness: Fitness,
        works: Callable[[], Sequence[Work]],
        on_state_lost: Callable[[], None],
        highest_epoch: int,
    ) -> None:
        self.heart: Heart | None = None
        self.leadership: Leadership | None = None
        """Of the present incarnation, or of the last one while the next is not registered."""
        self._parts = parts
        self._options = options
        self._teller = teller
        self._grace = grace
        self._monitor = monitor
        self._watch = watch
        self._pacer = pacer
        self._fitness = fitness
        self._works = works
        self._on_state_lost = on_state_lost
        self._known_epoch = highest_epoch
        self.stopping = False
        """Set before the last term is given up: its end is not the begin of an incarnation."""
        self._changed = asyncio.Event()
        """Set whenever an incarnation begins, and by the end of the member."""
        self._token: TaskToken | None = None
        self.pulse = self._make_pulse()

    def begin(self) -> None:
        """The first incarnation is registered."""
        for store in (self._parts.patient, self._parts.urgent):
            store.rebinds[keys.member(self._parts.member_id)] = self.pulse.alive_still
        self._token = self._parts.tasks.start("life", self._run())

    async def leave(self) -> None:
        """The member stops: nothing beats or registers any more, then others see that it left."""
        self.stopping = True
        self._changed.set()
        for store in (self._parts.patient, self._parts.urgent):
            store.rebinds.pop(keys.member(self._parts.member_id), None)
        if self.leadership is not None:
            self.leadership.handle(messages.Retire())
        if self._token is not None:
            self._parts.tasks.cancel(self._token)
            await self._parts.tasks.stopped(self._token)
        await self.pulse.leave()

    @property
    def highest_epoch(self) -> int:
        """That this member knows of."""
        known = self.leadership.election.highest_epoch if self.leadership is not None else 0
        return max(known, self._known_epoch)

    async def next_term(self) -> Term:
        """The present term, or the next one of this member, in whichever incarnation."""
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
                cause = await self._live()
            except Exception as error:
                self._parts.on_failure("incarnation_failed", error)
                cause = error
            if self.stopping:
                return
            self._teller.ended(cause, self.highest_epoch)
            if isinstance(cause, StateLostError):
                self._on_state_lost()
            if not isinstance(cause, CoordinationError):
                # It may come again at once.
                await self._parts.clock.sleep(REGISTER_RETRY_S)
            await self._register_again()
            if isinstance(cause, MemberFencedError):
                self._teller.recovered(self._parts.member_id)

    async def _live(self) -> Exception:
        """One incarnation, until its heart or its election ends: why."""
        parts, pulse = self._parts, self.pulse
        group = parts.tasks.group(f"incarnation {pulse.incarnation}")
        self._known_epoch = self.highest_epoch
        self.leadership = leadership = self._make_leadership()
        self.heart = heart = self._make_heart(leadership)
        self._changed.set()
        parts.say_in_log(incarnation=pulse.incarnation)
        self._pacer.follow(self._watch, self._grace, pulse, heart, leadership.election)
        started = (group.start("election", leadership.run()), group.start("heart", heart.run()))
        running = [token.task for token in started if token.task is not None]
        try:
            if running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            cause = _cause(running)
            heart.end()
            await leadership.retire()
            group.cancel()
            return cause
        finally:
            # Not the whole group: a callback of the last term may be what stops the member.
            for token in started:
                parts.tasks.cancel(token)

    async def _register_again(self) -> None:
        parts, told = self._parts, ""
        while not self.stopping:
            try:
                await self.pulse.register()
                return
            except StoreUnavailableError:
                pass
            except Exception as error:
                # Once for each reason: it may stay for days.
                if told != type(error).__name__:
                    told = type(error).__name__
                    taken = isinstance(error, DuplicateMemberError)
                    parts.on_failure("id_taken_over" if taken else "register_failed", error)
            await parts.clock.sleep(min(REGISTER_RETRY_S, parts.timing.heartbeat_interval))

    # The parts of an incarnation.

    def _make_pulse(self) -> Pulse:
        parts, options = self._parts, self._options

        def leading() -> Leading:
            leads = self.leadership is not None and self.leadership.leads
            failing = tuple(work.name for work in self._works() if work.failures > 1)
            return Leading(self.highest_epoch, leads, failing if leads else ())

        return Pulse(
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

    def _make_heart(self, leadership: Leadership) -> Heart:
        parts, pulse = self._parts, self.pulse

        def on_beat(took_s: float, failure: Exception | None) -> None:
            if failure is None:
                self._grace.reached(parts.clock.boot_time())
            self._teller.beat(pulse.sequence, took_s, failure)

        return Heart(
            pulse,
            parts.timing,
            parts.clock,
            parts.random,
            parts.contention,
            lease=leadership,
            on_time=parts.overheard,
            on_beat=on_beat,
            on_contention=self._teller.contention,
            on_isolated=self._teller.isolated,
        )

    def _make_runner(self) -> TermRunner:
        def unhealthy() -> None:
            leadership = self.leadership
            if leadership is not None and leadership.election.standbys:
                leadership.handle(messages.Resign("unhealthy"))

        parts = self._parts
        return TermRunner(self._works, parts.tasks.group("terms"), parts.on_failure, unhealthy)

    def _make_leadership(self) -> Leadership:
        parts, pulse = self._parts, self.pulse
        capabilities = parts.patient.capabilities
        watches = capabilities.blocking_wait or not capabilities.cross_host
        election = Election(
            parts.member_id,
            pulse.incarnation,
            parts.timing,
            parts.clock.boot_time(),
            uniform=parts.random.uniform,
            eligible=self._options.eligible,
            highest_epoch=self._known_epoch,
            skip_cold_start=self._options.skip_cold_start,
            looks_every_s=parts.timing.heartbeat_interval * LOOKS_BESIDE_BEATS if watches else None,
        )
        election.store_offset = parts.store_time() - parts.clock.boot_time()
        return Leadership(
            election,
            parts.urgent,
            parts.patient,
            parts.codec,
            parts.clock,
            parts.tasks.group(f"incarnation {pulse.incarnation}"),
            alive=lambda: pulse.alive,
            rank=self._rank,
            runner=self._make_runner(),
            tell=self._teller.election,
            standbys=lambda: self._monitor.standbys,
            live=lambda: self._monitor.statistics.coordinators_monitored,
            signing_key=lambda: self._monitor.signing_key,
            pace=lambda: self._pacer.pace,
            healthy=lambda: self._fitness.fit,
            on_lease=self._pacer.heard,
            on_renewed=self._renewed,
            on_failure=parts.on_failure,
            watches=watches,
        )

    def _renewed(self, lease_left: float) -> None:
        parts = self._parts
        ratio = parts.contention.cycle(0.0, 0.0, lease_left, parts.clock.now())
        if ratio is not None:
            self._teller.contention((LOCAL_LIMIT - lease_left) * parts.timing.lease_ttl, ratio)

    async def _rank(self) -> int:
        lease = self.leadership.election.seen_lease if self.leadership is not None else None
        return await rank_of(self._parts, lease.worker_id if lease is not None else "")


def _cause(ended: Sequence[asyncio.Task[object]]) -> Exception:
    """What the first of them that ended for a reason gave, or raised."""
    for task in ended:
        if not task.done() or task.cancelled():
            continue
        cause = task.exception() or task.result()
        if isinstance(cause, Exception):
            return cause
    return NotRunningError("the coordinator has stopped")
