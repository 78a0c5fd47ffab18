"""A group of managers as people see it. Pure: it shows and never decides."""

from __future__ import annotations

import msgspec

from squall.ledger.replica.ledger import GroupLedger
from squall.ledger.replica.types import Status
from squall.ledger.single import OneMemberLedger
from squall.nodes.group_messages import GroupView, MemberNote, MemberView
from squall.nodes.manager.group_watch import GroupWatch, shown_address
from squall.nodes.manager.log import ManagerLog

SHARED = "store"
"""In the place of a disk's id where the log lies in a store that is not this member's."""
MENDING = "mending"
"""Of a member whose disk lost something: it does not count for a quorum."""
SILENT_S = 2.0
"""Four notes of a manager were lost, or it is gone."""


def own_note(own: MemberNote, ledger: ManagerLog, watch: GroupWatch, speaks: int) -> MemberNote:
    """How this manager is; `own` has what only its process knows."""
    status, storage, group, committed, stale_s = "normal", "", "", int(ledger.applied), 0.0
    if isinstance(ledger, GroupLedger):
        core = ledger.replica.core
        status, storage, group = core.status.value, str(core.me.storage), str(core.group)
        if core.mending:
            status = MENDING
        committed = core.commit
        stale_s = min(ledger.staleness_s(), 1e9)
    elif isinstance(ledger, OneMemberLedger):
        storage, group = ledger.parts.storage_id, str(ledger.parts.group)
    else:
        storage = SHARED
    return msgspec.structs.replace(
        own,
        known={
            name: shown_address(at)
            for name, at in watch.addresses.items()
            if name != watch.node and name in _stored(ledger, watch, own)
        },
        status="failed" if ledger.failure is not None else status,
        leads=ledger.is_primary,
        group=group,
        storage=storage,
        epoch=ledger.fence.epoch,
        view=ledger.fence.view,
        applied=int(ledger.applied),
        committed=committed,
        stale_s=stale_s,
        speaks=speaks,
        alarms=watch.alarm_count,
    )


def group_view(ledger: ManagerLog, watch: GroupWatch, own: MemberNote) -> GroupView:
    storages = _stored(ledger, watch, own)
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
    return GroupView(
        group=own.group,
        told_by=watch.node,
        leader=str(leader) if leader is not None else "",
        epoch=own.epoch,
        view=own.view,
        quorum=quorum,
        active_version=ledger.active_version,
        members=[
            _member(name, notes.get(name), storages.get(name, ""), newest, watch) for name in names
        ],
        alarms=list(watch.alarms),
    )


def _member(
    name: str, note: MemberNote | None, stored: str, newest: int, watch: GroupWatch
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
    )


def member_state(note: MemberNote | None, heard_s: float, stored: str) -> str:
    """`stored` is the disk that the log admits for it; "": none."""
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


def _stored(ledger: ManagerLog, watch: GroupWatch, own: MemberNote) -> dict[str, str]:
    """The members by the log, with their disks; before there is a group those of the flags."""
    if isinstance(ledger, GroupLedger):
        config = ledger.replica.core.config
        if config is not None:
            return {str(member.node): str(member.storage) for member in config.members}
        return dict.fromkeys(watch.addresses, "")
    return {watch.node: own.storage}


def _heard_s(watch: GroupWatch, name: str) -> float:
    return 0.0 if name == watch.node else watch.silent_s(name)
