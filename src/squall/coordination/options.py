"""The options of a member, and the checks that refuse a bad one before anything is started.

Every error names the option, its value, the rule and a value to use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict, cast

from squall.coordination.errors import ConfigurationError
from squall.coordination.stores.interface import Capabilities, make_key
from squall.coordination.timing import (
    ENVIRONMENTS,
    PROFILES,
    Environment,
    Timing,
    check_timing,
    timing_of,
)
from squall.coordination.value_rules import (
    Rule,
    check,
    flag,
    function,
    number,
    one_of,
    or_none,
    seconds,
    text,
    whole,
    wrong,
)
from squall.runtime.log import Log, PythonLogger
from squall.runtime.metrics import Registry

RETRIES_RANGE = (2, 10)
# Keeps a heartbeat record below a kilobyte.
HEARTBEATS_KEPT_MAX = 20
HealthCheck = Callable[[], bool | Awaitable[bool]]
# The profile that follows the number of live members.
AUTO = "auto"


def _no_metadata() -> Mapping[str, Any]:
    return {}


class OptionSpec(NamedTuple):
    """The rule of one option, and what the reference page says about it."""

    rule: Rule
    text: str


_SECRET = Rule(
    "it must be a text, or a list of texts with the newest last, or None",
    lambda value: value is None or _is_secret(value),
    "'...', from `squall coord secret generate`",
    is_secret=True,
)
_PROFILE = Rule(
    f"use one of {', '.join(PROFILES)}, auto, or a Timing",
    lambda value: value is None or isinstance(value, Timing) or _is_profile(value),
    "'normal'",
)


def _is_profile(value: object) -> bool:
    return isinstance(value, str) and (value == AUTO or value in PROFILES)


def _is_secret(value: object) -> bool:
    if isinstance(value, str):
        return True
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(each, str) for each in cast("Sequence[object]", value))


OPTION_SPECS: dict[str, OptionSpec] = {
    "namespace": OptionSpec(text("'team1'"), "the group: its members, leader, signals and queues"),
    "environment": OptionSpec(
        or_none(one_of(*ENVIRONMENTS, example="staging")),
        "the environment that the namespace belongs to, also `COORD_ENVIRONMENT`; None counts as"
        " staging, with a wait limit of 600 s",
    ),
    "profile": OptionSpec(
        _PROFILE, "the [timings](reference-timings.md); None takes the one for the store"
    ),
    "secret": OptionSpec(
        _SECRET, "what members sign with; during a rotation several, the newest last"
    ),
    "secret_source": OptionSpec(
        or_none(text("'vault:'")),
        "where the secret is read, every five minutes: `env:`, `file:/path`, `vault:`, `awssm:`",
    ),
    "strict_secrets": OptionSpec(flag(), "refuse a secret that is in an environment variable"),
    "eligible": OptionSpec(flag(), "whether this member may lead"),
    "transient": OptionSpec(
        flag(),
        "a short-lived client, such as a command: it never leads, leaves no records, and its"
        " silence is not reported as a death",
    ),
    "health_check": OptionSpec(
        or_none(function()),
        "called once per heartbeat interval, may be async: is this member fit to lead?",
    ),
    "keep_heartbeats": OptionSpec(
        whole(0, HEARTBEATS_KEPT_MAX, example=HEARTBEATS_KEPT_MAX),
        "how many of the last beats the heartbeat record shows to operators",
    ),
    "enable_coordinator": OptionSpec(
        flag(), "False: single-instance mode, without heartbeats and elections"
    ),
    "skip_cold_start": OptionSpec(
        flag(), "elect at once, without the observation of a first start; not in production"
    ),
    "unsafe_timings": OptionSpec(flag(), "lifts rules about timings, for tests; not in production"),
    "auto_cleanup": OptionSpec(flag(), "remove the records of the dead"),
    "cleanup_delay": OptionSpec(
        seconds(example=60.0), "from a death to the cleanup of its records"
    ),
    "sign_heartbeats": OptionSpec(or_none(flag()), "None: on stores that several hosts share"),
    "epoch_fencing_enabled": OptionSpec(
        flag(), "whether `validate_epoch` refuses orders of an older epoch"
    ),
    "contention_detection_enabled": OptionSpec(
        flag(), "whether slow cycles are reported (`contention:detected`)"
    ),
    "contention_threshold": OptionSpec(
        number(above=1.0, example=2.0), "in heartbeat intervals: a longer cycle is slow"
    ),
    "debug": OptionSpec(
        flag(), "log every heartbeat, renewal and monitor cycle, to stderr if no log is given"
    ),
    "max_inbox": OptionSpec(
        whole(1, example=1000), "unread signals of one receiver, then `InboxFullError`"
    ),
    "max_clock_skew": OptionSpec(
        seconds(example=60.0), "how far a signal's time may lie in the future"
    ),
    "max_timeout": OptionSpec(
        seconds(above=0.0, example=3600.0), "the longest wait without a planned duration"
    ),
    "max_retries": OptionSpec(
        whole(*RETRIES_RANGE, example=3), "tries of `send_signal_with_retry` without an answer"
    ),
    "retry_base": OptionSpec(
        seconds(above=0.0, example=1.0), "the first pause between two tries; it doubles"
    ),
    "ack_timeout": OptionSpec(
        seconds(above=0.0, example=5.0), "how long one try waits for an answer"
    ),
    "metrics_port": OptionSpec(
        or_none(whole(0, 65535, example=9464)),
        "serve `/metrics` on this port; 0 takes a free one",
    ),
    "metrics_host": OptionSpec(text("'0.0.0.0'"), "the interface of `metrics_port`"),
    "metadata": OptionSpec(function("dict"), "what each heartbeat shows about this member"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `Coordinator`; `OPTION_SPECS` has what each means and accepts."""

    namespace: str = "default"
    environment: Environment | None = None
    profile: str | Timing | None = None
    secret: str | Sequence[str] | None = field(default=None, repr=False)
    secret_source: str | None = None
    strict_secrets: bool = False
    eligible: bool = True
    transient: bool = False
    health_check: HealthCheck | None = None
    keep_heartbeats: int = 0
    enable_coordinator: bool = True
    skip_cold_start: bool = False
    unsafe_timings: bool = False
    auto_cleanup: bool = True
    cleanup_delay: float = 0.0
    sign_heartbeats: bool | None = None
    epoch_fencing_enabled: bool = True
    contention_detection_enabled: bool = True
    contention_threshold: float = 2.0
    debug: bool = False
    max_inbox: int = 1000
    max_clock_skew: float = 60.0
    max_timeout: float = 3600.0
    max_retries: int = 3
    retry_base: float = 1.0
    ack_timeout: float = 5.0
    metrics_port: int | None = None
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


