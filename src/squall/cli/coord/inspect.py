"""`squall coord leader | epoch | signals | events`: reads one part of a namespace as it is in the
store. It needs no secret, verifies nothing and writes nothing.

`events --follow` polls and prints what changed, without members that live for one command of this
program. It ends with Ctrl-C, when its reader goes, or after `--for` seconds, each time with 0.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections import Counter
from datetime import datetime
from typing import Any

import msgspec

from squall.api.errors import ExitCode, UsageError
from squall.cli.coord.command import SHELL, UnknownMember, number_of, opened, seconds_of
from squall.coordination.events import Event
from squall.coordination.operations.inspect import Leader, find_leader, list_members
from squall.coordination.operations.list_signals import (
    InboxSummary,
    SignalList,
    list_inboxes,
    list_signals,
)
from squall.coordination.operations.watcher import PastEvent, Watcher, past_events, read_changes
from squall.coordination.stores.guarded_store import GuardedStore
from squall.reporting.number_format import length, moment, plural
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import drop_stdout, print_json, print_or_drop, value_of

EVERY_S = 1.0
EVERY_POLLED_S = 10.0
"""Poll interval on a store that charges for each request."""


async def answered(arguments: Namespace) -> int:
    answer = _ANSWERS[arguments.coord_command]
    if arguments.coord_command == "events":
        _check_events(arguments)
    async with opened(arguments) as store:
        return await answer(store, arguments)


# The leader.


async def _leader(store: GuardedStore, arguments: Namespace) -> int:
    """Exits with 1 if no member leads, for scripts."""
    leader = await find_leader(store)
    holds = leader is not None and leader.holds
    if arguments.json:
        print_json(leader)
    else:
        print_or_drop("\n".join(leader_lines(leader)))
    return int(ExitCode.PASSED if holds else ExitCode.INTERNAL)


def leader_lines(leader: Leader | None) -> list[str]:
    if leader is None:
        return ["no member leads, and none ever did"]
    if not leader.holds:
        why = "gave up the lead" if leader.released else "fell silent"
        former = leader.member_id or "an unknown member"
        return [
            f"no member leads: {former} {why} {leader.renewed_s:.1f} s ago, in epoch {leader.epoch}"
        ]
    lines = [
        f"{leader.member_id} leads in epoch {leader.epoch}",
        f"elected   {length(leader.elected_s)} ago, renewed {plural(leader.renewals, 'time')}",
        f"lease     {leader.lease_ttl:g} s, renewed {leader.renewed_s:.1f} s ago",
        f"standbys  {', '.join(leader.standbys) or 'none'}",
    ]
    if leader.profile:
        lines.append(f"profile   {leader.profile}, chosen by the number of members")
    return lines


async def _epoch(store: GuardedStore, arguments: Namespace) -> int:
    """Exits with 1 if a member saw a higher epoch than the store has: the store lost data."""
    leader = await find_leader(store)
    epoch = 0 if leader is None else leader.epoch
    seen = Counter(each.epoch for each in await list_members(store) if each.boot)
    lost = any(number > epoch for number in seen)
    if arguments.json:
        print_json(
            {
                "epoch": epoch,
                "held_by": leader.member_id if leader is not None and leader.holds else None,
                "seen": {str(number): seen[number] for number in sorted(seen)},
                "lost": lost,
            }
        )
        return int(lost)
    holder = leader.member_id if leader is not None and leader.holds else "no member"
    lines = [f"epoch {epoch}, held by {holder}"]
    for number in sorted(seen, reverse=True):
        note = ": the store lost data, the next epoch will be above it" if number > epoch else ""
        lines.append(f"{plural(seen[number], 'member')} saw {number}{note}")
    print_or_drop("\n".join(lines))
    return int(lost)


# Signals.


async def _signals(store: GuardedStore, arguments: Namespace) -> int:
    if arguments.member:
        letters = await list_signals(store, arguments.member)
        if letters is None:
            raise UnknownMember(f"no member {arguments.member} ever registered")
        return print_json(letters) if arguments.json else _show_letters(letters)
    inboxes = await list_inboxes(store)
    return print_json(inboxes) if arguments.json else _show_inboxes(inboxes)


def _show_inboxes(inboxes: list[InboxSummary]) -> int:
    if not inboxes:
        print_or_drop("no members")
        return 0
    rows = [("MEMBER", "UNREAD", "OLDEST", "REFUSED", "WAITS")]
    for each in inboxes:
        oldest = f"{each.oldest_s:.1f} s" if each.unread else "-"
        rows.append((each.member_id, str(each.unread), oldest, str(each.refused), str(each.waits)))
    print_or_drop("\n".join(aligned(rows)))
    return 0


def _show_letters(found: SignalList) -> int:
    lines: list[str] = []
    if found.signals:
        rows: list[tuple[str, ...]] = [("SIGNAL", "STATE", "TYPE", "FROM", "CORRELATION", "AGE")]
        for each in found.signals:
            words = (each.type, each.sender_id, each.correlation_id)
            shown = (word or "-" for word in words)
            rows.append((each.signal_id, each.state, *shown, f"{each.age_s:.1f} s"))
        lines += aligned(rows)
    else:
        lines.append(f"{found.member_id} has no unread signals")
    for wait in found.waits:
        what = wait.correlation_id or "any signal"
        senders = f" from {', '.join(wait.awaiting)}" if wait.awaiting else ""
        lines.append(
            f"waits for {what}{senders}, {length(wait.waited_s)} so far, {length(wait.left_s)} left"
        )
    print_or_drop("\n".join(lines))
    return 0


# Events.


def _check_events(arguments: Namespace) -> None:
    number_of(arguments.last, "--last")
    for flag, text in (("--every", arguments.every), ("--for", arguments.lasts)):
        if text is not None:
            seconds_of(text, flag)
            if not arguments.follow:
                raise UsageError(f"events: {flag} needs --follow")


async def _events(store: GuardedStore, arguments: Namespace) -> int:
    watcher = Watcher()
    if arguments.follow:
        await read_changes(store, watcher)
    past = await past_events(store, number_of(arguments.last, "--last"), but=SHELL)
    if not arguments.follow:
        if arguments.json:
            return print_json(list(map(_past_fields, past)))
        print_or_drop("\n".join(map(_past_line, past)) or "the store has recorded no events")
        return 0
    try:
        for each in past:
            _print_line(_past_fields(each) if arguments.json else _past_line(each))
        await _follow(store, watcher, arguments)
    except BrokenPipeError:
        drop_stdout()
    except asyncio.CancelledError:
        # Ctrl-C is the normal end.
        task = asyncio.current_task()
        if task is None or task.uncancel() > 0:
            raise
    return 0


async def _follow(store: GuardedStore, watcher: Watcher, arguments: Namespace) -> None:
    is_polled = store.capabilities.cross_host and not store.capabilities.blocking_wait
    every_s = EVERY_POLLED_S if is_polled else EVERY_S
    if arguments.every is not None:
        every_s = seconds_of(arguments.every, "--every")
    lasts_s = None if arguments.lasts is None else seconds_of(arguments.lasts, "--for")
    ends = None if lasts_s is None else time.monotonic() + lasts_s
    while ends is None or time.monotonic() < ends:
        left_s = every_s if ends is None else max(0.0, ends - time.monotonic())
        await asyncio.sleep(min(every_s, left_s))
        for event in await read_changes(store, watcher):
            if getattr(event, "member_id", "").startswith(SHELL):
                continue
            _print_line(_fields(event) if arguments.json else _event_line(event))


def _print_line(what: str | dict[str, Any]) -> None:
    """Prints one line at once; raises `BrokenPipeError` if the reader has gone."""
    text = what if isinstance(what, str) else msgspec.json.encode(what).decode()
    print(text, flush=True)


def _fields(event: Event) -> dict[str, Any]:
    """The same keys as for past events, and all fields of the event."""
    return {"at": moment(time.time()), "ago_s": 0.0, "event": event.name, **_own_fields(event)}


def _past_fields(past: PastEvent) -> dict[str, Any]:
    return {"at": moment(time.time() - past.ago_s), **value_of(past)}


def _own_fields(event: Event) -> dict[str, Any]:
    hidden = set(Event.__struct_fields__)
    names = zip(event.__struct_fields__, event.__struct_encode_fields__, strict=True)
    return {shown: getattr(event, name) for name, shown in names if name not in hidden}


def _event_line(event: Event) -> str:
    fields = _own_fields(event)
    subject = fields.pop("coordinator_id", None) or fields.pop("new", "") or "-"
    rest = ", ".join(f"{name} {value}" for name, value in fields.items() if value != "")
    return _line(time.time(), event.name, subject, rest)


def _past_line(past: PastEvent) -> str:
    return _line(time.time() - past.ago_s, past.event, past.who, past.text)


def _line(at_s: float, event: str, subject: str, text: str) -> str:
    local = datetime.fromtimestamp(at_s).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}  {event:25}  {subject}  {text}".rstrip()


_ANSWERS = {"leader": _leader, "epoch": _epoch, "signals": _signals, "events": _events}
