"""The numbers of probes, health and scores, with where each comes from."""

from __future__ import annotations

import msgspec


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's rules for its datacenters. A struct that exists is valid."""

    probe_s: float = 2.0
    """How often each datacenter is asked. Gates x datacenters / this is the rate of probes."""
    probe_timeout_s: float = 5.0
    """Covers round trips of 300 ms and a manager that is late. Longer than `probe_s`: probes
    overlap, so one lost packet does not delay the next probe."""
    misses_max: int = 5
    """Misses in a row until a datacenter is suspected."""
    unreachable_s: float = 30.0
    """From suspected to unreachable."""
    guard_window_s: float = 30.0
    guard_share: float = 0.5
    """If at least this share of the datacenters, and at least two, are suspected within the
    window, the network of the gate is the likely cause."""
    guard_hold_s: float = 60.0
    """Then none of them is called unreachable for at most this long."""
    stale_s: float = 8.0
    """A report older than this makes its datacenter degraded: four probes, and below the 10 s
    after which no job goes to a datacenter that was lost."""

    free_share: float = 0.05
    """A busy datacenter is healthy again when this share of its cores, and at least one, ..."""
    steady_s: float = 3.0
    """... was free for this long. Every better state must last this long before it counts; a
    worse state counts at once."""

    rtt_offset_ms: float = 50.0
    """Added to the round trip in a score. Without it a datacenter 1 ms away would take every job
    before one at 100 ms gets any: load changes a score by at most 5."""
    rtt_default_ms: float = 150.0
    """The round trip of a datacenter that answered, but was not measured yet."""
    rtt_deviation_default_ms: float = 75.0
    rtt_min_ms: float = 1.0
    rtt_max_ms: float = 1000.0
    samples_wanted: int = 5
    """An estimate from fewer round trips is doubted (quality)."""
    queue_smoothing: float = 16.0
    """This many waiting jobs count as much as half of the cores taken."""
    quality_weight: float = 0.5
    spread: float = 0.2
    """Datacenters whose score is at most this much above the best share the jobs."""
    cool_down_s: float = 30.0
    cool_down_factor: float = 3.0
    """The score of a datacenter that just refused a job is multiplied by this, falling to 1."""
    settle_s: float = 2.0
    """After a datacenter accepted a job, its reports count the job's cores from about this long
    on: it is placed by a command of its own."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not value > 0 or value != value:
                raise ValueError(f"{name} must be above 0, not {value}")
        if self.cool_down_factor < 1:
            raise ValueError(f"cool_down_factor must be at least 1, not {self.cool_down_factor}")
        if self.guard_share > 1 or self.free_share > 1:
            raise ValueError("guard_share and free_share must be at most 1")


def fast(settings: RoutingSettings) -> RoutingSettings:
    """The same rules with ten times shorter times, for groups with the timers `fast`."""
    times = {
        name: getattr(settings, name) / 10
        for name in settings.__struct_fields__
        if name.endswith("_s")
    }
    return msgspec.structs.replace(settings, **times)
