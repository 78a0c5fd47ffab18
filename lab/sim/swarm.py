"""Which faults a seed gets, how often and how hard: swarm testing.

A run with every fault at once hides bugs that need some faults to be absent, so each
seed draws its own subset of the kinds that a scenario allows, and its own ranges. The
ranges reach those of TigerBeetle's simulator: loss to 30 %, repeats to 50 %, one-way
delays to 100 ms, a slow disk to seconds.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from lab.sim.disk.disk import DiskProfile
from lab.sim.network.links import LinkProfile


class Fault(StrEnum):
    """Kinds of faults, in the order in which they are drawn."""

    CRASH = "crash"
    KILL = "kill"
    PAUSE = "pause"
    SUSPEND = "suspend"
    PARTITION = "partition"
    ONE_WAY = "one-way"
    ISOLATE = "isolate"
    SWIZZLE = "swizzle"
    RESET = "reset"
    WALL_JUMP = "wall-jump"
    DRIFT = "drift"
    DELAY = "delay"
    TAIL = "tail"
    LOSS = "loss"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    BANDWIDTH = "bandwidth"
    FRAGMENT = "fragment"
    SLOW_DISK = "slow-disk"
    SYNC_ERROR = "sync-error"
    FULL_DISK = "full-disk"
    BIT_ROT = "bit-rot"
    LOST_DISK = "lost-disk"
    SHUFFLE = "shuffle"


NETWORK = (
    Fault.PARTITION,
    Fault.ONE_WAY,
    Fault.ISOLATE,
    Fault.SWIZZLE,
    Fault.RESET,
    Fault.DELAY,
    Fault.TAIL,
    Fault.LOSS,
    Fault.DUPLICATE,
    Fault.REORDER,
    Fault.BANDWIDTH,
    Fault.FRAGMENT,
)
PROCESS = (Fault.CRASH, Fault.KILL, Fault.PAUSE, Fault.SUSPEND)
CLOCK = (Fault.WALL_JUMP, Fault.DRIFT)
DISK = (Fault.SLOW_DISK, Fault.SYNC_ERROR, Fault.FULL_DISK)
SURVIVABLE = (*PROCESS, *NETWORK, *CLOCK, *DISK, Fault.SHUFFLE)
"""All that a protocol with durable votes and checksums must live through. Bit rot and
lost disks are left to scenarios that repair from peers."""

MEAN_INTERVALS_S: dict[Fault, tuple[float, float]] = {
    Fault.CRASH: (3.0, 30.0),
    Fault.KILL: (3.0, 30.0),
    Fault.PAUSE: (3.0, 30.0),
    Fault.SUSPEND: (8.0, 60.0),
    Fault.PARTITION: (4.0, 40.0),
    Fault.ONE_WAY: (3.0, 30.0),
    Fault.ISOLATE: (4.0, 40.0),
    Fault.SWIZZLE: (8.0, 60.0),
    Fault.RESET: (2.0, 20.0),
    Fault.WALL_JUMP: (5.0, 30.0),
    Fault.BIT_ROT: (5.0, 60.0),
    Fault.LOST_DISK: (20.0, 120.0),
}
"""Kinds that happen now and then: the range from which a seed draws the mean interval."""


@dataclass(frozen=True)
class Swarm:
    """The draw of one seed."""

    faults: frozenset[Fault]
    intervals_s: dict[Fault, float]
    longest_s: float
    """The longest duration of a fault that ends by itself."""
    links: LinkProfile
    disk: DiskProfile
    drift: float
    """Clock rates lie within 1 - drift .. 1 + drift."""

    def __str__(self) -> str:
        kinds = " ".join(kind for kind in Fault if kind in self.faults)
        return f"{kinds or 'no faults'}; longest {self.longest_s:.1f} s"


def draw_swarm(
    draw: random.Random,
    allowed: Collection[Fault],
    *,
    longest_s: tuple[float, float] = (1.0, 12.0),
    drift: float = 0.024,
    pace: float = 1.0,
) -> Swarm:
    """Each allowed kind is on with a probability that the seed draws too. `drift` is half
    of the 5 % by which the rates of two clocks may differ; with `pace` 2 faults come
    twice as often."""
    share = draw.uniform(0.2, 0.8)
    chosen = frozenset(kind for kind in Fault if kind in allowed and draw.random() < share)
    intervals = {
        kind: draw.uniform(*bounds) / pace
        for kind, bounds in MEAN_INTERVALS_S.items()
        if kind in chosen
    }
    return Swarm(
        chosen,
        intervals,
        draw.uniform(*longest_s),
        _draw_links(draw, chosen),
        _draw_disk(draw, chosen),
        draw.uniform(0.0, drift) if Fault.DRIFT in chosen else 0.0,
    )


def _draw_links(draw: random.Random, chosen: frozenset[Fault]) -> LinkProfile:
    def drawn(kind: Fault, low: float, high: float, otherwise: float = 0.0) -> float:
        value = draw.uniform(low, high)
        return value if kind in chosen else otherwise

    return LinkProfile(
        delay_s=drawn(Fault.DELAY, 0.0, 0.03, 0.0003),
        jitter_s=drawn(Fault.DELAY, 0.0, 0.07, 0.0004),
        tail=drawn(Fault.TAIL, 0.001, 0.05),
        tail_s=draw.uniform(0.05, 2.0),
        loss=drawn(Fault.LOSS, 0.0, 0.3),
        duplicate=drawn(Fault.DUPLICATE, 0.0, 0.5),
        reorder=drawn(Fault.REORDER, 0.0, 0.3),
        reorder_s=draw.uniform(0.01, 0.5),
        bandwidth_bytes_s=drawn(Fault.BANDWIDTH, 20_000.0, 2_000_000.0),
        fragment=drawn(Fault.FRAGMENT, 0.0, 0.9),
        coalesce=drawn(Fault.FRAGMENT, 0.0, 0.5),
        break_after_s=draw.uniform(3.0, 30.0),
    )


def _draw_disk(draw: random.Random, chosen: frozenset[Fault]) -> DiskProfile:
    slow = Fault.SLOW_DISK in chosen
    profile = DiskProfile(
        sync_s=draw.uniform(0.0, 0.02) if slow else 0.001,
        sync_jitter_s=draw.uniform(0.0, 0.1) if slow else 0.002,
        stall=draw.uniform(0.0, 0.01) if slow else 0.0,
        stall_s=draw.uniform(0.1, 5.0),
        sync_error=draw.uniform(0.0, 0.01) if Fault.SYNC_ERROR in chosen else 0.0,
    )
    return profile
