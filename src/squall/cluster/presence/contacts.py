"""Answers which members this one hears, and merges the answers of several members into a list."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from squall.cluster.membership.effects import PeerView, State
from squall.cluster.presence.driver import MembershipDriver
from squall.cluster.protocol.membership.contacts import (
    AskContacts,
    Contact,
    Contacts,
    MemberContacts,
    MemberRow,
)
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.runtime.addresses import shown_address

NAMES_SHOWN = 3
PRESENT = (State.ALIVE.value, State.SUSPECT.value)


def contacts_of(driver: MembershipDriver) -> MemberContacts:
    return MemberContacts(driver.identity.node, [contact(view) for view in driver.members()])


def answer_contacts(handlers: Handlers, driver: MembershipDriver) -> None:
    """Registers the handler of `AskContacts`."""

    def answer(message: AskContacts, incoming: Incoming) -> Contacts:
        return Contacts([contacts_of(driver)] if driver.is_on else [])

    handlers.on(AskContacts, answer)


def contact(view: PeerView) -> Contact:
    # Who reached it before its end says nothing about it now.
    is_over = view.state in (State.DEAD, State.LEFT)
    return Contact(
        node=view.node,
        boot=view.boot,
        role=view.role.label,
        address=shown_address(view.address),
        state=view.state.value,
        since_s=round(view.since_s, 3),
        heard_s=-1.0 if view.heard_s is None else round(view.heard_s, 3),
        heard_by=() if is_over else view.heard_by,
        not_heard_by=view.unheard_by,
        rtt_ms=-1.0 if view.rtt_s is None else round(view.rtt_s * 1000.0, 3),
        health=view.health,
        says=_printable(view.embedded),
    )


def _printable(said: bytes) -> str:
    """Removes control characters: any member may send any text, and a terminal shows it."""
    text = said.decode(errors="replace")
    return "".join(character for character in text if character.isprintable())


def own_row(driver: MembershipDriver) -> MemberRow:
    """The row of the answering member itself, whether or not the others hear it."""
    own = driver.identity
    return MemberRow(
        name=own.node,
        role=own.role.label,
        boot=own.boot,
        address=shown_address(own.address),
        state=State.ALIVE.value,
        since_s=round(driver.age_s, 3),
        health=driver.core.health if driver.core is not None else 0,
        says=driver.said,
    )


def merged(own: MemberContacts, others: Sequence[MemberContacts], me: MemberRow) -> list[MemberRow]:
    """One row for `me` and each member that `own` knows, with what all of them say of its boot.
    What a member says of itself goes before what others heard of it."""
    hears: dict[tuple[str, str], dict[str, bool]] = {}
    answers = (*others, own)
    present = {me.name, *(each.node for each in own.contacts if each.state in PRESENT)}
    for answer in answers:
        for each in answer.contacts:
            said = hears.setdefault((each.node, each.boot), {})
            for name in each.heard_by:
                said.setdefault(name, True)
            for name in each.not_heard_by:
                said.setdefault(name, False)
    for answer in answers:
        for each in answer.contacts:
            if answer.node in each.heard_by or answer.node in each.not_heard_by:
                hears[each.node, each.boot][answer.node] = answer.node in each.heard_by
    rows = [me, *(_row(each) for each in own.contacts)]
    return [_with_hears(row, hears.get((row.name, row.boot), {}), present) for row in rows]


def _with_hears(row: MemberRow, hears: dict[str, bool], present: Container[str]) -> MemberRow:
    """Leaves out the answers of members that are gone: what they heard is out of date."""
    return msgspec.structs.replace(
        row,
        heard_by=sorted(name for name, does in hears.items() if does and name in present),
        not_heard_by=sorted(name for name, does in hears.items() if not does and name in present),
    )


def _row(each: Contact) -> MemberRow:
    return MemberRow(
        name=each.node,
        role=each.role,
        boot=each.boot,
        address=each.address,
        state=each.state,
        since_s=each.since_s,
        rtt_ms=each.rtt_ms,
        health=each.health,
        says=each.says,
    )


def who_hears(row: MemberRow) -> str:
    """One line: "w2 is alive: m2, m3 and w7 hear it, only m1 does not", or "nobody hears w2"."""
    if row.state == "left":
        return f"{row.name} left in order"
    if not row.heard_by:
        probed = f": {listed(row.not_heard_by)} probed it in vain" if row.not_heard_by else ""
        return f"nobody hears {row.name}{probed}"
    verb = "hears" if len(row.heard_by) == 1 else "hear"
    text = f"{row.name} is alive: {listed(row.heard_by)} {verb} it"
    if row.not_heard_by:
        alone = len(row.not_heard_by) == 1
        text += f", {'only ' if alone and len(row.heard_by) > 1 else ''}"
        text += f"{listed(row.not_heard_by)} {'does' if alone else 'do'} not"
    return text


def listed(names: Sequence[str]) -> str:
    """ "m2, m3 and w7", with the number of the others if there are many."""
    shown = list(names[:NAMES_SHOWN])
    if len(names) > NAMES_SHOWN:
        shown.append(f"{len(names) - NAMES_SHOWN} more")
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
