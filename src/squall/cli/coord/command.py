"""`squall coord`: inspects a group of members through its store, changes its leader, cleans up,
and makes and changes secrets.

`status`, `members` and `cleanup` need no secret: they show records as they are in the store,
without verifying them. `elect` joins as a member for a moment, because an order to hand over is a
signed signal; so does every command that sends orders to members. Inspecting never creates a
store: a missing file is a mistake in the address.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any

from squall.api.errors import ConfigError, ExitCode, SquallError, UsageError
from squall.coordination.coordinator import Coordinator
from squall.coordination.members.cleanup import CleanupReport, clean_up
from squall.coordination.members.housekeeping import differing_secret
from squall.coordination.operations.inspect import (
    Member,
    NamespaceStatus,
    list_members,
    read_status,
)
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.records import keys
from squall.coordination.secrets.sources import ENV_NAME, generate_secret
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import DEFAULT_PREFIX
from squall.coordination.stores.open import open_store
from squall.coordination.stores.sqlite.store import has_tables
from squall.reporting.number_format import plural
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop
from squall.runtime.log import Log, MemorySink
from squall.runtime.real.runtime import RealClock

STORE_VARIABLE = "SQUALL_COORD_STORE"
PARTS = {
    "queue": "queue",
    "schedule": "schedule",
    "signal": "signal",
    "wait": "signal",
    **dict.fromkeys(("leader", "epoch", "signals", "events"), "inspect"),
}
"""Commands with a module of their own, each with `answered(arguments)`."""
ENVIRONMENTS = ("development", "staging", "production")


SHELL = "shell-"
"""Prefix of the ids of members that live for one command."""


class NoLeader(SquallError):
    """No member, or not the wanted one, leads within the given time."""


class UnknownMember(SquallError):
    """No member with that id ever registered."""


def execute(arguments: Namespace) -> int:
    if arguments.coord_command == "secret" and arguments.secret_command == "generate":
        print_or_drop(generate_secret())
        return 0
    if arguments.coord_command == "install":
        from squall.cli.coord import doctor as coord_doctor

        return coord_doctor.install(arguments)
    if arguments.coord_command == "cost":
        from squall.cli.coord import cost as coord_cost

        return coord_cost.show(arguments)
    return asyncio.run(_answered(arguments))


async def _answered(arguments: Namespace) -> int:
    if arguments.coord_command in ("doctor", "secret"):
        from squall.cli.coord import doctor as coord_doctor

        answer = coord_doctor.doctor if arguments.coord_command == "doctor" else coord_doctor.rotate
        return await answer(arguments)
    part = PARTS.get(arguments.coord_command)
    if part is not None:
        return int(await import_module(f"squall.cli.coord.{part}").answered(arguments))
    if arguments.coord_command == "elect":
        return await _elect(arguments)
    async with opened(arguments) as store:
        if arguments.coord_command == "cleanup":
            return await _clean_up(store, arguments)
        if arguments.coord_command == "members":
            return _show_members(await list_members(store), as_json=arguments.json)
        return _show_status(await read_status(store), as_json=arguments.json)


@asynccontextmanager
async def opened(arguments: Namespace) -> AsyncGenerator[GuardedStore]:
    """The probed store; an outage is reported at once."""
    url, environment = store_url(arguments), environment_of(arguments)
    prefix = keys.prefix_of(arguments.namespace, arguments.prefix or DEFAULT_PREFIX)
    store = await open_store(
        url, RealClock(), random.Random(), prefix=prefix, environment=environment or ""
    )
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def joined(
    arguments: Namespace,
    *plugins: CoordinatorPlugin,
    member_id: str | None = None,
    **more: Any,
) -> AsyncGenerator[Coordinator]:
    """A member that never leads, for as long as the command takes. Without a `member_id` it
    leaves no trace; with one, others may want to reach it later."""
    source = arguments.secret_source
    if source is None and os.environ.get(ENV_NAME):
        source = "env:"
    if source is None and not store_url(arguments).startswith("sqlite:"):
        raise ConfigError(
            "orders to members must be signed: name the source of the secret with "
            f"--secret-source, or set {ENV_NAME}"
        )
    options: dict[str, Any] = {
        "namespace": arguments.namespace,
        "environment": environment_of(arguments),
        "secret_source": source,
        "profile": arguments.profile,
        "unsafe_timings": arguments.profile == "fast",
        "member_id": member_id or f"{SHELL}{time.time_ns() // 1_000_000:013d}-{token_hex(4)}",
        "transient": member_id is None,
        # A command reports by its answer, not by a log.
        "log": Log(MemorySink(), RealClock()),
        **more,
    }
    async with (
        opened(arguments) as store,
        Coordinator(store, *plugins, eligible=False, **options) as member,
    ):
        (lease,) = await store.get(keys.LEADER)
        if differs := differing_secret(member.parts, lease):
            raise ConfigError(differs)
        yield member


def store_url(arguments: Namespace) -> str:
    url = arguments.store or os.environ.get(STORE_VARIABLE, "")
    if not url:
        raise UsageError(f"no store named: give one with --store or {STORE_VARIABLE}")
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        raise ConfigError("a memory: store lives in one process; other processes cannot see it")
    if scheme == "sqlite" and rest.startswith("///"):
        _check_file(Path(rest[3:]))
    return url


def _check_file(path: Path) -> None:
    """Inspecting must create neither a file nor tables in the database of something else."""
    try:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}: no member ever used this store")
        is_used = has_tables(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not is_used:
        raise ConfigError(f"{path} has no coordination tables: no member ever used this store")


def environment_of(arguments: Namespace) -> str | None:
    found = arguments.environment or os.environ.get("COORD_ENVIRONMENT") or None
    if found is not None and found not in ENVIRONMENTS:
        raise ConfigError(f"environment {found!r}: use one of {', '.join(ENVIRONMENTS)}")
    return found


def number_of(text: str, flag: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise UsageError(f"{flag} {text}: write a whole number, at least {least}")
    return int(text)


def seconds_of(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise UsageError(f"{flag} {text}: write a number of seconds above 0")
    return value


async def _elect(arguments: Namespace) -> int:
    within = seconds_of(arguments.within, "--within")
    if (arguments.to or arguments.allow_early) and not arguments.force:
        raise UsageError("elect: --to and --allow-early need --force")
    async with joined(arguments) as member:
        before = member.current_coordinator
        left_s = member.protected_for
        if arguments.force and not arguments.allow_early and left_s > 0.0:
            raise UsageError(
                f"elect: {before} was elected a moment ago; wait {left_s:.0f} s or add"
                " --allow-early"
            )
        try:
            leader = await member.ensure_coordinator(
                force=arguments.force,
                desired_coordinator=arguments.to,
                allow_early=arguments.allow_early,
                timeout_s=within,
            )
        except TimeoutError:
            missing = f"{arguments.to} does not lead" if arguments.to else "no member leads"
            raise NoLeader(f"after {within:g} s {missing}: see squall coord members") from None
        epoch = member.current_epoch
    if arguments.json:
        return print_json({"coordinator": leader, "epoch": epoch, "before": before})
    print_or_drop(f"{leader} leads in epoch {epoch}")
    return 0


async def _clean_up(store: GuardedStore, arguments: Namespace) -> int:
    stale_s = seconds_of(arguments.stale, "--stale")
    report = await clean_up(store, RealClock(), stale_s=stale_s, dry_run=arguments.dry_run)
    if arguments.json:
        print_json(report)
    else:
        print_or_drop("\n".join(_report_lines(report)))
    return report.exit_code


def _report_lines(report: CleanupReport) -> list[str]:
    if report.already_running:
        return ["already running"]
    lines: list[str] = []
    for member in report.members:
        what = "would remove" if report.dry_run else "removed"
        if member.error:
            what = "could not remove"
        tail = f": {member.error}" if member.error else ""
        lines.append(f"{what} {member.member_id}, silent for {member.idle_s:.0f} s{tail}")
    lines += [f"{member_id} came back" for member_id in report.came_back]
    gone = len(report.members) - len(report.failed)
    if report.dry_run:
        return [*lines, f"{plural(gone, 'member')} would be removed; nothing was changed"]
    lines.append(
        f"{plural(gone, 'member')} removed, {len(report.failed)} failed, "
        f"{plural(report.swept, 'expired record')} swept, in {report.duration_s:.1f} s"
    )
    if not report.finished:
        lines.append("stopped at its time limit: the next run continues")
    return lines


def _show_members(members: list[Member], *, as_json: bool) -> int:
    if as_json:
        return print_json(members)
    if not members:
        print_or_drop("no members")
        return 0
    rows = [("MEMBER", "HEALTH", "HEARD", "INCARNATION", "LEADS", "EPOCH", "HOST", "PID")]
    rows += [
        (
            member.member_id,
            member.health,
            f"{member.heard_s:.1f} s ago",
            str(member.boot),
            "yes" if member.is_coordinator else "-",
            str(member.epoch or "-"),
            member.hostname or "-",
            str(member.pid or "-"),
        )
        for member in members
    ]
    print_or_drop("\n".join(aligned(rows)))
    return 0


def _show_status(status: NamespaceStatus, *, as_json: bool) -> int:
    if as_json:
        return print_json(status)
    leader = status.leader
    if leader is None:
        first = "coordinator  none, and there never was one"
    elif leader.holds:
        first = (
            f"coordinator  {leader.member_id} in epoch {leader.epoch}, "
            f"renewed {leader.renewed_s:.1f} s ago"
        )
    else:
        why = "it left" if leader.released else f"silent for {leader.renewed_s:.1f} s"
        first = f"coordinator  none; {leader.member_id or 'none'} had epoch {leader.epoch}, {why}"
    healths = ", ".join(f"{number} {health}" for health, number in status.members.items())
    kinds = ", ".join(f"{number} {kind}" for kind, number in status.keys.items())
    lines = [
        f"store        {status.store}",
        first,
        f"members      {healths or 'none'}",
        f"keys         {sum(status.keys.values())}" + (f" ({kinds})" if kinds else ""),
    ]
    if status.memory_bytes is not None:
        limit = f" of {status.memory_max_bytes:,}" if status.memory_max_bytes else ", no limit"
        lines.append(f"memory       {status.memory_bytes:,} bytes{limit}")
    if status.cleanup is None:
        lines.append("cleanup      none in the last day")
    else:
        ago_s = max(0.0, (status.now_ms - status.cleanup.ended_ms) / 1000.0)
        lines.append(
            f"cleanup      {ago_s:.0f} s ago, {plural(len(status.cleanup.members), 'member')}"
        )
    print_or_drop("\n".join(lines))
    return int(ExitCode.PASSED)
