"""Which nodes hear which: what each member answers, and the list that `squall members` shows.

The numbers 120 to 125 belong to this module.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.protocol.membership.order import NodeRole
from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.roles import Role

FROM_CLIENT = (Role.CLIENT, Role.NODE)

MemberState = Literal["alive", "unconfirmed", "suspect", "dead", "left"]
"""`unconfirmed`: known from others only, so it cannot be suspected."""


class Contact(msgspec.Struct, frozen=True, array_like=True):
    """One member, as another one sees it."""

    node: str
    boot: str
    role: NodeRole
    address: str
    state: MemberState
    heard_s: float
    """Seconds since a datagram of it arrived; negative: none did."""
    missed: bool
    """It did not answer the last direct probe."""
    rtt_ms: float
    """Of direct probes, or estimated from coordinates; negative: not known."""
    changed_s: float
    """Seconds since its state changed."""


@message(120, MessageClass.DATA, size=SizeClass.BULK, light=True)
class AskContacts(msgspec.Struct, frozen=True):
    """A manager or gate asks a member whom it hears."""


@message(121, MessageClass.DATA, size=SizeClass.BULK)
class Contacts(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    is_on: bool = False
    health: int = 0
    """Its local health score: 0 is healthy, higher ones are slower in their own loop."""
    contacts: list[Contact] = []


class MemberRow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One member, as the members that were asked see it."""

    name: str
    role: NodeRole
    boot: str
    address: str = ""
    state: str = ""
    """As the answering member has it: alive, unconfirmed, suspect, dead, left; "apart": it takes no
    part in membership."""
    changed_s: float = 0.0
    heard_by: list[str] = []
    not_heard_by: list[str] = []
    """Members that probed it lately and got no direct answer."""
    rtt_ms: float = -1.0
    """From the answering member."""
    health: int = -1
    """Negative: it was not asked, or did not answer."""


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
