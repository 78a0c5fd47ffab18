"""Builds the views of a group for `squall group status` and `squall nodes`. It does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.ledger.interface import Ledger
from squall.cluster.ledger.replica.types import MENDING, Status
from squall.cluster.protocol.group_messages import GroupView, MemberNote, MemberView
from squall.runtime.addresses import shown_address

SILENT_S = 2.0
"""A manager without a note for this long is shown as silent: it missed four notes."""


def own_note(own: MemberNote, ledger: Ledger, watch: GroupWatch, speaks: int) -> MemberNote:
    """Completes this manager's note to the others; `own` holds the facts about its process."""
    standing = ledger.standing()
    members = _stored(ledger, watch)
    return msgspec.structs.replace(
        own,
        known={
            name: shown_address(at)
            for name, at in watch.addresses.items()
            if name != watch.node and name in members
        },
        status="failed" if ledger.failure is not None else standing.status,
        leads=ledger.is_primary,
        group=standing.group,
        storage=standing.storage,
        epoch=ledger.fence.epoch,
        view=ledger.fence.view,
        applied=int(ledger.applied),
        committed=standing.committed,
        stale_s=standing.stale_s,
        speaks=speaks,
        alarms=watch.alarm_count,
    )


def group_view(
    ledger: Ledger, watch: GroupWatch, own: MemberNote, role: str = "manager"
) -> GroupView:
    storages = _stored(ledger, watch)
    notes = {name: heard.note for name, heard in watch.heard.items()}
    notes[watch.node] = own
    leader = ledger.primary
    strangers = [
        name
        for name, note in notes.items()
        if name not in storages and 0 <= _heard_s(watch, name) <= SILENT_S and note.group
    ]
    names = [*sorted(storages), *sorted(strangers)]
    newest = max((notes[name].committed for name in names if name in notes), default=0)
    quorum = len(storages) // 2 + 1
    clocks = watch.clock_offsets()
    regions = [notes[name].region for name in storages if name in notes]
    return GroupView(
        group=own.group,
        reported_by=watch.node,
        leader=str(leader) if leader is not None else "",
        epoch=own.epoch,
        view=own.view,
        quorum=quorum,
        active_version=ledger.active_version,
        members=[
            _member(name, notes.get(name), storages.get(name, ""), newest, watch, clocks)
            for name in names
        ],
        alarms=list(watch.alarms),
        role=role,
        degraded_durability=quorum_region(regions, len(storages)),
    )


def quorum_region(regions: Sequence[str], members: int) -> str:
    """The region that holds a quorum of a group of so many members by itself; "" if none does.
    `regions` are those of the members that said so. A single member is not reported: it has no
    other region to be in."""
    counts = Counter(region for region in regions if region)
    region, most = max(counts.items(), key=lambda each: (each[1], each[0]), default=("", 0))
    return region if members > 1 and most >= members // 2 + 1 else ""


def _member(
    name: str,
    note: MemberNote | None,
    stored: str,
    newest: int,
    watch: GroupWatch,
    clocks: dict[str, float],
) -> MemberView:
    heard_s = _heard_s(watch, name)
    state = member_state(note, heard_s, stored)
    if note is None:
        return MemberView(
            name=name, address=watch.address_of(name), state=state, storage=stored, heard_s=heard_s
        )
    heard = watch.heard.get(name)
    return MemberView(
        name=name,
        address=note.address or watch.address_of(name),
        state=state,
        is_member=bool(stored),
        storage=note.storage if state == "waits" else stored or note.storage,
        epoch=note.epoch,
        view=note.view,
        applied=note.applied,
        committed=note.committed,
        behind=max(newest - note.applied, 0),
        heard_s=heard_s,
        stale_s=note.stale_s,
        speaks=note.speaks,
        disk_free=note.disk_free,
        alarms=note.alarms,
        version=note.version,
        pid=note.pid,
        boot=heard.boot if heard is not None else "",
        clock_s=round(clocks.get(name, 0.0), 3),
        region=note.region,
    )


def member_state(note: MemberNote | None, heard_s: float, stored: str) -> str:
    """The state to show for a manager. `stored` is the storage id that the log admits for it,
    or "" if the log admits none."""
    if note is None or heard_s > SILENT_S or heard_s < 0:
        return "silent"
    if note.status == "failed":
        return "failed"
    if note.status == Status.FORMING.value:
        return "forming"
    if not stored or note.storage != stored:
        return "waits"
    if note.status == MENDING:
        return MENDING
    if note.leads:
        return "leads"
    return "follows" if note.status == Status.NORMAL.value else "electing"


def _stored(ledger: Ledger, watch: GroupWatch) -> dict[str, str]:
    """The members in the log with their storage ids; before the group is formed, the managers
    named by the flags."""
    members = ledger.standing().members
    return dict.fromkeys(watch.addresses, "") if members is None else members


def _heard_s(watch: GroupWatch, name: str) -> float:
    return 0.0 if name == watch.node else watch.silent_s(name)
