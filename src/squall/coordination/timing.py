"""The timing profiles, and the checks that refuse unsafe combinations of their durations.

Every duration is in seconds. A `Timing` that passed `check_timing` guarantees: three beats fit into
a lease and into `heartbeat_ttl`; a member is stale at `heartbeat_ttl` and dead `max_warnings`
checks later, which is exactly `dead_after`; records outlive the decision about them. So one lost
beat never makes a live member dead, and a dead one is always noticed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.value_rules import Rule, check, seconds, whole, wrong
from squall.runtime.backoff import Backoff

Environment = Literal["development", "staging", "production"]
ENVIRONMENTS: tuple[Environment, ...] = ("development", "staging", "production")
# The part of a lease after which its holder stops acting, counted from the send of the last
# successful renewal. The rest covers clocks whose rates differ, and a reply on its way.
LOCAL_LIMIT = 0.8
BEATS_PER_LEASE = 3.0
CLEANUP_PERIOD_S = 300.0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of one profile. All members of a namespace must use the same ones."""

    heartbeat_interval: float = 5.0
    heartbeat_ttl: float = 90.0
    """Age of the last beat, in store time, at which a member is stale."""
    dead_after: float = 120.0
    monitor_interval: float = 10.0
    max_warnings: int = 3
    lease_ttl: float = 15.0
    min_epoch_duration: float = 60.0
    max_epoch_duration: float = 300.0
    cold_start_observation_window: float = 15.0
    cold_start_preparation_delay: float = 5.0
    rank_delay: float = 0.2
    """How long a candidate waits for each member that ranks before it."""
    rank_delay_cap: float = 2.0
    retention: float = 900.0
    """How long a heartbeat record is kept: the stale limit of cleanup and one period of it."""
    work_interval: float = 1.0

    @property
    def local_limit(self) -> float:
        return self.lease_ttl * LOCAL_LIMIT

    @property
    def failover(self) -> float:
        """The longest time without a leader after the leader crashed."""
        return self.lease_ttl + self.heartbeat_interval

    @property
    def retry(self) -> Backoff:
        """Between two tries of a heartbeat, a renewal or a release. It does not grow: at most a
        third of an interval, so that two more tries fit before the next beat."""
        return Backoff(first_s=1.0, factor=1.0, cap_s=self.heartbeat_interval / 3.0)

    @property
    def outage_retry(self) -> Backoff:
        """Between two tries of a registration or a watch while the store does not answer. It does
        not grow: a member must be back within an interval once the store is."""
        return Backoff(first_s=1.0, factor=1.0, cap_s=self.heartbeat_interval)


# What each duration means, for the reference page; a test compares the names.
TIMING_TEXTS = {
    "heartbeat_interval": "between two heartbeats of a member; also between two renewals",
    "heartbeat_ttl": "age of the last heartbeat, in store time, at which a member is stale",
    "dead_after": "age at which it is declared dead: `heartbeat_ttl` and all warnings",
    "monitor_interval": "between two checks of the leader; one warning each",
    "max_warnings": "so many warnings in a row are a death",
    "lease_ttl": "length of the lease; after a crash the next leader waits for its end",
    "min_epoch_duration": "for so long a leader hands over only with `allow_early`",
    "max_epoch_duration": "an unfit leader resigns at the end of it",
    "cold_start_observation_window": "how long the first members look for others",
    "cold_start_preparation_delay": "from the first election to the first work",
    "rank_delay": "how long a candidate waits for each member that ranks before it",
    "rank_delay_cap": "the longest such wait",
    "retention": "how long a heartbeat record is kept",
    "work_interval": "between two calls of the leader's work, unless it names its own",
}
MAY_BE_ZERO = frozenset(
    {
        *("min_epoch_duration", "cold_start_observation_window", "cold_start_preparation_delay"),
        *("rank_delay", "rank_delay_cap"),
    }
)
TIMING_RULES: dict[str, Rule] = {
    name: seconds(example=5.0, least=0.0 if name in MAY_BE_ZERO else 1e-3) for name in TIMING_TEXTS
} | {"max_warnings": whole(1, example=3)}

PROFILES: dict[str, Timing] = {
    "normal": Timing(),
    "small": Timing(heartbeat_interval=3.0, heartbeat_ttl=60.0, dead_after=90.0, lease_ttl=9.0),
    "large": Timing(
        heartbeat_interval=10.0,
        heartbeat_ttl=180.0,
        dead_after=240.0,
        monitor_interval=20.0,
        lease_ttl=30.0,
    ),
    "s3": Timing(heartbeat_interval=30.0, lease_ttl=90.0, work_interval=5.0),
    "fast": Timing(
        heartbeat_interval=0.3,
        heartbeat_ttl=2.0,
        dead_after=3.5,
        monitor_interval=0.5,
        lease_ttl=1.5,
        min_epoch_duration=0.0,
        max_epoch_duration=30.0,
        cold_start_observation_window=0.0,
        cold_start_preparation_delay=0.0,
        rank_delay=0.02,
        rank_delay_cap=0.2,
        retention=900.0,
        work_interval=0.1,
    ),
}
"""`fast` is for tests: it needs `unsafe_timings`."""


