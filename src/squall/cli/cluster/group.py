"""`squall group status | replace | add | remove | handover`: the managers of a datacenter.

Every client may read the status. Changing the group needs the cluster's own secret, which lies on
the managers: a credential made from it is refused before anything is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from squall.api.errors import ConfigError, SquallError, UsageError
from squall.cli.shared.cluster_access import client_access
from squall.cluster.client.access import (
    CREDENTIAL,
    AccessOptions,
    ClusterAccess,
    address_of,
    cluster_settings,
    secret_lines,
)
from squall.cluster.client.cluster_client import QUERY_TIMEOUT_S, ClusterClient
from squall.cluster.client.connection import connected
from squall.cluster.client.local_datacenter import resolved
from squall.cluster.group.wall_clocks import CLOCK_OFF_S
from squall.cluster.protocol.group_messages import (
    AskGroup,
    ChangeMembers,
    GroupView,
    HandedOver,
    HandOver,
    MembersChanged,
    MemberView,
)
from squall.cluster.wire.seal.secrets import Secrets
from squall.reporting.number_format import plural
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop
from squall.runtime.addresses import shown_address

EACH_S = 2.0
"""How long each manager has to answer when all are asked."""
CHANGE_S = 60.0
"""A change waits for the managers that join, and for the next epoch."""
NEEDS_SECRET = (
    "changing the group needs the cluster's own secret, not a credential made from it: use "
    "the --secret-file of a manager"
)


def execute(arguments: Namespace) -> int:
    change_of(arguments)
    access = client_access(arguments)
    if arguments.group_command != "status":
        access = operator_access(arguments, access)
    return asyncio.run(_answered(arguments, access))


def operator_access(arguments: Namespace, access: ClusterAccess) -> ClusterAccess:
    options = resolved(AccessOptions(arguments.to or "", secret_file=arguments.secret_file or ""))
    sending, *accepted = secret_lines(options.secret_file, cluster_settings())
    if sending.startswith(CREDENTIAL):
        raise ConfigError(NEEDS_SECRET)
    return replace(access, secrets=Secrets.of_node(sending, accepted))


async def _answered(arguments: Namespace, access: ClusterAccess) -> int:
    async with connected(access, None) as connection:
        client = connection.client
        if arguments.group_command == "status":
            return await _status(client, arguments)
        if arguments.group_command == "handover":
            return await _hand_over(client, arguments)
        return await _change(client, arguments)


async def _status(client: ClusterClient, arguments: Namespace) -> int:
    views = await _views(client)
    view = best_view(views)
    await _learn(client, view)
    if arguments.json:
        return print_json(view)
    print_or_drop("\n".join([*status_lines(view), *unheard_lines(view, views)]))
    return 0


async def _learn(client: ClusterClient, view: GroupView) -> None:
    """The next command finds these members, although its flags may name none of them."""
    if not client.managers.is_store and all(each.address for each in view.members):
        await client.learn(sorted(each.address for each in view.members))


async def _views(client: ClusterClient) -> list[GroupView]:
    """The views of all managers: the named ones, and those that they name. A single one may be
    cut off and know less than it seems."""
    if client.managers.is_store:
        return [await _ask(client, AskGroup(), QUERY_TIMEOUT_S)]
    first = await client.managers.ask_each(AskGroup(), timeout_s=EACH_S)
    if not first:
        return [await _ask(client, AskGroup(), QUERY_TIMEOUT_S)]
    told = {view.reported_by: view for view in first.values()}
    named = [
        address_of(each.address, each.name)
        for view in told.values()
        for each in view.members
        if each.address and each.name not in told
    ]
    if not named:
        return list(told.values())
    more = await client.managers.ask_each(AskGroup(), of=named, timeout_s=EACH_S)
    told.update((view.reported_by, view) for view in more.values())
    return list(told.values())


def best_view(views: list[GroupView]) -> GroupView:
    """Prefers a manager that hears a quorum, then the highest epoch and view, then one that
    knows a leader or leads itself."""

    def rank(view: GroupView) -> tuple[bool, int, int, bool, bool]:
        return (
            _here(view) >= view.quorum,
            view.epoch,
            view.view,
            bool(view.leader),
            view.leader == view.reported_by,
        )

    return max(views, key=rank)


def unheard_lines(view: GroupView, views: list[GroupView]) -> list[str]:
    """Managers that answer us but that the manager behind `view` does not hear."""
    answered = {each.reported_by for each in views}
    lost = [each.name for each in view.members if each.state == "silent" and each.name in answered]
    return [
        f"{name} answers here, but {view.reported_by} does not hear it: "
        "check the network between them"
        for name in lost
    ]


async def _hand_over(client: ClusterClient, arguments: Namespace) -> int:
    view = best_view(await _views(client))
    answer: HandedOver = await _ask(client, HandOver(view.leader), CHANGE_S)
    if arguments.json:
        return print_json(answer)
    print_or_drop(f"{answer.leader} leads now; the handover took {answer.took_ms:.0f} ms")
    return 0


async def _change(client: ClusterClient, arguments: Namespace) -> int:
    change = change_of(arguments)
    assert change is not None
    answer: MembersChanged = await _ask(client, change, CHANGE_S)
    with contextlib.suppress(SquallError):
        await _learn(client, best_view(await _views(client)))
    if arguments.json:
        return print_json(answer)
    members = f"epoch {answer.epoch}: {', '.join(answer.members)}"
    if answer.repeated:
        print_or_drop(f"nothing to do: the group already is {members}")
        return 0
    away = [name for name in change.gone if name not in change.added]
    rest = f"; you may stop {' and '.join(away)} now" if away else ""
    print_or_drop(f"done, {members}{rest}")
    return 0


async def _ask(client: ClusterClient, message: Any, timeout_s: float) -> Any:
    return await client.managers.ask(message, timeout_s=timeout_s, reconnect_timeout_s=timeout_s)


def change_of(arguments: Namespace) -> ChangeMembers | None:
    """The change that the command asks for; None if it changes no members."""
    match arguments.group_command:
        case "replace":
            return ChangeMembers(gone=[arguments.old], added=_named([arguments.new]))
        case "add":
            return ChangeMembers(added=_named(arguments.new))
        case "remove":
            if len(set(arguments.old)) < len(arguments.old):
                raise UsageError("a manager is named twice")
            return ChangeMembers(gone=list(arguments.old))
        case _:
            return None


def _named(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise UsageError(f"{word}: write NAME=HOST:PORT, such as m4=10.0.0.4:7400")
        if name in found:
            raise UsageError(f"{name} is named twice")
        found[name] = shown_address(address_of(text, f"{name}="))
    return found


def _here(view: GroupView) -> int:
    """The members that count for a quorum, as far as the answering manager knows."""
    votes = ("leads", "follows", "electing")
    return sum(each.state in votes for each in view.members if each.is_member)


def status_lines(view: GroupView) -> list[str]:
    members = [each for each in view.members if each.is_member]
    here = _here(view)
    led = f"led by {view.leader}" if view.leader else "no leader"
    lines = [
        f"group {view.group or '(not formed yet)'}: {plural(len(members), view.role)}, {led}, "
        f"epoch {view.epoch}, view {view.view}, as {view.reported_by} knows it"
    ]
    rows = [("NAME", "ADDRESS", "STATE", "DISK", "APPLIED", "COMMITTED", "BEHIND", "HEARD", "FREE")]
    rows += [_row(each, view.reported_by) for each in view.members]
    lines += aligned(rows)
    if not view.group:
        lines.append(f"the group forms once all {view.role}s have started with empty directories")
    elif here < view.quorum:
        lines.append(
            f"NO QUORUM: {here} of {len(members)} answer, {view.quorum} are needed; start the "
            "others or, if their disks are lost for good, use squall recover"
        )
    elif here < len(members):
        left = here - view.quorum
        rest = f"{left} more may fail" if left else "no other may fail"
        lines.append(f"DEGRADED: {len(members) - here} of {len(members)} are missing; {rest}")
    if view.degraded_durability:
        held = sum(each.region == view.degraded_durability for each in members)
        lines.append(
            f"DEGRADED DURABILITY: region {view.degraded_durability} holds {held} of "
            f"{len(members)}, a quorum: without it the group stops, and may lose its last jobs"
        )
    waiting = [each for each in view.members if each.state == "waits"]
    lines += [f"{each.name} waits to be admitted: {_admit(each)}" for each in waiting]
    lines += clock_lines({each.name: each.clock_s for each in view.members})
    lines += [f"ALARM {text}" for text in view.alarms]
    told = [each for each in view.members if each.alarms and each.name != view.reported_by]
    lines += [f"{each.name} raised {plural(each.alarms, 'alarm')}: see its log" for each in told]
    return lines


def clock_lines(clocks: Mapping[str, float]) -> list[str]:
    """A line for each manager whose wall clock is wrong; `clocks` are the offsets in seconds."""
    return [
        f"CLOCK the wall clock of {name} is {abs(each):,.1f} s "
        f"{'ahead of' if each > 0 else 'behind'} the other managers': synchronize it; "
        "only times that people see depend on it"
        for name, each in sorted(clocks.items())
        if abs(each) > CLOCK_OFF_S
    ]


def _admit(member: MemberView) -> str:
    if member.is_member:
        return f"squall group replace {member.name} {member.name}={member.address}"
    return f"squall group replace OLD {member.name}={member.address}, or squall group add"


def _row(member: MemberView, reported_by: str) -> tuple[str, ...]:
    known = member.heard_s >= 0
    heard = (
        "-" if member.name == reported_by else f"{member.heard_s:.1f} s ago" if known else "never"
    )
    numbers = (member.applied, member.committed, member.behind)
    shown = tuple(str(number) if known else "-" for number in numbers)
    free = f"{member.disk_free / 1e9:.1f} GB" if member.disk_free >= 0 else "-"
    return (
        member.name, member.address, member.state, member.storage[:8] or "-", *shown, heard, free,
    )  # fmt: skip
