"""`squall coord leader | epoch | signals | events`: one part of a namespace, read as it is in
the store. No secret is needed and nothing is verified; nothing is written.

`events --follow` looks again and again and says what changed. Members that live for one command
of this program are left out. It ends with Ctrl-C, with its
reader, or after `--for` seconds, each time with 0.
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
from squall.cli.coord import SHELL, NoSuchMember, number_of, opened, seconds_of
from squall.cli.jobs import print_json, value_of
from squall.cli.streams import drop_stdout, print_or_drop
from squall.coordination.events import Event
from squall.coordination.inboxes import Inbox, Letters, list_inboxes, read_letters
from squall.coordination.inspection import Leader, find_leader, list_members
from squall.coordination.stores.guard import GuardedStore
from squall.coordination.watching import Past, Watcher, look_once, remembered
from squall.reporting.format import length, moment, plural
from squall.reporting.layout import aligned

EVERY_S = 1.0
EVERY_AFAR_S = 10.0
"""Where a look is a list that costs money."""


async def answered(arguments: Namespace) -> int:
    answer = _ANSWERS[arguments.coord_command]
    if arguments.coord_command == "events":
        _check_events(arguments)
    async with opened(arguments) as store:
        return await answer(store, arguments)


# Who leads.


async def _leader(store: GuardedStore, arguments: Namespace) -> int:
    """Exit 1 when nobody leads, so that a script can ask."""
    leader = await find_leader(store)
    holds = leader is not None and leader.holds
    if arguments.json:
        print_json(leader)
    else:
        print_or_drop("\n".join(leader_lines(leader)))
    return int(ExitCode.PASSED if holds else ExitCode.INTERNAL)


def leader_lines(leader: Leader | None) -> list[str]:
    if leader is None:
        return ["nobody leads, and nobody ever did"]
    if not leader.holds:
        why = "gave the lead up" if leader.released else "fell silent"
        who = leader.worker_id or "nobody"
        return [f"nobody leads: {who} {why} {leader.renewed_s:.1f} s ago, in epoch {leader.epoch}"]
    lines = [
        f"{leader.worker_id} leads in epoch {leader.epoch}",
        f"elected   {length(leader.elected_s)} ago, renewed {plural(leader.renewals, 'time')}",
        f"lease     {leader.lease_ttl:g} s, renewed {leader.renewed_s:.1f} s ago",
        f"standbys  {', '.join(leader.standbys) or 'none'}",
    ]
    if leader.profile:
        lines.append(f"profile   {leader.profile}, chosen by the number of members")
    return lines


async def _epoch(store: GuardedStore, arguments: Namespace) -> int:
    """Exit 1 when a member saw a higher epoch than the store has: it lost data."""
    leader = await find_leader(store)
    epoch = 0 if leader is None else leader.epoch
    seen = Counter(each.epoch for each in await list_members(store) if each.incarnation)
    lost = any(number > epoch for number in seen)
    if arguments.json:
        print_json(
            {
                "epoch": epoch,
                "held_by": leader.worker_id if leader is not None and leader.holds else None,
                "seen": {str(number): seen[number] for number in sorted(seen)},
                "lost": lost,
            }
        )
        return int(lost)
    holder = leader.worker_id if leader is not None and leader.holds else "nobody"
    lines = [f"epoch {epoch}, held by {holder}"]
    for number in sorted(seen, reverse=True):
        note = ": the store lost data, the next epoch will be above it" if number > epoch else ""
        lines.append(f"{plural(seen[number], 'member')} saw {number}{note}")
    print_or_drop("\n".join(lines))
    return int(lost)


# Signals.


async def _signals(store: GuardedStore, arguments: Namespace) -> int:
    if arguments.member:
        letters = await read_letters(store, arguments.member)
        if letters is None:
            raise NoSuchMember(f"no member {arguments.member} ever registered")
        return print_json(letters) if arguments.json else _show_letters(letters)
    inboxes = await list_inboxes(store)
    return print_json(inboxes) if arguments.json else _show_inboxes(inboxes)


def _show_inboxes(inboxes: list[Inbox]) -> int:
    if not inboxes:
        print_or_drop("no members")
        return 0
    rows = [("MEMBER", "UNREAD", "OLDEST", "REFUSED", "WAITS")]
    for each in inboxes:
        oldest = f"{each.oldest_s:.1f} s" if each.unread else "-"
        rows.append((each.member_id, str(each.unread), oldest, str(each.refused), str(each.waits)))
    print_or_drop("\n".join(aligned(rows)))
    return 0


def _show_letters(found: Letters) -> int:
    lines: list[str] = []
    if found.letters:
        rows: list[tuple[str, ...]] = [("SIGNAL", "STATE", "TYPE", "FROM", "CORRELATION", "AGE")]
        for each in found.letters:
            words = (each.type, each.sender_id, each.correlation_id)
            shown = (word or "-" for word in words)
            rows.append((each.signal_id, each.state, *shown, f"{each.age_s:.1f} s"))
        lines += aligned(rows)
    else:
        lines.append(f"{found.member_id} has no unread signals")
    for wait in found.waits:
        what = wait.correlation_id or "any signal"
        whom = f" from {', '.join(wait.awaiting)}" if wait.awaiting else ""
        lines.append(
            f"waits for {what}{whom}, {length(wait.waited_s)} so far, {length(wait.left_s)} left"
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
        await look_once(store, watcher)
    past = await remembered(store, number_of(arguments.last, "--last"), but=SHELL)
    if not arguments.follow:
        if arguments.json:
            return print_json(list(map(_past_fields, past)))
        print_or_drop("\n".join(map(_past_line, past)) or "the store remembers nothing")
        return 0
    try:
        for each in past:
            _say(_past_fields(each) if arguments.json else _past_line(each))
        await _follow(store, watcher, arguments)
    except BrokenPipeError:
        drop_stdout()
    except asyncio.CancelledError:
        # Ctrl-C is how it ends.
        task = asyncio.current_task()
        if task is None or task.uncancel() > 0:
            raise
    return 0


async def _follow(store: GuardedStore, watcher: Watcher, arguments: Namespace) -> None:
    afar = store.capabilities.cross_host and not store.capabilities.blocking_wait
    every_s = EVERY_AFAR_S if afar else EVERY_S
    if arguments.every is not None:
        every_s = seconds_of(arguments.every, "--every")
    lasts_s = None if arguments.lasts is None else seconds_of(arguments.lasts, "--for")
    ends = None if lasts_s is None else time.monotonic() + lasts_s
    while ends is None or time.monotonic() < ends:
        left_s = every_s if ends is None else max(0.0, ends - time.monotonic())
        await asyncio.sleep(min(every_s, left_s))
        for event in await look_once(store, watcher):
            if getattr(event, "coordinator_id", "").startswith(SHELL):
                continue
            _say(_fields(event) if arguments.json else _event_line(event))


def _say(what: str | dict[str, Any]) -> None:
    """One line, at once; a reader that has gone ends the following."""
    text = what if isinstance(what, str) else msgspec.json.encode(what).decode()
    print(text, flush=True)


def _fields(event: Event) -> dict[str, Any]:
    """As those of the past, with everything that the event says."""
    return {"at": moment(time.time()), "ago_s": 0.0, "event": event.name, **_told(event)}


def _past_fields(past: Past) -> dict[str, Any]:
    return {"at": moment(time.time() - past.ago_s), **value_of(past)}


def _told(event: Event) -> dict[str, Any]:
    hidden = set(Event.__struct_fields__)
    return {name: getattr(event, name) for name in event.__struct_fields__ if name not in hidden}


def _event_line(event: Event) -> str:
    told = _told(event)
    who = told.pop("coordinator_id", None) or told.pop("new", "") or "-"
    rest = ", ".join(f"{name} {value}" for name, value in told.items() if value != "")
    return _line(time.time(), event.name, who, rest)


def _past_line(past: Past) -> str:
    return _line(time.time() - past.ago_s, past.event, past.who, past.text)


def _line(at_s: float, event: str, who: str, text: str) -> str:
    local = datetime.fromtimestamp(at_s).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}  {event:25}  {who}  {text}".rstrip()


_ANSWERS = {"leader": _leader, "epoch": _epoch, "signals": _signals, "events": _events}