def timing_of(profile: str | Timing) -> Timing:
    if isinstance(profile, Timing):
        return profile
    found = PROFILES.get(profile)
    if found is None:
        raise ConfigurationError(
            f"profile is {profile!r}: use one of {', '.join(PROFILES)}, auto, or a Timing"
        )
    return found


def check_timing(
    timing: Timing, *, environment: Environment | None, unsafe_timings: bool = False
) -> None:
    """Raises `ConfigurationError` with the option, its value, the rule and a valid value."""
    if unsafe_timings and environment == "production":
        raise ConfigurationError(
            "unsafe_timings is True: production refuses it; leave it out, or set"
            " environment to 'development'"
        )
    _check_numbers(timing)
    _check_relations(timing)
    if not unsafe_timings:
        try:
            _check_pace(timing)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}; tests may set unsafe_timings=True") from None


def _check_numbers(timing: Timing) -> None:
    for name in timing.__struct_fields__:
        check(name, getattr(timing, name), TIMING_RULES[name])


def _check_relations(timing: Timing) -> None:
    """The rules without which live members are declared dead, or dead ones never; no option lifts
    them."""
    if timing.dead_after < timing.heartbeat_ttl:
        wrong(
            "dead_after",
            timing.dead_after,
            f"it must not be below heartbeat_ttl ({timing.heartbeat_ttl:g}):"
            " live members would be declared dead",
            f"{timing.heartbeat_ttl + timing.max_warnings * timing.monitor_interval:g}",
        )
    needed = timing.heartbeat_ttl + timing.max_warnings * timing.monitor_interval
    if timing.dead_after < needed - 1e-9:
        wrong(
            "dead_after",
            timing.dead_after,
            "it must be heartbeat_ttl + max_warnings x monitor_interval:"
            " live members would be declared dead",
            f"{needed:g}",
        )
    _check_retention(timing, min(CLEANUP_PERIOD_S, timing.dead_after))
    if timing.lease_ttl < 2.0 * timing.heartbeat_interval:
        wrong(
            "lease_ttl",
            timing.lease_ttl,
            "a lease must live through one lost renewal: at least twice heartbeat_interval",
            f"{BEATS_PER_LEASE * timing.heartbeat_interval:g}",
        )
    if timing.min_epoch_duration > timing.max_epoch_duration:
        wrong(
            "min_epoch_duration",
            timing.min_epoch_duration,
            f"it must not be above max_epoch_duration ({timing.max_epoch_duration:g})",
            "60",
        )


def _check_retention(timing: Timing, period_s: float) -> None:
    if timing.retention < timing.dead_after + period_s:
        wrong(
            "retention",
            timing.retention,
            "a record must outlive dead_after and a period of cleanup,"
            " else a death would be invisible",
            f"{timing.dead_after + CLEANUP_PERIOD_S:g}",
        )


def _check_pace(timing: Timing) -> None:
    """The rules that only a test may lift."""
    interval = timing.heartbeat_interval
    if timing.heartbeat_ttl < interval:
        wrong(
            "heartbeat_ttl",
            timing.heartbeat_ttl,
            f"it must not be below heartbeat_interval ({interval:g}): it expires between beats",
            f"{3 * interval:g}",
        )
    if timing.heartbeat_ttl < 3 * interval:
        wrong(
            "heartbeat_ttl",
            timing.heartbeat_ttl,
            f"three beats of heartbeat_interval ({interval:g}) must fit into it",
            f"{3 * interval:g}",
        )
    if interval >= 60:
        wrong("heartbeat_interval", interval, "from 60 on a death takes over 5 min to see", "5")
    if interval <= 1:
        wrong("heartbeat_interval", interval, "at 1 or less leadership flips back and forth", "5")
    if timing.lease_ttl <= 2 or timing.lease_ttl < BEATS_PER_LEASE * interval:
        wrong(
            "lease_ttl",
            timing.lease_ttl,
            f"three renewals of heartbeat_interval ({interval:g}) must fit into it, and it must"
            " be above 2: leadership flips back and forth",
            f"{max(BEATS_PER_LEASE * interval, 3.0):g}",
        )
    if timing.min_epoch_duration < 60:
        wrong("min_epoch_duration", timing.min_epoch_duration, "it must be at least 60", "60")
    if not 5 <= timing.monitor_interval <= 30:
        wrong("monitor_interval", timing.monitor_interval, "it must be within 5 .. 30", "10")
    _check_retention(timing, CLEANUP_PERIOD_S)
