"""The options of a member, and the checks that refuse a bad one before anything is started.

Every error names the option, its value, the rule and a value to use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, cast

from squall.coordination.errors import ConfigurationError
from squall.coordination.stores.interface import Capabilities, make_key
from squall.coordination.timing import (
    ENVIRONMENTS,
    Environment,
    Timing,
    check_timing,
    timing_of,
    wrong,
)

RETRIES_RANGE = (2, 10)
# Keeps a heartbeat record below a kilobyte.
HEARTBEATS_KEPT_MAX = 20
HealthCheck = Callable[[], bool | Awaitable[bool]]
# The profile that follows the number of live members.
AUTO = "auto"


def _no_metadata() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `Coordinator`; docs/coordination describes them by topic."""

    namespace: str = "default"
    environment: Environment | None = None
    profile: str | Timing | None = None
    secret: str | Sequence[str] | None = field(default=None, repr=False)
    """What members sign with; during a rotation several, the newest last."""
    secret_source: str | None = None
    """Where the secret is read, every five minutes: `env:`, `file:/path`, `vault:`, `awssm:`."""
    strict_secrets: bool = False
    """Refuses a secret in an environment variable."""
    eligible: bool = True
    transient: bool = False
    """A short-lived client, such as a command: it never leads, leaves no records, and its silence
    is not reported as a death."""
    health_check: HealthCheck | None = None
    """Called once per heartbeat interval: is this member fit to lead?"""
    keep_heartbeats: int = 0
    """How many of the last beats the heartbeat record shows to operators, up to 20."""
    enable_coordinator: bool = True
    skip_cold_start: bool = False
    unsafe_timings: bool = False
    auto_cleanup: bool = True
    cleanup_delay: float = 0.0
    """Seconds from a death to the cleanup of its records."""
    sign_heartbeats: bool | None = None
    epoch_fencing_enabled: bool = True
    contention_detection_enabled: bool = True
    contention_threshold: float = 2.0
    debug: bool = False
    """Logs every heartbeat, renewal and monitor cycle; to stderr if no log is given."""
    max_inbox: int = 1000
    max_clock_skew: float = 60.0
    max_timeout: float = 3600.0
    max_retries: int = 3
    retry_base: float = 1.0
    ack_timeout: float = 5.0
    metrics_port: int | None = None
    """Serves `/metrics` on this port; 0 takes a free one."""
    metrics_host: str = "127.0.0.1"
    metadata: Callable[[], Mapping[str, Any]] = field(default=_no_metadata)

    def timing_for(self, capabilities: Capabilities) -> Timing:
        """The timing of the profile, or by default the one for this store, with which `auto`
        starts too."""
        if self.profile is not None and self.profile != AUTO:
            return timing_of(self.profile)
        is_polled = capabilities.cross_host and not capabilities.blocking_wait
        return timing_of("s3" if is_polled else "normal")


class OptionValues(TypedDict, total=False):
    """The fields of `Options`, for editors and type checkers: `Coordinator` takes them by name."""

    namespace: str
    environment: Environment | None
    profile: str | Timing | None
    secret: str | Sequence[str] | None
    secret_source: str | None
    strict_secrets: bool
    eligible: bool
    transient: bool
    health_check: HealthCheck | None
    keep_heartbeats: int
    enable_coordinator: bool
    skip_cold_start: bool
    unsafe_timings: bool
    auto_cleanup: bool
    cleanup_delay: float
    sign_heartbeats: bool | None
    epoch_fencing_enabled: bool
    contention_detection_enabled: bool
    contention_threshold: float
    debug: bool
    max_inbox: int
    max_clock_skew: float
    max_timeout: float
    max_retries: int
    retry_base: float
    ack_timeout: float
    metrics_port: int | None
    metrics_host: str
    metadata: Callable[[], Mapping[str, Any]]


def with_environment(options: Options, named: str | None) -> Options:
    """The option wins over `named`, the environment variable of the process."""
    if options.environment is not None or named is None:
        return options
    return replace(options, environment=cast("Environment", named))


def check_names(given: Iterable[str]) -> None:
    for name in given:
        if name in Timing.__struct_fields__:
            raise ConfigurationError(f"{name} is part of a profile: use profile=Timing({name}=...)")
        if name not in Options.__dataclass_fields__:
            raise ConfigurationError(
                f"{name} is not an option; the options are"
                f" {', '.join(Options.__dataclass_fields__)}"
            )


def check_options(options: Options, timing: Timing, capabilities: Capabilities) -> None:
    make_key(options.namespace)
    if options.environment is not None and options.environment not in ENVIRONMENTS:
        wrong("environment", options.environment, f"one of {', '.join(ENVIRONMENTS)}", "'staging'")
    check_timing(timing, environment=options.environment, unsafe_timings=options.unsafe_timings)
    # Without other members there is nothing to observe.
    alone = not capabilities.cross_process or not options.enable_coordinator
    window = timing.cold_start_observation_window
    if options.environment == "production" and not alone and options.skip_cold_start:
        wrong("skip_cold_start", True, "production observes before it elects", "False")
    if options.environment == "production" and not alone and window <= 0.0:
        wrong("cold_start_observation_window", window, "production observes before it elects", "15")
    low, high = RETRIES_RANGE
    if not low <= options.max_retries <= high:
        wrong("max_retries", options.max_retries, f"it must be within {low} .. {high}", "3")
    if options.transient and options.eligible:
        wrong("eligible", True, "a transient member never leads", "False")
    if not 0 <= options.keep_heartbeats <= HEARTBEATS_KEPT_MAX:
        rule = f"it must be within 0 .. {HEARTBEATS_KEPT_MAX}"
        wrong("keep_heartbeats", options.keep_heartbeats, rule, str(HEARTBEATS_KEPT_MAX))
    if options.contention_threshold <= 1.0:
        wrong("contention_threshold", options.contention_threshold, "it must be above 1", "2.0")
    if options.secret is not None and options.secret_source is not None:
        raise ConfigurationError("secret and secret_source are both given: use only one")
    if options.secret is None and options.secret_source is None and capabilities.cross_host:
        raise ConfigurationError(
            "secret is None and there is no secret_source: members on several hosts must share a"
            " secret; `squall coord secret generate` makes one"
        )