def check_values(options: Options) -> None:
    """Checks each option by itself, before any of them is used."""
    for name, (rule, _) in OPTION_SPECS.items():
        check(name, getattr(options, name), rule)
    make_key(options.namespace)


_STORE = Rule(
    "it must be a URL or a store object",
    lambda value: isinstance(value, str) or hasattr(value, "capabilities"),
    "'redis://host:6379/0'",
)
_LOG = Rule(
    "it must be a logger of `logging`",
    lambda value: isinstance(value, Log | PythonLogger),
    "logging.getLogger('mine')",
)
_REGISTRY = Rule("it must be a Registry", lambda value: isinstance(value, Registry), "Registry()")


def check_arguments(
    store: object, member_id: str | None, work_interval: object, log: object, registry: object
) -> None:
    """Checks what `Coordinator` takes besides options, except plugins and callbacks."""
    check("store", store, _STORE)
    check("member_id", member_id, or_none(text("'worker-1'")))
    if member_id is not None:
        make_key(member_id)
    check("work_interval", work_interval, or_none(seconds(above=0.0, example=1.0)))
    check("log", log, or_none(_LOG))
    check("registry", registry, or_none(_REGISTRY))


def check_options(options: Options, timing: Timing, capabilities: Capabilities) -> None:
    """Checks the options together, and with the store."""
    check_timing(timing, environment=options.environment, unsafe_timings=options.unsafe_timings)
    # Without other members there is nothing to observe.
    alone = not capabilities.cross_process or not options.enable_coordinator
    window = timing.cold_start_observation_window
    if options.environment == "production" and options.skip_cold_start:
        wrong("skip_cold_start", True, "production observes before it elects", "False")
    if options.environment == "production" and not alone and window <= 0.0:
        wrong("cold_start_observation_window", window, "production observes before it elects", "15")
    if options.transient and options.eligible:
        wrong("eligible", True, "a transient member never leads", "False")
    if options.secret is not None and options.secret_source is not None:
        raise ConfigurationError("secret and secret_source are both given: use only one")
    if options.secret is None and options.secret_source is None and capabilities.cross_host:
        raise ConfigurationError(
            "secret is None and there is no secret_source: members on several hosts must share a"
            " secret; `squall coord secret generate` makes one"
        )
