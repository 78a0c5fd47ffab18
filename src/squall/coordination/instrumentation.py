"""Turns what the parts of a member report into events, metrics and log lines. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from squall.coordination import events
from squall.coordination.election import messages
from squall.coordination.errors import (
    EpochRegressionError,
    MemberFencedError,
    StateLostError,
    StoreError,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.member_stats import FLAPPING_ADVICE, ChangeRate, MemberStats, RecentValues
from squall.runtime.metrics import Counter, Family

FALSE_DEATH_ADVICE = (
    "this process is alive: if it was not paused, raise heartbeat_ttl over heartbeat_interval, or"
    " look for code that blocks the event loop"
)
# The two windows of a cold start take 20 s by default; the rest is the election.
SLOW_START_S = 25.0
SLOW_START_ADVICE = (
    "shorten cold_start_observation_window and cold_start_preparation_delay, or use"
    " enable_coordinator=False where there is one instance"
)


class NamedPlugin(Protocol):
    """A plugin, as far as its events need it."""

    @property
    def kind(self) -> str: ...


class Instrumentation:
    """Receives the reports of the parts of one member."""

    def __init__(self, parts: MemberParts, plugins: Sequence[NamedPlugin] = ()) -> None:
        self._parts = parts
        self._plugins = plugins
        self._metrics = parts.metrics
        self._families = parts.metrics.families
        self._changes = ChangeRate()
        self._elections = RecentValues()
        self._regressed = False
        self._start_took_s = 0.0
        self._sent = self._metrics.counter(self._families.heartbeats, "sent")
        parts.contention.on_event = self._metrics.counter(self._families.contention).add
        self._follow_breaker()

    def emit(self, event: events.Event) -> None:
        self._parts.bus.emit(event)

    def beat(self, sequence: int, took_s: float, failure: Exception | None) -> None:
        if failure is None:
            if self._parts.debug:
                self._parts.trace("heartbeat_cycle", sequence=sequence, took_s=round(took_s, 6))
            self._sent.add()
            self.emit(events.WorkerHeartbeat(member_id=self._parts.member_id, sequence=sequence))
            return
        self._metrics.counter(self._families.heartbeats, "failed").add()
        self._parts.log.warning(
            "heartbeat_failed",
            sequence=sequence,
            error=str(failure) if isinstance(failure, StoreError) else repr(failure),
        )

    def contention(self, duration_s: float, ratio: float) -> None:
        """Emits the event; `ContentionDetector.on_event` counts all. The ratio of a lease of more
        than three beats may be below that of the two durations: show the higher one."""
        expected = self._parts.timing.heartbeat_interval
        self.emit(
            events.ContentionDetected(
                duration=duration_s, expected=expected, ratio=max(ratio, duration_s / expected)
            )
        )

    def isolated(self, silent_s: float) -> None:
        self.emit(events.Isolated(member_id=self._parts.member_id, silent_s=silent_s))

    def stale_order(self, task_epoch: int, current_epoch: int) -> None:
        self._metrics.counter(self._families.epoch_drift).add()
        self._parts.log.warning("stale_epoch", task_epoch=task_epoch, current_epoch=current_epoch)

    def _fenced(self) -> None:
        """The store refused a write of a deposed leader, or a beat of a dead boot."""
        self._metrics.counter(self._families.fencing_rejections).add()

    def ended(self, cause: Exception, highest_epoch: int) -> None:
        """A boot has ended."""
        if isinstance(cause, MemberFencedError):
            self._fenced()
        if isinstance(cause, StateLostError):
            self.emit(
                events.StateLost(member_id=self._parts.member_id, highest_epoch_seen=highest_epoch)
            )
        self._parts.log.warning("incarnation_ended", reason=str(cause))

    def recovered(self, member_id: str) -> None:
        self._warn("was_declared_dead", FALSE_DEATH_ADVICE)
        self.emit(
            events.CoordinatorRecovered(member_id=member_id, previous_health="dead", was_dead=True)
        )

    def election(self, effect: messages.Effect) -> None:
        """Takes every effect of the election core."""
        metrics, families = self._metrics, self._families
        match effect:
            case messages.WriteLease(purpose=messages.Purpose.STAND):
                metrics.counter(families.elections, "stood").add()
            case messages.WriteFenced():
                self._fenced()
            case messages.WriteLease(purpose=messages.Purpose.RENEW):
                metrics.counter(families.renewals, "sent").add()
                self._parts.trace("lease_renewal", renewals=effect.lease.renewals)
            case messages.Promote(epoch):
                metrics.counter(families.promotions).add()
                metrics.gauge(families.is_leader).set(1.0)
                me = self._parts.member_id
                self.emit(events.CoordinatorPromoted(member_id=me, epoch=epoch))
                for plugin in self._plugins:
                    self.emit(events.PluginPromoted(plugin=plugin.kind, member_id=me, epoch=epoch))
            case messages.Demote(epoch, reason):
                metrics.counter(families.demotions, reason).add()
                metrics.gauge(families.is_leader).set(0.0)
                self.emit(
                    events.CoordinatorDemoted(
                        member_id=self._parts.member_id, epoch=epoch, reason=reason
                    )
                )
            case messages.PhaseChanged(phase, duration_s):
                self._start_took_s += duration_s
                if phase == "ready" and self._start_took_s > SLOW_START_S:
                    self._warn("slow_start", SLOW_START_ADVICE, took_s=round(self._start_took_s))
                self.emit(events.ColdStartPhaseChanged(phase=phase, duration=duration_s))
            case messages.HolderChanged():
                self._holder_changed(effect)
            case messages.Regressed(seen, found):
                if not self._regressed:
                    self._regressed = True
                    self.emit(events.ErrorEvent(error=EpochRegressionError(seen, found)))
            case messages.TermRenewed(epoch, ends_at):
                self.emit(
                    events.EpochRenewed(
                        member_id=self._parts.member_id, epoch=epoch, new_term_ends_at=ends_at
                    )
                )
            case _:
                pass

    def statistics(self, heartbeat_p99_s: float) -> MemberStats:
        families, namespace = self._families, self._metrics.namespace

        def count(family: Family[Counter], *labels: str) -> int:
            return round(self._metrics.counter(family, *labels).value)

        return MemberStats(
            heartbeats_sent=count(families.heartbeats, "sent"),
            heartbeats_failed=count(families.heartbeats, "failed"),
            heartbeat_p99_s=heartbeat_p99_s,
            elections_stood=count(families.elections, "stood"),
            elections_seen=self._elections.count,
            election_p99_s=self._elections.percentile(0.99),
            leader_changes=count(families.leader_changes),
            promotions=count(families.promotions),
            demotions={
                reason: round(counter.value)
                for (name, reason), counter in families.demotions
                if name == namespace
            },
            renewals=count(families.renewals, "sent"),
            fencing_rejections=count(families.fencing_rejections),
            epoch_drift_events=count(families.epoch_drift),
            contention_events=self._parts.contention.events,
        )

    def follow(
        self,
        *,
        p99: Callable[[], float],
        active: Callable[[], float],
        led: Callable[[], float],
        isolated: Callable[[], float],
    ) -> None:
        """Gauges that are computed at each scrape."""
        metrics, families = self._metrics, self._families
        metrics.gauge(families.leader_seen).follow(led)
        metrics.gauge(families.isolated).follow(isolated)
        metrics.gauge(families.heartbeat_p99_s).follow(p99)
        metrics.gauge(families.active_coordinators).follow(active)

    def _follow_breaker(self) -> None:
        parts, metrics, families = self._parts, self._metrics, self._families
        breaker, clock = parts.patient.breaker, parts.clock

        def opened_at() -> float:
            opened = breaker.opened_at
            return 0.0 if opened is None else clock.wall() - (clock.now() - opened)

        metrics.gauge(families.breaker_failures).follow(lambda: float(breaker.unanswered))
        metrics.gauge(families.breaker_opened_at).follow(opened_at)

    def _warn(self, event: str, advice: str, **fields: object) -> None:
        self._parts.log.warning(event, advice=advice, **fields)

    def _holder_changed(self, effect: messages.HolderChanged) -> None:
        lease, now = effect.lease, self._parts.clock.now()
        self._parts.add_to_log(epoch=lease.epoch)
        metrics, families = self._metrics, self._families
        self._regressed = False
        metrics.gauge(families.epoch).set(lease.epoch)
        metrics.gauge(families.lease_ttl_s).set(lease.lease_ttl)
        metrics.counter(families.leader_changes).add()
        if effect.vacant_s is not None:
            self._elections.add(effect.vacant_s)
            metrics.histogram(families.election_s).observe(effect.vacant_s)
        self.emit(
            events.CoordinatorElected(
                member_id=lease.member_id,
                epoch=lease.epoch,
                lease_expires_at=lease.elected_at + lease.lease_ttl,
                active_workers=max(lease.live, len(lease.standbys) + 1),
            )
        )
        for plugin in self._plugins:
            self.emit(
                events.PluginElected(
                    plugin=plugin.kind, member_id=lease.member_id, epoch=lease.epoch
                )
            )
        self.emit(events.LeaderChanged(old=effect.old, new=lease.member_id, epoch=lease.epoch))
        changes = self._changes.note(now)
        if changes is not None:
            self._warn("flapping", FLAPPING_ADVICE, changes=changes)
            self.emit(
                events.Flapping(
                    changes=changes, window=self._changes.window_s, advice=FLAPPING_ADVICE
                )
            )
