"""Settings of admission and of the clients' rates.

They limit the load on Squall's own nodes, never the load on a target. A struct that exists
is valid: its constructor refuses a bad value and names the field, the value and the remedy.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the requests in flight in one manager. 0 admits nothing; none is unlimited.

    The three shared limits nest: TELEMETRY within `telemetry_max`, DATA and TELEMETRY
    within `data_max`, all three within `shared_max`. So a lower class never takes the last
    slots of a higher one: the defaults keep 2,500 for DISPATCH and 1,500 more for DATA.
    CONTROL has `control_max` slots of its own, outside of these.
    """

    shared_max: int = 5000
    data_max: int = 2500
    telemetry_max: int = 1000

    control_max: int = 640
    """About an eighth of `shared_max`: in a full node CONTROL gets every ninth turn of the
    event loop and cannot push the other classes aside."""
    control_waiting_max: int = 16_384
    control_waiting_per_source_max: int = 256
    """A peer sends a few CONTROL messages a second: with 256 unserved ones it is broken or
    hostile."""

    warn_at: tuple[float, ...] = (0.8, 0.9)
    warn_rearm: float = 0.05
    """The node warns again only after the fill fell this far below the threshold."""

    retry_after_min_s: float = 0.05
    retry_after_max_s: float = 30.0
    retry_after_spread: float = 0.5
    """The hint is spread evenly over [estimate, estimate x (1 + spread)]: callers that were
    shed together must not come back together."""
    backlog_memory_s: float = 5.0
    """Time constant with which the estimate of the backlog forgets shed callers."""
    service_time_first_s: float = 0.1
    """Used until the first request of a class has ended."""
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
                f" {self.shared_max} must not decrease in this order: the limits nest"
            )
        if not all(0 < level <= 1 for level in self.warn_at):
            raise ValueError(f"warn_at is {self.warn_at}: give shares above 0 and up to 1")
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


class RateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one client: `burst` at once, then `per_s`."""

    burst: float
    per_s: float
    clients_max: int = 4096

    def __post_init__(self) -> None:
        _within("burst", self.burst, 1, math.inf)
        _positive("per_s", self.per_s)
        _at_least("clients_max", self.clients_max, 1)

    @property
    def full_after_s(self) -> float:
        """After this time without a request the bucket is full and can be forgotten."""
        return self.burst / self.per_s


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of each client, by the name in its credential."""

    submit_burst: Annotated[int, Meta(ge=1)] = 200
    """Submissions at once: a script that submits the runs of one night stays below it."""
    submits_per_s: Annotated[float, Meta(gt=0)] = 20.0
    query_burst: Annotated[int, Meta(ge=1)] = 400
    """Queries at once, each of which costs a round of the group."""
    queries_per_s: Annotated[float, Meta(gt=0)] = 100.0

    @property
    def submits(self) -> RateSettings:
        return RateSettings(burst=self.submit_burst, per_s=self.submits_per_s)

    @property
    def queries(self) -> RateSettings:
        return RateSettings(burst=self.query_burst, per_s=self.queries_per_s)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}: it must be a number above 0")


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: it must lie between {least} and {most}")
