"""The numbers behind admission, rates, retries and circuit breakers, in one place.

They limit Squall's load on itself, never the load on a target. A struct that is made is
valid: a bad value is refused here with its name, the value and what would be right.
"""

from __future__ import annotations

import enum
import math

import msgspec


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on requests in flight in one node. 0 admits nothing; there is no unlimited.

    The three shared limits nest: TELEMETRY within `telemetry_max`, DATA and TELEMETRY
    within `data_max`, all three within `shared_max`. So a lower class never takes the last
    slots of a higher one: the defaults keep 500 for DISPATCH and 300 more for DATA.
    CONTROL has `control_max` slots of its own, outside of these.
    """

    shared_max: int = 1000
    data_max: int = 500
    telemetry_max: int = 200

    control_max: int = 128
    """About an eighth of `shared_max`: in a full node CONTROL gets every ninth turn of the
    loop and all of its own slots, and the rest cannot be pushed aside."""
    control_waiting_max: int = 16_384
    control_waiting_per_source_max: int = 256
    """The backlog that one peer may have. A peer sends a few CONTROL messages a second, so
    a peer with 256 unserved ones is broken or hostile."""

    warn_at: tuple[float, ...] = (0.8, 0.9)
    warn_rearm: float = 0.05
    """A warning is repeated only after the fill fell this far below its threshold."""

    retry_after_min_s: float = 0.05
    retry_after_max_s: float = 30.0
    retry_after_spread: float = 0.5
    """The hint is spread evenly over [estimate, estimate x (1 + spread)]: callers that were
    shed together must not come back together."""
    backlog_memory_s: float = 5.0
    """How fast shed callers are forgotten when the backlog is estimated."""
    service_time_first_s: float = 0.1
    """Assumed before the first request of a class ended."""
    service_time_weight: float = 0.1
    """Weight of the newest service time in the moving average."""

    def __post_init__(self) -> None:
        _at_least("shared_max", self.shared_max, 1)
        _at_least("control_max", self.control_max, 1)
        _at_least("control_waiting_per_source_max", self.control_waiting_per_source_max, 1)
        _at_least(
            "control_waiting_max", self.control_waiting_max, self.control_waiting_per_source_max
        )
        if not 0 <= self.telemetry_max <= self.data_max <= self.shared_max:
            raise ValueError(
                f"telemetry_max {self.telemetry_max}, data_max {self.data_max} and shared_max"
                f" {self.shared_max} must not fall in this order: the limits nest"
            )
        if not all(0 < level <= 1 for level in self.warn_at):
            raise ValueError(f"warn_at is {self.warn_at}: shares above 0 and up to 1 are right")
        if list(self.warn_at) != sorted(self.warn_at):
            raise ValueError(f"warn_at is {self.warn_at}: it must rise")
        _within("warn_rearm", self.warn_rearm, 0, 1)
        _positive("retry_after_min_s", self.retry_after_min_s)
        _within("retry_after_max_s", self.retry_after_max_s, self.retry_after_min_s, 3600)
        _within("retry_after_spread", self.retry_after_spread, 0, 10)
        _positive("backlog_memory_s", self.backlog_memory_s)
        _positive("service_time_first_s", self.service_time_first_s)
        _positive("service_time_weight", self.service_time_weight)
        _within("service_time_weight", self.service_time_weight, 0, 1)


class Jitter(enum.Enum):
    """How a delay is drawn; t is base x 2^n cut at the cap."""

    FULL = "full"
    """U(0, t): spreads best, and is the default."""
    EQUAL = "equal"
    """t/2 + U(0, t/2): never at once."""
    DECORRELATED = "decorrelated"
    """U(base, 3 x the last delay), cut at the cap."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to try again. `max_attempts` counts the first try; None tries until the deadline."""

    max_attempts: int | None = 3
    base_s: float = 0.5
    cap_s: float = 30.0
    jitter: Jitter = Jitter.FULL
    attempt_timeout_s: float | None = None
    """The longest that one try may take; None leaves it all of the remaining time."""
    least_attempt_s: float = 0.0
    """A retry that would have less time than this left is not begun."""
    hint_cap_s: float = 60.0
    """A server's retry-after is honoured up to here: it must not park a caller for ever."""

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            _at_least("max_attempts", self.max_attempts, 1)
        _positive("base_s", self.base_s)
        _within("cap_s", self.cap_s, self.base_s, math.inf)
        if self.attempt_timeout_s is not None:
            _positive("attempt_timeout_s", self.attempt_timeout_s)
        _within("least_attempt_s", self.least_attempt_s, 0, math.inf)
        _within("hint_cap_s", self.hint_cap_s, 0, math.inf)


class RetryBudgetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Over any time t: retries <= burst + ratio x first tries + reserve_per_s x t."""

    ratio: float = 0.1
    burst: float = 10.0
    reserve_per_s: float = 1.0
    """Lets a caller with little traffic retry at all: a tenth of one request is no retry."""

    def __post_init__(self) -> None:
        _within("ratio", self.ratio, 0, 1)
        _within("burst", self.burst, 1, math.inf)
        _within("reserve_per_s", self.reserve_per_s, 0, math.inf)


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One circuit per peer: `failures_to_open` within `window_s` open it for `open_s`."""

    failures_to_open: int = 3
    window_s: float = 30.0
    open_s: float = 10.0
    probes_max: int = 1
    """Requests that may try a half-open circuit at the same time."""
    successes_to_close: int = 1
    probe_timeout_s: float = 10.0
    """A probe that nobody reported on by then is given up, so another may go."""
    peers_max: int = 4096

    def __post_init__(self) -> None:
        _at_least("failures_to_open", self.failures_to_open, 1)
        _positive("window_s", self.window_s)
        _positive("open_s", self.open_s)
        _at_least("probes_max", self.probes_max, 1)
        _at_least("successes_to_close", self.successes_to_close, 1)
        _positive("probe_timeout_s", self.probe_timeout_s)
        _at_least("peers_max", self.peers_max, 1)


class RateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may ask: `burst` at once, then `per_s`."""

    burst: float
    per_s: float
    clients_max: int = 4096

    def __post_init__(self) -> None:
        _within("burst", self.burst, 1, math.inf)
        _positive("per_s", self.per_s)
        _at_least("clients_max", self.clients_max, 1)

    @property
    def full_after_s(self) -> float:
        """After so long without a request nothing is known of a client that matters."""
        return self.burst / self.per_s


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}: it must be a number above 0")


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: it must lie between {least} and {most}")


GATE_ADMISSION = AdmissionSettings(
    shared_max=2000, data_max=1000, telemetry_max=400, control_max=256
)
MANAGER_ADMISSION = AdmissionSettings(
    shared_max=5000, data_max=2500, telemetry_max=1000, control_max=640
)
WORKER_ADMISSION = AdmissionSettings(
    shared_max=500, data_max=250, telemetry_max=100, control_max=64
)

SUBMIT_RATE = RateSettings(burst=200, per_s=20)
"""Of one client's jobs: a script that submits a night's runs does not notice it."""
LOOK_RATE = RateSettings(burst=400, per_s=100)
"""Of one client's questions, each of which costs a round of the group."""

REGISTRATION_RETRY = RetryPolicy(max_attempts=4, base_s=0.5)
PROGRESS_RETRY = RetryPolicy(max_attempts=3, base_s=0.2)
DISPATCH_RETRY = RetryPolicy(max_attempts=3, base_s=0.3)
