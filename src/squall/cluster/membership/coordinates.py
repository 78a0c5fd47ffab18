"""Network coordinates (Vivaldi): predict the round trip to a member that this one never pinged.

Each member moves its own point after every measured round trip, by the difference between measured
and predicted time. Distance = distance of the points + both heights; a height stands for the delay
of a member's own access link. Times are seconds. A measured round trip always beats a predicted
one; coordinates serve only where there is no measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from struct import Struct
from struct import error as StructError

DIMENSIONS = 4
HEIGHT_MIN_S = 10e-6
ERROR_START = 1.0
ERROR_MAX = 1.5
ERROR_GAIN = 0.25
POSITION_GAIN = 0.25
"""The gains and limits are those of Serf (ANCHORS A.4: CE and CC 0.25, error at most 1.5)."""
REACH_S = 10.0
"""No honest point is farther from the origin, or higher, than this."""
STEP_MAX_S = 0.5
"""The farthest that one sample moves a point, so that no peer can throw it away."""

_WIRE = Struct(">6fH")
"""Position, height, error, samples: 26 bytes."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    position: tuple[float, ...]
    height_s: float
    error: float
    """Relative error of its predictions; 1 at the start."""
    samples: int

    def pack(self) -> bytes:
        return _WIRE.pack(*self.position, self.height_s, self.error, min(self.samples, 0xFFFF))

    def distance_s(self, other: Coordinate) -> float:
        """The predicted round trip between the two members."""
        return math.dist(self.position, other.position) + self.height_s + other.height_s

    def error_s(self, other: Coordinate) -> float:
        """How far `distance_s` may be off."""
        return (self.error + other.error) / 2 * self.distance_s(other)


def unpack(data: bytes) -> Coordinate | None:
    """None for a point that no honest member sends: it must not move this member's (CG-11)."""
    try:
        *position, height, error, samples = _WIRE.unpack(data)
    except StructError:
        return None
    if not all(abs(axis) <= REACH_S for axis in position):  # also false for NaN
        return None
    if not (0.0 <= height <= REACH_S and 0.0 <= error <= ERROR_MAX):
        return None
    return Coordinate(tuple(position), height, error, samples)


class Vivaldi:
    """This member's own coordinate."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.own = Coordinate((0.0,) * DIMENSIONS, HEIGHT_MIN_S, ERROR_START, 0)

    def update(self, peer: Coordinate, rtt_s: float) -> float | None:
        """Moves the own point after a measured round trip. Returns the relative error of the
        prediction, or None for a sample that was not used."""
        if not 0.0 < rtt_s <= REACH_S:
            return None
        own = self.own
        predicted = own.distance_s(peer)
        miss = abs(predicted - rtt_s) / rtt_s
        # A member that is surer of its point than the peer is of its own moves less.
        total = own.error + peer.error
        weight = own.error / total if total > 0.0 else 0.5
        error = own.error + ERROR_GAIN * weight * (miss - own.error)
        step = POSITION_GAIN * weight * (rtt_s - predicted)
        step = min(max(step, -STEP_MAX_S), STEP_MAX_S)
        direction, apart = self._direction(peer)
        position = tuple(
            min(max(axis + step * unit, -REACH_S), REACH_S)
            for axis, unit in zip(own.position, direction, strict=True)
        )
        height = own.height_s
        if apart > 0.0:
            height += step * (own.height_s + peer.height_s) / apart
        height = min(max(height, HEIGHT_MIN_S), REACH_S)
        error = min(max(error, 0.0), ERROR_MAX)
        self.own = Coordinate(position, height, error, own.samples + 1)
        return miss

    def _direction(self, peer: Coordinate) -> tuple[list[float], float]:
        """The unit vector from the peer to this member; at the same place, any."""
        away = [a - b for a, b in zip(self.own.position, peer.position, strict=True)]
        apart = math.hypot(*away)
        if apart > 1e-6:
            return [axis / apart for axis in away], apart
        away = [self._rng.uniform(-1.0, 1.0) for _ in range(DIMENSIONS)]
        length = math.hypot(*away) or 1.0
        return [axis / length for axis in away], 0.0
