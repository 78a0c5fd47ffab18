"""The checks before a service goes into production: `squall coord doctor --production`.

Each finding shows the values in force. What the library fixes is stated, what people choose is
checked. Nothing here writes.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol, runtime_checkable

from squall.coordination.metrics import metric_names
from squall.coordination.operations.findings import Finding
from squall.coordination.operations.inspect import Leader
from squall.coordination.options import Options
from squall.coordination.signals.wait_limits import BY_ENVIRONMENT, default_timeout
from squall.coordination.stores.breaker import BreakerSettings
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.timing import Timing

ALERTS = (
    *("HighBlockingDuration", "CriticalBlockingDuration", "ElevatedCoordinatorCount"),
    *("HighCoordinatorCount", "HighSignalLatency", "HighTimeoutRate", "CriticalTimeoutRate"),
    *("SlowCleanup", "TooManyKeys", "StoreMemoryHigh", "NoCoordinator", "LeaderFlapping"),
    *("MemberDead", "CircuitOpen", "SignalsRejected", "SecretTooOld", "SecretNotReadable"),
)
METRIC = re.compile(r"\b(?:coordination|blocking_coordination)_[a-z_0-9]+")


@runtime_checkable
class CommandCounter(Protocol):
    """A store that counts its commands (Redis)."""

    async def info(self, section: str) -> dict[str, Any]: ...


async def checklist(
    store: GuardedStore,
    leader: Leader | None,
    timing: Timing,
    *,
    blocking_timeout_ms: str | None,
    rules: str | None,
    dashboard: str | None,
) -> list[Finding]:
    """`rules` and `dashboard` are the contents of these files."""
    found = [
        *_timing(leader, timing),
        *_waits(blocking_timeout_ms),
        *_retries(),
        *_alerts(rules),
        *_dashboard(dashboard),
    ]
    return found + [finding async for finding in _scans(store)]


def _timing(leader: Leader | None, timing: Timing) -> Iterator[Finding]:
    text = (
        f"a beat every {timing.heartbeat_interval:g} s, stale after {timing.heartbeat_ttl:g} s,"
        f" dead after {timing.dead_after:g} s, a lease of {timing.lease_ttl:g} s"
    )
    if leader is not None and leader.holds and leader.lease_ttl != timing.lease_ttl:
        text = f"members have a lease of {leader.lease_ttl:g} s; expected: {text}"
        advice = "name the profile of the members with --profile"
        yield Finding(about="timing", verdict="doubtful", text=text, advice=advice)
    else:
        yield Finding(about="timing", verdict="good", text=text)


def _waits(blocking_timeout_ms: str | None) -> Iterator[Finding]:
    limit_s = default_timeout("production", blocking_timeout_ms)
    text = f"{limit_s:g} s by default, or twice the expected duration"
    if limit_s < BY_ENVIRONMENT["production"]:
        advice = "unset BLOCKING_TIMEOUT: it makes waits too short for production"
        yield Finding(about="waits", verdict="doubtful", text=text, advice=advice)
    else:
        yield Finding(about="waits", verdict="good", text=text)


def _retries() -> Iterator[Finding]:
    options, retry, breaker = Options(), RetrySettings(), BreakerSettings()
    text = f"{options.max_retries} attempts, each with {options.ack_timeout:g} s for its answer"
    yield Finding(about="signals", verdict="good", text=text)
    pauses = "/".join(f"{retry.first_delay_s * 2.0**n:g}" for n in range(retry.attempts - 1))
    text = (
        f"{retry.attempts} tries, {pauses} s apart; {breaker.failures_to_open} failures open the"
        f" circuit for {breaker.open_s:g} s"
    )
    yield Finding(about="store calls", verdict="good", text=text)


def _alerts(text: str | None) -> Iterator[Finding]:
    if text is None:
        advice = "pass the rules file of Prometheus with --rules; see deploy/coordination/rules.yml"
        yield Finding(about="alerts", verdict="doubtful", text="not checked", advice=advice)
        return
    there = set(re.findall(r"alert:\s*['\"]?(\w+)", text))
    missing = [name for name in ALERTS if name not in there]
    if missing:
        advice = "copy them from deploy/coordination/rules.yml"
        shown = f"missing: {', '.join(missing)}"
        yield Finding(about="alerts", verdict="bad", text=shown, advice=advice)
    else:
        yield Finding(about="alerts", verdict="good", text=f"all {len(ALERTS)} are there")


def _dashboard(text: str | None) -> Iterator[Finding]:
    if text is None:
        advice = "pass its JSON with --dashboard; see deploy/coordination/dashboard.json"
        yield Finding(about="dashboard", verdict="doubtful", text="not checked", advice=advice)
        return
    shown = set(METRIC.findall(text))
    unknown = sorted(shown - set(metric_names()))
    if not shown or unknown:
        what = (
            f"uses unknown metrics: {', '.join(unknown)}"
            if unknown
            else "shows no metric of this library"
        )
        advice = "import deploy/coordination/dashboard.json of this version"
        yield Finding(about="dashboard", verdict="bad", text=what, advice=advice)
    else:
        yield Finding(about="dashboard", verdict="good", text=f"shows {len(shown)} metrics")


async def _scans(store: GuardedStore) -> AsyncIterator[Finding]:
    """This library uses indexes; another program on the same server may scan all keys."""
    if not isinstance(store.inner, CommandCounter):
        return
    stats = await store.inner.info("commandstats")
    if "cmdstat_keys" in stats:
        text = "a program sends KEYS to this server, which blocks all its clients"
        advice = "find the program (CLIENT LIST, MONITOR), or use a separate server"
        yield Finding(about="scans", verdict="doubtful", text=text, advice=advice)
    else:
        yield Finding(about="scans", verdict="good", text="no KEYS since the server started")
