"""The score of a datacenter for a job; lower is better.

    score = (rtt + 50 ms) x load x quality x cool-down

`rtt` is the upper bound of the measured round trip. `load` rises from 1 with the cores that are
taken, the jobs that wait, the managers that are not heard and their overload; it never falls when
one of these rises. `quality` is above 1 while the round trip or the report is doubted.
"""

from __future__ import annotations

from dataclasses import dataclass

from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.settings import RoutingSettings

OVERLOAD_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DatacenterStatus:
    """A datacenter at one moment, as the choice for a job sees it."""

    name: str
    health: Health
    reason: str = ""
    suspected: bool = False
    """No manager answered the last probes: it gets a job only if no other can."""
    held: bool = False
    """It fell silent together with most others: it gets no job until that is resolved."""
    cores: int = 0
    free: int = 0
    """Less the cores of jobs that this gate just sent there."""
    queued: int = 0
    managers_heard: int = 0
    managers_total: int = 0
    overload: int = 0
    rtt_ms: float | None = None
    """The upper bound of the round trip; None: not measured yet."""
    samples: int = 0
    report_age_s: float = 0.0
    cool_down: float = 1.0
    cool_down_left_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The parts of a score, so that it can be explained."""

    rtt_ms: float
    offset_ms: float
    load: float
    quality: float
    cool_down: float = 1.0

    @property
    def total(self) -> float:
        return (self.rtt_ms + self.offset_ms) * self.load * self.quality * self.cool_down


def score_of(status: DatacenterStatus, settings: RoutingSettings) -> Score:
    rtt_ms = status.rtt_ms
    if rtt_ms is None:
        rtt_ms = settings.rtt_default_ms + settings.rtt_deviation_default_ms
    return Score(
        rtt_ms=min(max(rtt_ms, settings.rtt_min_ms), settings.rtt_max_ms),
        offset_ms=settings.rtt_offset_ms,
        load=load_factor(status, settings),
        quality=quality_penalty(status, settings),
        cool_down=status.cool_down,
    )


def load_factor(status: DatacenterStatus, settings: RoutingSettings) -> float:
    """From 1 to 5: each of its four terms adds at most 1."""
    used = 1.0 - _clamped(status.free / max(status.cores, 1))
    waiting = max(status.queued, 0)
    queue = waiting / (waiting + settings.queue_smoothing)
    unheard = 1.0 - _clamped(status.managers_heard / max(status.managers_total, 1))
    return 1.0 + used + queue + unheard + _clamped(status.overload / OVERLOAD_MAX)


def quality_penalty(status: DatacenterStatus, settings: RoutingSettings) -> float:
    """The deviation of the round trip is in its upper bound already and does not count twice."""
    measured = _clamped(status.samples / settings.samples_wanted)
    late_s = max(status.report_age_s - settings.stale_s, 0.0)
    fresh = 1.0 - _clamped(late_s / settings.unreachable_s)
    return 1.0 + settings.quality_weight * (1.0 - measured * fresh)


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)
