"""Which nodes hear which: what each member answers, and the list that `squall members` shows.

The numbers 120 to 125 belong to this module.
"""

from __future__ import annotations

import msgspec

from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.roles import Role

FROM_CLIENT = (Role.CLIENT, Role.NODE)


class Contact(msgspec.Struct, frozen=True, array_like=True):
    """One member, as another one sees it."""

    node: str
    boot: str
    role: str
    """manager, worker, gate."""
    address: str
    state: str
    """alive, unconfirmed (never reached, so it cannot be suspected), suspect, dead, left."""
    since_s: float
    """How long it is in this state."""
    heard_s: float
    """Seconds since its last datagram; negative: there was none."""
    heard_by: tuple[str, ...]
    """Members that reached it lately, as far as the answering one knows."""
    not_heard_by: tuple[str, ...]
    """Members that probed it in vain."""
    rtt_ms: float
    """Negative: never measured."""
    health: int
    """Its local health score, as it reports it."""
    says: str = ""
    """What it says of itself: whether it leads, how many of its cores are busy."""


class MemberContacts(msgspec.Struct, frozen=True, array_like=True):
    """All members, as one of them sees them."""

    node: str
    contacts: list[Contact]


@message(120, MessageClass.DATA, size=SizeClass.BULK, light=True)
class AskContacts(msgspec.Struct, frozen=True):
    """A manager or gate asks a member whom it hears."""


@message(121, MessageClass.DATA, size=SizeClass.BULK)
class Contacts(msgspec.Struct, frozen=True, omit_defaults=True):
    answers: list[MemberContacts] = []
    """Empty: membership is off there. Of a manager: also what some of its workers answered."""


class MemberRow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One member, as the members that were asked see it."""

    name: str
    role: str
    boot: str
    address: str = ""
    state: str = ""
    """As the answering member has it: alive, unconfirmed, suspect, dead, left; "apart": it takes no
    part in membership."""
    since_s: float = 0.0
    heard_by: list[str] = []
    not_heard_by: list[str] = []
    """Members that probed it in vain."""
    rtt_ms: float = -1.0
    """From the answering member."""
    health: int = 0
    """Its local health score: 0 is healthy, 8 is slow or badly connected."""
    says: str = ""


@message(122, MessageClass.DATA, size=SizeClass.BULK, senders=FROM_CLIENT)
class AskMembers(msgspec.Struct, frozen=True, omit_defaults=True):
    datacenter: str = ""
    """Asked of a gate: the members of this datacenter; empty: the gates."""


@message(123, MessageClass.DATA, size=SizeClass.BULK)
class MemberList(msgspec.Struct, frozen=True, omit_defaults=True):
    datacenter: str
    reported_by: str
    off: str = ""
    """Why membership is off; "": it is on."""
    asked: int = 0
    """How many members said whom they hear, the answering one among them."""
    members: list[MemberRow] = []
