"""What the state machines of managers and of gates decide alike about a job. Pure.

The functions read and return values; the rules of each machine change its own tables.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome, Rejected
from squall.cluster.protocol.job_commands import ExtendJob, FinishJob, Purge
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_records import (
    ADJUSTMENTS_MAX,
    EVENTS_MAX,
    AdjustEvent,
    Adjustment,
    JobEvent,
    KeyEntry,
)
from squall.cluster.protocol.submission_limits import (
    DESCRIPTION_MAX_BYTES,
    TIMEOUT_MAX_S,
    description_fault,
    key_fault,
)

COMMAND_MAX_BYTES = DESCRIPTION_MAX_BYTES
Keys = dict[tuple[str, str], KeyEntry]
_encoder = msgspec.msgpack.Encoder()


class Creation(Protocol):
    """A command that creates a job."""

    @property
    def principal(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def created_at(self) -> float: ...


class LoadChangeCommand(Protocol):
    """A command that changes the load of workflows."""

    @property
    def workflows(self) -> Collection[str]: ...
    @property
    def paused(self) -> bool | None: ...
    @property
    def rate_per_s(self) -> float | None: ...
    @property
    def vus(self) -> int | None: ...
    @property
    def by(self) -> str: ...
    @property
    def request_id(self) -> str: ...


def encoded(command: msgspec.Struct, *, creates: type[msgspec.Struct]) -> bytes:
    """A command for `Ledger.submit`; raises `SquallError` if it is too large. `creates` is the
    command that creates a job, which the client's file can make too large."""
    body = _encoder.encode(command)
    if len(body) <= COMMAND_MAX_BYTES:
        return body
    if isinstance(command, creates):
        raise SquallError(description_fault(len(body)))
    raise SquallError(
        f"a command {type(command).__name__} has {len(body):,} bytes; "
        f"at most {COMMAND_MAX_BYTES:,} are allowed"
    )


# Creation.


def known_key(keys: Keys, command: Creation) -> CommandOutcome | None:
    """The answer to a creation whose key was used before; None if it was not."""
    entry = keys.get((command.principal, command.key))
    if entry is None:
        return None
    if entry.fingerprint == command.fingerprint:
        return Accepted(job=entry.job, changed=False)
    return Rejected(
        text=f'key "{command.key}" was used for another job ({entry.job}); choose another key'
    )


def stamp_fault(command: Creation) -> str:
    """Checks what the primary adds to a submission, and its key."""
    if not 0 <= command.timeout_ms <= TIMEOUT_MAX_S * 1000:
        return f"timeout_ms is {command.timeout_ms}; at most {TIMEOUT_MAX_S * 1000:.0f}"
    if not math.isfinite(command.created_at):
        return f"created_at is {command.created_at}; it must be finite"
    return key_fault(command.key)


# While it runs.


def with_event(before: Iterable[JobEvent], at_ms: int, text: str) -> tuple[JobEvent, ...]:
    """The events of a job with one more: the first and the last are kept."""
    events = (*before, JobEvent(at_ms, text))
    if len(events) <= EVENTS_MAX:
        return events
    half = EVENTS_MAX // 2
    return (*events[:half], *events[half + 1 :])


def extension_ms(command: ExtendJob, before_ms: int) -> int:
    """How much of the wanted time a job may still get; 0: nothing."""
    return max(min(command.by_ms, command.cap_ms - before_ms), 0)


def extension_text(command: ExtendJob, granted_ms: int) -> str:
    return f"got {granted_ms / 1000:g} s more{by_text(command.by)}"


def with_adjustments(
    before: Iterable[AdjustEvent], command: LoadChangeCommand, *, at_ms: int, sequence: int
) -> tuple[AdjustEvent, ...]:
    """The last adjustments of a job, with those of a command."""
    made = tuple(
        AdjustEvent(
            at_ms=at_ms,
            workflow=name,
            paused=command.paused,
            rate_per_s=command.rate_per_s,
            vus=command.vus,
            by=command.by,
            request_id=command.request_id,
            adjust_seq=sequence,
        )
        for name in command.workflows
    )
    return (*before, *made)[-ADJUSTMENTS_MAX:]


def adjusted(
    before: Adjustment,
    sequence: int,
    *,
    paused: bool | None,
    rate_per_s: float | None,
    vus: int | None,
) -> Adjustment:
    """The load of a workflow after a change; None leaves a value as it is."""
    return Adjustment(
        adjust_seq=sequence,
        paused=before.paused if paused is None else paused,
        rate_per_s=before.rate_per_s if rate_per_s is None else rate_per_s,
        vus=before.vus if vus is None else vus,
    )


def change_text(command: LoadChangeCommand) -> str:
    words: list[str] = []
    if command.paused is not None:
        words.append("paused" if command.paused else "resumed")
    if command.rate_per_s is not None:
        words.append(f"rate {command.rate_per_s:g}/s")
    if command.vus is not None:
        words.append(f"{command.vus} VUs")
    return (", ".join(words) or "unchanged") + by_text(command.by)


def by_text(name: str) -> str:
    return f", by {name}" if name else ""


# Its end.


def end_text(command: FinishJob) -> str:
    return f"{command.status}" + (f": {command.reason}" if command.reason else "")


def end_of_broken(job: JobId, text: str) -> FinishJob:
    """How a job ends of which an invariant does not hold, the same on every member (R3)."""
    return FinishJob(
        job=job,
        status="failed",
        reason=f"internal error: {text}",
        exit_code=ExitCode.INTERNAL,
        keep_ms=3_600_000,
    )


def keep_key(keys: Keys, pair: tuple[str, str], job: JobId, expires_ms: int) -> None:
    """The key of a job that is removed is remembered for a while longer."""
    entry = keys.get(pair)
    if entry is not None and entry.job == job:
        keys[pair] = KeyEntry(entry.fingerprint, job, expires_ms)


def purge_keys(keys: Keys, command: Purge, group_ms: int) -> bool:
    """Removes the keys of a command; returns whether there were any."""
    changed = False
    for pair in command.keys:
        entry = keys.get(pair)
        # The key of a job that exists (0) is never removed: the job could be created twice.
        if entry is None or not entry.expires_ms:
            continue
        if command.early or entry.expires_ms <= group_ms:
            del keys[pair]
            changed = True
    return changed
