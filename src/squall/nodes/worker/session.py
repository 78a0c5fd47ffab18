"""The session of a worker, as a pure core: what it should run against what it runs.

`request` tells all that this boot runs or holds. `answer` takes what the primary wants and
gives the effects; the host's news come in through the `on_...` calls, time through `tick`.

    preparing ──► ready ──► running ──► ended ──► (freed)
        └───────────┴──────────┴──────► refused ─► (freed)

What must hold, whatever is lost, repeated or late:

- Answers below the highest (epoch, view) or (epoch, committed) seen change nothing.
- A lease counts from the moment its request was sent, in both clocks, and never shrinks.
- An attempt begins only under a valid lease, by an answer whose round trip was short.
- Absence never means stop. What was stopped, freed or never known leaves a tombstone for
  its share up to that attempt, so that no late preparation brings it back.
- An attempt that does not end after a stop, or goes on after its lease, is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from squall.engine.protocol import Adjust
from squall.nodes.identity import AttemptKey, JobId, ShareKey
from squall.nodes.messages import (
    AdjustOrder,
    AttemptStatus,
    Counters,
    GoOrder,
    JobBrief,
    MoreTime,
    Phase,
    Preparation,
    SessionAnswer,
    SessionRequest,
    StopOrder,
)
from squall.nodes.timers import Timers
from squall.nodes.worker.effects import (
    AskNow,
    Begin,
    Change,
    Effect,
    Fetch,
    Forget,
    Halt,
    Kill,
    Register,
    SetLease,
)
from squall.nodes.worker.host import Refusal

LIVE: tuple[Phase, ...] = ("preparing", "ready", "running")
LEASE_SLACK_S = 1.0
"""A core process that has not told its end so long after its lease is killed."""
GAP_S = 1.0
TEXT_MAX = 2000
"""Characters of a reason: a session request is a control message."""
SENT_KEPT = 64
TOMBSTONES_MAX = 10_000
ASK_EARLY_S = 5.0
"""Before a preparation would be given up: several sessions, of which some may be lost."""


@dataclass
class Held:
    """One attempt that this boot runs, or whose record it keeps."""

    phase: Phase = "preparing"
    grace_s: float = 0.0
    timeout_s: float = 0.0
    continues: bool = False
    """It runs on when its manager is lost."""
    lease_min_s: float = 0.0
    """Once it runs, its leases are at least so long: its job asks for it."""
    granted_until: float = -inf
    overlaps: bool = False
    """It ran on beyond what was granted: another attempt may have run beside it."""
    lease_until: float = -inf
    counters: Counters = field(default_factory=Counters)
    elapsed_s: float = 0.0
    adjust_seq: int = 0
    refusal: Refusal | None = None
    text: str = ""
    note: str = ""
    """Why nothing of it is executed although it runs."""
    record: str = ""
    record_size: int = 0
    kill_at: float = inf
    stop_at: float = inf
    """When its longest execution is over."""
    dropped: bool = False
    """Its record is of no use to anyone."""
    halted: bool = False
    halted_now: bool = False
    steps: int = 0
    """Of its preparation, that are done."""
    due: float = inf
    """When its preparation is given up, as far as this boot knows."""
    asked_work: int = -1
    """How far it was when it last asked for longer and got nothing."""

    def status(self, key: AttemptKey, work: int = 0, wants_more: bool = False) -> AttemptStatus:
        refusal = self.refusal
        return AttemptStatus(
            key=key,
            phase=self.phase,
            counters=self.counters,
            elapsed_s=self.elapsed_s,
            adjust_seq=self.adjust_seq,
            text=(refusal.text if refusal is not None else self.text or self.note)[:TEXT_MAX],
            exit_code=refusal.exit_code if refusal is not None else 0,
            retryable=refusal.retryable if refusal is not None else False,
            record=self.record,
            record_size=self.record_size,
            work=work,
            wants_more_s=wants_more,
        )


class WorkerSession:
    """Of one boot. `arrived`: bytes that it has fetched so far, of whatever."""

    def __init__(
        self,
        node: str,
        boot: str,
        cores: int,
        timers: Timers,
        arrived: Callable[[], int] = lambda: 0,
    ) -> None:
        self._arrived = arrived
        self._node = node
        self._boot = boot
        self._cores = cores
        self._timers = timers
        self.held: dict[AttemptKey, Held] = {}
        self.draining = False
        self.interval_s = timers.session_interval_s
        self.telemetry_interval_s = 1.0
        self.drained = False
        """The primary said so: nothing of this worker is needed any more."""
        self._ticked = inf
        self._patient_until = -inf
        self._fence = (-1, -1)
        self._seen = (-1, -1)
        self._sequence = 0
        self._sent: dict[int, tuple[float, float]] = {}
        self._round_trip_s = 0.0
        self._tombstones: dict[ShareKey, int] = {}
        self._unknown: dict[AttemptKey, int] = {}
        """Attempts that the primary named and nobody has here: with the request that said so."""
        self._briefs: dict[JobId, JobBrief] = {}

    # What goes out.

    def request(self, now: float, boot_now: float) -> SessionRequest:
        self._sequence += 1
        self._sent[self._sequence] = (now, boot_now)
        self._sent.pop(self._sequence - SENT_KEPT, None)
        statuses = [self._status(key, held, now) for key, held in self.held.items()]
        for key in self._unknown:
            self._unknown[key] = self._unknown[key] or self._sequence
            statuses.append(AttemptStatus(key=key, phase="unknown"))
        return SessionRequest(
            node=self._node,
            boot=self._boot,
            sequence=self._sequence,
            round_trip_s=self._round_trip_s,
            draining=self.draining,
            attempts=statuses,
        )

    def _status(self, key: AttemptKey, held: Held, now: float) -> AttemptStatus:
        """A preparation that will be late asks for longer, if it moved on since it was
        denied."""
        if held.phase != "preparing":
            return held.status(key)
        work = held.steps + self._arrived()
        wants = now >= held.due - ASK_EARLY_S and work > held.asked_work and not held.halted
        return held.status(key, work, wants)

    # What comes in.

    def answer(self, answer: SessionAnswer, now: float) -> list[Effect]:
        sent = self._sent.pop(answer.sequence, None)
        fence, seen = (answer.epoch, answer.view), (answer.epoch, answer.committed)
        if sent is None or fence < self._fence or seen < self._seen:
            return []
        self._fence, self._seen = fence, seen
        round_trip_s = self._round_trip_s = max(now - sent[0], 0.0)
        if answer.register:
            return [Register()]
        self.interval_s = answer.interval_s
        self.telemetry_interval_s = answer.telemetry_interval_s
        self.drained = answer.drained
        for key in [k for k, told in self._unknown.items() if 0 < told <= answer.sequence]:
            del self._unknown[key]
        effects: list[Effect] = []
        for brief in answer.jobs:
            self._briefs[brief.job] = brief
        for preparation in answer.prepare:
            effects += self._prepare(preparation, now)
        for more in answer.more_time:
            self._more_time(more)
        for key in answer.granted:
            effects += self._grant(key, sent, answer.lease_s)
        for order in answer.adjust:
            effects += self._adjust(order)
        for order in answer.go:
            effects += self._go(order, round_trip_s, now)
            if order.key in answer.granted:
                # What runs has longer leases, if its job asks for them: from the first on.
                effects += self._grant(order.key, sent, answer.lease_s)
        for order in answer.stop:
            effects += self._stop(order, now)
        for key in answer.free:
            effects += self._free(key)
        self._forget_briefs()
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Ladders and limits; call it a few times a second."""
        effects: list[Effect] = []
        if now - self._ticked > GAP_S:
            # This process stood still: what its cores have told meanwhile is read first.
            self._patient_until = now + LEASE_SLACK_S
        self._ticked = now
        for key, held in self.held.items():
            if held.phase not in LIVE:
                continue
            if held.continues and held.phase == "running" and now > held.granted_until:
                held.overlaps = True
            if now < self._patient_until:
                continue
            if now >= held.kill_at:
                held.kill_at = inf
                effects.append(Kill(key, held.text or "did not stop"))
            elif now >= held.stop_at:
                held.stop_at = inf
                limit_s = held.timeout_s
                effects += self._halt(key, held, True, f"longer than its {limit_s:g} s", now)
            elif held.lease_until + LEASE_SLACK_S < now and held.lease_until > -inf:
                held.lease_until = -inf
                effects.append(Kill(key, "lease ended"))
        return effects

    def stop_all(self, now: float, why: str) -> list[Effect]:
        """This boot ends: every attempt is stopped, its record is delivered if time allows."""
        effects: list[Effect] = []
        for key, held in self.held.items():
            if held.phase in LIVE and not held.halted:
                effects += self._halt(key, held, True, why, now)
        return effects

    def adopt(self, key: AttemptKey, record: str, size: int) -> None:
        """A complete record that a former boot left behind: held until it is freed."""
        self.held[key] = Held(phase="ended", record=record, record_size=size)
        self._bury(key)

    @property
    def live(self) -> int:
        return sum(held.phase in LIVE for held in self.held.values())

    # News of the host.

    def on_step(self, key: AttemptKey) -> None:
        """A part of its preparation is done."""
        held = self.held.get(key)
        if held is not None:
            held.steps += 1

    def on_ready(self, key: AttemptKey) -> list[Effect]:
        held = self.held.get(key)
        if held is None or held.phase != "preparing":
            return []
        held.phase = "ready"
        return [AskNow()]

    def on_refused(self, key: AttemptKey, refusal: Refusal) -> list[Effect]:
        held = self.held.get(key)
        if held is None or held.phase not in LIVE:
            return []
        held.phase, held.refusal = "refused", refusal
        return [AskNow()] if not held.dropped else self._free(key)

    def on_counted(self, key: AttemptKey, counters: Counters, elapsed_s: float) -> None:
        held = self.held.get(key)
        if held is not None:
            held.counters, held.elapsed_s = counters, elapsed_s

    def on_held(self, key: AttemptKey, why: str) -> None:
        held = self.held.get(key)
        if held is not None and held.phase == "running":
            held.note = why

    def on_ended(
        self, key: AttemptKey, cut: str, record: str, size: int, elapsed_s: float
    ) -> list[Effect]:
        """Its record is kept under this name."""
        held = self.held.get(key)
        if held is None or held.phase not in LIVE:
            return []
        held.phase, held.text, held.note = "ended", cut, ""
        held.record, held.record_size, held.elapsed_s = record, size, elapsed_s
        return [AskNow()] if not held.dropped else self._free(key)

    # Orders.

    def _more_time(self, more: MoreTime) -> None:
        held = self.held.get(more.key)
        if held is not None and more.denial:
            held.asked_work = held.steps + self._arrived()
        elif held is not None:
            held.due += more.granted_s

    def _prepare(self, preparation: Preparation, now: float) -> list[Effect]:
        key = preparation.key
        if key in self.held:
            return []
        if key.attempt <= self._tombstones.get(key.of, 0):
            self._unknown.setdefault(key, 0)
            return [AskNow()]
        brief = self._briefs.get(key.job)
        if brief is None:
            return [AskNow()]
        effects: list[Effect] = []
        for other, held in list(self.held.items()):
            if other.of != key.of:
                continue
            if other.attempt > key.attempt:
                return []
            if held.phase in LIVE:
                # A later attempt exists, so this one was committed as lost or over.
                held.dropped = True
                effects.append(Kill(other, "superseded"))
        held = self.held[key] = Held(
            grace_s=preparation.spec.profile.grace_s,
            timeout_s=preparation.timeout_s,
            continues=brief.on_control_loss == "continue",
            lease_min_s=brief.options.lease_min_s,
            due=now + preparation.ready_within_s if preparation.ready_within_s else inf,
        )
        refusal = self._cannot(preparation)
        if refusal is not None:
            held.phase, held.refusal = "refused", refusal
            return [*effects, AskNow()]
        return [*effects, Fetch(preparation, brief), AskNow()]

    def _cannot(self, preparation: Preparation) -> Refusal | None:
        text = ""
        if self.draining:
            text = f"worker {self._node} drains and takes no new work"
        elif not 0 <= preparation.slot < self._cores:
            text = f"worker {self._node} has no core {preparation.slot}, only {self._cores}"
        return Refusal(text=text, exit_code=1, retryable=True) if text else None

    def _grant(self, key: AttemptKey, sent: tuple[float, float], lease_s: float) -> list[Effect]:
        held = self.held.get(key)
        if held is None:
            # Its preparation comes with a later answer; who must not have it is told Stop.
            return []
        if held.phase == "running":
            lease_s = max(lease_s, held.lease_min_s)
        if held.phase not in LIVE or held.dropped or sent[0] + lease_s <= held.granted_until:
            return []
        held.granted_until = sent[0] + lease_s
        if held.continues:
            fresh, held.lease_until = held.lease_until < inf, inf
            return [SetLease(key, inf, inf)] if fresh else []
        held.lease_until = held.granted_until
        return [SetLease(key, held.lease_until, sent[1] + lease_s)]

    def _go(self, order: GoOrder, round_trip_s: float, now: float) -> list[Effect]:
        held = self.held.get(order.key)
        if held is None:
            return self._is_unknown(order.key)
        if held.phase != "ready" or held.halted:
            return []
        if round_trip_s >= self._timers.go_round_trip_max_s or held.lease_until <= now:
            return [AskNow()]
        held.phase = "running"
        held.elapsed_s = max(order.elapsed_s + round_trip_s / 2, 0.0)
        if held.timeout_s:
            held.stop_at = now + held.timeout_s
        half_s = round_trip_s / 2
        return [Begin(order.key, order.elapsed_s + half_s, order.run_elapsed_s + half_s)]

    def _adjust(self, order: AdjustOrder) -> list[Effect]:
        effects: list[Effect] = []
        for key, held in self.held.items():
            same = (key.job, key.workflow) == (order.job, order.workflow)
            if same and held.phase in LIVE and order.adjust_seq > held.adjust_seq:
                held.adjust_seq = order.adjust_seq
                load = Adjust(paused=order.paused, rate_per_s=order.rate_per_s, vus=order.vus)
                effects.append(Change(key, load))
        return effects

    def _stop(self, order: StopOrder, now: float) -> list[Effect]:
        held = self.held.get(order.key)
        if held is None:
            return self._is_unknown(order.key)
        if held.phase not in LIVE:
            return self._free(order.key) if order.drop else []
        held.dropped = held.dropped or order.drop
        return self._halt(order.key, held, order.now or order.drop, order.why or "stopped", now)

    def _halt(
        self, key: AttemptKey, held: Held, at_once: bool, why: str, now: float
    ) -> list[Effect]:
        """The first rung of the ladder; `tick` climbs the last."""
        grace_s = 0.0 if at_once else held.grace_s
        kill_at = now + grace_s + self._timers.stop_grace_s
        if held.halted and (held.halted_now or not at_once):
            return []
        held.kill_at, held.halted = min(held.kill_at, kill_at), True
        held.halted_now = at_once
        held.text = held.text or why
        return [Halt(key, at_once, why)]

    def _free(self, key: AttemptKey) -> list[Effect]:
        held = self.held.get(key)
        if held is not None and held.phase in LIVE:
            # Committed as over while it runs here: it has no record that anyone awaits.
            held.dropped = True
            return [Kill(key, "superseded")]
        self.held.pop(key, None)
        self._bury(key)
        return [Forget(key)]

    def _is_unknown(self, key: AttemptKey) -> list[Effect]:
        """The tombstone comes first: from here on this attempt never runs here."""
        self._bury(key)
        self._unknown.setdefault(key, 0)
        return [AskNow()]

    def _bury(self, key: AttemptKey) -> None:
        share = key.of
        self._tombstones[share] = max(self._tombstones.pop(share, 0), key.attempt)
        while len(self._tombstones) > TOMBSTONES_MAX:
            del self._tombstones[next(iter(self._tombstones))]

    def _forget_briefs(self) -> None:
        needed = {key.job for key in self.held}
        for job in [job for job in self._briefs if job not in needed]:
            del self._briefs[job]
