"""The session of a worker, as a pure core: compares what it should run with what it runs (R4).

`request` reports all that this boot runs or holds. `answer` takes the orders of the primary and
returns the effects. The host's events come in through the `on_...` calls, time through `tick`.

    preparing ──► ready ──► running ──► ended ──► (freed)
        └───────────┴──────────┴──────► refused ─► (freed)

Invariants, whatever is lost, repeated or late:

- An answer below the highest (epoch, view) or (epoch, committed) seen changes nothing (R4).
- A lease counts from the moment its request was sent, in both clocks, and never shrinks (R5).
- An attempt begins only under a valid lease, by an answer whose round trip was short (R7).
- Absence never means stop. An attempt that was stopped, freed or never known leaves a tombstone
  for its share up to that attempt, so that no late preparation brings it back.
- An attempt that does not end after a stop, or goes on after its lease, is killed (R6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from squall.api.errors import ExitCode
from squall.cluster.protocol.job_keys import AttemptKey, JobId, ShareKey
from squall.cluster.protocol.messages import (
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
    WorkerLoad,
)
from squall.cluster.protocol.timers import Timers
from squall.cluster.worker.effects import (
    AskNow,
    Begin,
    Change,
    Fetch,
    Forget,
    Halt,
    Kill,
    Register,
    SessionEffect,
    SetLease,
)
from squall.engine.core_protocol import Adjust
from squall.engine.process.attempt_events import Refusal

LIVE: tuple[Phase, ...] = ("preparing", "ready", "running")
LEASE_SLACK_S = 1.0
"""A core process that has not reported its end this long after its lease is killed."""
GAP_S = 1.0
"""A longer gap between two ticks means that this process stood still: it ticks every 0.1 s."""
TEXT_MAX = 2000
"""Characters of a reason, because a session request is a control message of bounded size."""
SENT_KEPT = 64
"""Requests whose answer may still come; the answer to an older one is ignored."""
TOMBSTONES_MAX = 10_000
ROUND_TRIPS_KEPT = 8
ROUND_TRIPS_MIN = 3
GO_SLOWER = 1.25
"""How much slower than the fastest of the last round trips an answer may be that starts a share."""
ASK_EARLY_S = 5.0
"""How long before its deadline a preparation asks for more time: some sessions may be lost."""


@dataclass
class HeldAttempt:
    """One attempt that this boot runs, or whose record it keeps."""

    # Only moves forward in the diagram above.
    phase: Phase = "preparing"

    # From its preparation; they never change.
    grace_s: float = 0.0
    timeout_s: float = 0.0

    # The job has `on_control_loss = "continue"`: the attempt goes on without a manager.
    continues: bool = False

    # The least length of its leases once it runs, because its job asks for it.
    lease_min_s: float = 0.0

    # The end of the latest lease that a primary granted; never moves back. `lease_until` is the
    # deadline that the host has: the same, or infinity if `continues`. Minus infinity before
    # the first grant, and again after the kill that followed its end.
    granted_until: float = -inf
    lease_until: float = -inf

    # It ran beyond `granted_until`, so another attempt may have run at the same time. Never
    # cleared.
    overlaps: bool = False

    # The latest report of the host.
    counters: Counters = field(default_factory=Counters)
    elapsed_s: float = 0.0

    # The latest adjustment that the host got; never falls.
    adjust_seq: int = 0

    # Set exactly in phase "refused".
    refusal: Refusal | None = None

    # Why it was stopped; in phase "ended", why it was cut.
    text: str = ""

    # Why it executes nothing although it runs; "" before that and after its end.
    note: str = ""

    # Digest and size of the final record; set exactly in phase "ended".
    record: str = ""
    record_size: int = 0

    # When `tick` kills it: set by a stop, and only brought nearer by another. Infinity again
    # after the kill.
    kill_at: float = inf

    # When it has run for `timeout_s` and is stopped; infinity before it runs.
    stop_at: float = inf

    # No manager awaits its record: it is freed as soon as it ends. Never cleared.
    dropped: bool = False

    # It was stopped; `halted_now`: without grace.
    halted: bool = False
    halted_now: bool = False

    # Steps of its preparation that are done.
    steps: int = 0

    # Its job waits for the gates: it gets no lease until they start it.
    waits_for_gates: bool = False

    # Its code is loaded; never cleared.
    loaded: bool = False

    # When the primary gives up its preparation, as far as this boot knows.
    due: float = inf

    # How far the preparation was when its last request for more time was denied.
    asked_work: int = -1

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
            loaded=self.loaded and self.phase == "preparing",
        )


class WorkerSession:
    """The session of one boot. `arrived` returns the bytes that it has fetched so far, which count
    as progress of preparations."""

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
        self.held: dict[AttemptKey, HeldAttempt] = {}
        # Until when it still runs what it has; None: it does not drain and takes work.
        self.drains_until: float | None = None
        self.interval_s = timers.session_interval_s
        # The epoch whose list of managers this boot has; -1: none yet.
        self.managers_epoch = -1
        # The version of the membership order that this boot follows; 0: none yet, -1: it takes no
        # part.
        self.membership_version = -1
        self.telemetry_interval_s = 1.0
        # The primary needs nothing of this worker any more.
        self.drained = False
        self._ticked = inf
        # After a standstill of this process no attempt is killed before this moment.
        self._kills_from = -inf
        # The highest (epoch, view) and (epoch, committed) of an answer; they never fall.
        self._fence = (-1, -1)
        self._seen = (-1, -1)
        self._sequence = 0
        # When each request was sent, in both clocks: leases count from there (R5).
        self._sent: dict[int, tuple[float, float]] = {}
        # The last ones, the newest at the end.
        self._round_trips_s: deque[float] = deque(maxlen=ROUND_TRIPS_KEPT)
        # The highest attempt of each share that must never run here again.
        self._tombstones: dict[ShareKey, int] = {}
        # Attempts that the primary named and this boot does not have, with the sequence of the
        # first request that reported them as unknown; 0: not reported yet.
        self._unknown: dict[AttemptKey, int] = {}
        self._briefs: dict[JobId, JobBrief] = {}

    # Requests.

    def request(
        self, now: float, boot_now: float, load: WorkerLoad | None = None
    ) -> SessionRequest:
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
            round_trip_s=self._round_trips_s[-1] if self._round_trips_s else 0.0,
            draining=self.drains_until is not None,
            drain_left_s=max(self.drains_until - now, 0.0) if self.drains_until else 0.0,
            load=load,
            attempts=statuses,
            managers_epoch=self.managers_epoch,
            membership=self.membership_version,
        )

    def _status(self, key: AttemptKey, held: HeldAttempt, now: float) -> AttemptStatus:
        """A preparation that will be late asks for more time, if it made progress since its last
        request was denied."""
        if held.phase != "preparing":
            return held.status(key)
        work = held.steps + self._arrived()
        wants = now >= held.due - ASK_EARLY_S and work > held.asked_work and not held.halted
        return held.status(key, work, wants)

    # Answers.

    def answer(self, answer: SessionAnswer, now: float) -> list[SessionEffect]:
        sent = self._sent.pop(answer.sequence, None)
        fence, seen = (answer.epoch, answer.view), (answer.epoch, answer.committed)
        if sent is None or fence < self._fence or seen < self._seen:
            return []
        self._fence, self._seen = fence, seen
        round_trip_s = max(now - sent[0], 0.0)
        self._round_trips_s.append(round_trip_s)
        if answer.register:
            return [Register()]
        self.interval_s = answer.interval_s
        self.telemetry_interval_s = answer.telemetry_interval_s
        self.drained = answer.drained
        for key in [k for k, at in self._unknown.items() if 0 < at <= answer.sequence]:
            del self._unknown[key]
        effects: list[SessionEffect] = []
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
                # It runs now, and `lease_min_s` applies to what runs: extend the lease of this
                # very answer.
                effects += self._grant(order.key, sent, answer.lease_s)
        for order in answer.stop:
            effects += self._stop(order, now)
        for key in answer.free:
            effects += self._free(key)
        self._forget_briefs()
        return effects

    def tick(self, now: float) -> list[SessionEffect]:
        """Applies the kill ladder and the time limits; call it a few times a second."""
        effects: list[SessionEffect] = []
        if now - self._ticked > GAP_S:
            # This process stood still. First read what its cores have reported meanwhile: they
            # may have ended in order.
            self._kills_from = now + LEASE_SLACK_S
        self._ticked = now
        for key, held in self.held.items():
            if held.phase not in LIVE:
                continue
            if held.continues and held.phase == "running" and now > held.granted_until:
                held.overlaps = True
            if now < self._kills_from:
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

    def stop_all(self, now: float, why: str) -> list[SessionEffect]:
        """This boot ends: stops every attempt."""
        effects: list[SessionEffect] = []
        for key, held in self.held.items():
            if held.phase in LIVE and not held.halted:
                effects += self._halt(key, held, True, why, now)
        return effects

    def adopt(self, key: AttemptKey, record: str, size: int) -> None:
        """Holds a complete record that a former boot left, until it is freed."""
        self.held[key] = HeldAttempt(phase="ended", record=record, record_size=size)
        self._add_tombstone(key)

    @property
    def live(self) -> int:
        return sum(held.phase in LIVE for held in self.held.values())

    # Events of the host.

    def on_step(self, key: AttemptKey) -> None:
        """A step of the preparation is done."""
        held = self.held.get(key)
        if held is not None:
            held.steps += 1

    def on_loaded(self, key: AttemptKey) -> list[SessionEffect]:
        """Reports it at once if the gates wait for it; otherwise users open next, and `on_ready`
        follows."""
        held = self.held.get(key)
        if held is None or held.loaded:
            return []
        held.loaded = True
        return [AskNow()] if held.waits_for_gates and held.phase == "preparing" else []

    def on_ready(self, key: AttemptKey) -> list[SessionEffect]:
        held = self.held.get(key)
        if held is None or held.phase != "preparing":
            return []
        held.phase = "ready"
        return [AskNow()]

    def on_refused(self, key: AttemptKey, refusal: Refusal) -> list[SessionEffect]:
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
    ) -> list[SessionEffect]:
        """The attempt is over and its record is in the outbox."""
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

    def _prepare(self, preparation: Preparation, now: float) -> list[SessionEffect]:
        key = preparation.key
        if key in self.held:
            return []
        if key.attempt <= self._tombstones.get(key.of, 0):
            self._unknown.setdefault(key, 0)
            return [AskNow()]
        brief = self._briefs.get(key.job)
        if brief is None:
            return [AskNow()]
        effects: list[SessionEffect] = []
        for other, held in list(self.held.items()):
            if other.of != key.of:
                continue
            if other.attempt > key.attempt:
                return []
            if held.phase in LIVE:
                # A later attempt exists only after this one was committed as lost or over.
                held.dropped = True
                effects.append(Kill(other, "superseded"))
        held = self.held[key] = HeldAttempt(
            grace_s=preparation.spec.profile.grace_s,
            timeout_s=preparation.timeout_s,
            continues=brief.on_control_loss == "continue",
            lease_min_s=brief.options.lease_min_s,
            due=now + preparation.ready_within_s if preparation.ready_within_s else inf,
            waits_for_gates=preparation.held,
        )
        refusal = self._cannot(preparation)
        if refusal is not None:
            held.phase, held.refusal = "refused", refusal
            return [*effects, AskNow()]
        return [*effects, Fetch(preparation, brief), AskNow()]

    def _cannot(self, preparation: Preparation) -> Refusal | None:
        text = ""
        if self.drains_until is not None:
            text = f"worker {self._node} is draining and takes no new work"
        elif not 0 <= preparation.slot < self._cores:
            text = f"worker {self._node} has no core {preparation.slot}, only {self._cores}"
        return Refusal(text=text, exit_code=ExitCode.INTERNAL, retryable=True) if text else None

    def _grant(
        self, key: AttemptKey, sent: tuple[float, float], lease_s: float
    ) -> list[SessionEffect]:
        held = self.held.get(key)
        if held is None:
            # Its preparation comes with a later answer. If it must not run here, the primary
            # sends a stop that names it.
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

    def _go(self, order: GoOrder, round_trip_s: float, now: float) -> list[SessionEffect]:
        held = self.held.get(order.key)
        if held is None:
            return self._is_unknown(order.key)
        if held.phase != "ready" or held.halted:
            return []
        if round_trip_s >= self._go_round_trip_max_s() or held.lease_until <= now:
            return [AskNow()]
        held.phase = "running"
        held.elapsed_s = max(order.elapsed_s + round_trip_s / 2, 0.0)
        if held.timeout_s:
            held.stop_at = now + held.timeout_s
        half_s = round_trip_s / 2
        return [Begin(order.key, order.elapsed_s + half_s, order.run_elapsed_s + half_s)]

    def _go_round_trip_max_s(self) -> float:
        """An answer that took long says little about the time at which it was given (R7). On a
        link that is always slow no answer is faster, and its delay is the same both ways."""
        longest_s = self._timers.go_round_trip_max_s
        if len(self._round_trips_s) < ROUND_TRIPS_MIN:
            return longest_s
        return max(longest_s, GO_SLOWER * min(self._round_trips_s))

    def _adjust(self, order: AdjustOrder) -> list[SessionEffect]:
        effects: list[SessionEffect] = []
        for key, held in self.held.items():
            same = (key.job, key.workflow) == (order.job, order.workflow)
            if same and held.phase in LIVE and order.adjust_seq > held.adjust_seq:
                held.adjust_seq = order.adjust_seq
                load = Adjust(paused=order.paused, rate_per_s=order.rate_per_s, vus=order.vus)
                effects.append(Change(key, load))
        return effects

    def _stop(self, order: StopOrder, now: float) -> list[SessionEffect]:
        held = self.held.get(order.key)
        if held is None:
            return self._is_unknown(order.key)
        if held.phase not in LIVE:
            return self._free(order.key) if order.drop else []
        held.dropped = held.dropped or order.drop
        return self._halt(order.key, held, order.now or order.drop, order.why or "stopped", now)

    def _halt(
        self, key: AttemptKey, held: HeldAttempt, at_once: bool, why: str, now: float
    ) -> list[SessionEffect]:
        """Stops an attempt: the first step of the kill ladder; `tick` takes the last."""
        grace_s = 0.0 if at_once else held.grace_s
        kill_at = now + grace_s + self._timers.stop_grace_s
        if held.halted and (held.halted_now or not at_once):
            return []
        held.kill_at, held.halted = min(held.kill_at, kill_at), True
        held.halted_now = at_once
        held.text = held.text or why
        return [Halt(key, at_once, why)]

    def _free(self, key: AttemptKey) -> list[SessionEffect]:
        held = self.held.get(key)
        if held is not None and held.phase in LIVE:
            # The log has it as over while it runs here: no manager awaits its record.
            held.dropped = True
            return [Kill(key, "superseded")]
        self.held.pop(key, None)
        self._add_tombstone(key)
        return [Forget(key)]

    def _is_unknown(self, key: AttemptKey) -> list[SessionEffect]:
        """Reports an attempt as unknown. The tombstone comes first, so that it never runs here
        after that report (R4)."""
        self._add_tombstone(key)
        self._unknown.setdefault(key, 0)
        return [AskNow()]

    def _add_tombstone(self, key: AttemptKey) -> None:
        share = key.of
        self._tombstones[share] = max(self._tombstones.pop(share, 0), key.attempt)
        while len(self._tombstones) > TOMBSTONES_MAX:
            del self._tombstones[next(iter(self._tombstones))]

    def _forget_briefs(self) -> None:
        needed = {key.job for key in self.held}
        for job in [job for job in self._briefs if job not in needed]:
            del self._briefs[job]
