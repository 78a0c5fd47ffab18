"""The streams that a member reads: its own inbox, and the inboxes that it adopted.

An inbox is adopted for the boot of its owner that has ended. As soon as the owner's registration
shows another boot, the inbox is the owner's again. Writes to an adopted inbox are bound to the
version of that registration, so the adopter can never take a signal from an owner that lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from squall.coordination.member_parts import MemberParts
from squall.coordination.records import keys
from squall.coordination.records.schemas import MemberRecord
from squall.coordination.stores.interface import ABSENT, Check, Record


@dataclass
class InboxStream:
    """One inbox that this member reads, and how far it has read it."""

    stream: str
    receiver_id: str
    cursor: str = ""
    """The last item that was taken in; only moves forward, except when the store lost data."""
    owner_boot: int = 0
    """The ended boot for which the inbox was adopted; 0 for the member's own inbox."""
    owner: Check | None = None
    """Fails when the owner came back; None for the member's own inbox."""


class InboxStreams:
    """The inboxes of one member. Its own comes first."""

    def __init__(self, parts: MemberParts) -> None:
        self._parts = parts
        self.own = InboxStream(keys.inbox(parts.member_id), parts.member_id)
        self._adopted: dict[str, InboxStream] = {}

    def __iter__(self) -> Iterator[InboxStream]:
        yield self.own
        yield from list(self._adopted.values())

    @property
    def is_single(self) -> bool:
        return not self._adopted

    def adopt(self, found: Record, dead: MemberRecord) -> None:
        before = self._adopted.get(dead.member_id)
        if before is None or before.owner_boot != dead.boot:
            self._adopted[dead.member_id] = InboxStream(
                keys.inbox(dead.member_id),
                dead.member_id,
                owner_boot=dead.boot,
                owner=Check(found.key, found.version),
            )

    def find(self, receiver_id: str, owner_boot: int) -> InboxStream | None:
        """The inbox as it was adopted for that boot; None if its owner came back."""
        if receiver_id == self.own.receiver_id:
            return self.own
        inbox = self._adopted.get(receiver_id)
        return inbox if inbox and inbox.owner_boot == owner_boot else None

    async def is_given_up(self, inbox: InboxStream) -> bool:
        """Asks whether the owner of an adopted inbox came back, and then stops reading it.
        Otherwise binds the inbox to the owner's registration as it is now."""
        key = keys.member(inbox.receiver_id)
        (found,) = await self._parts.urgent.get(key)
        known = (
            None
            if found is None
            else self._parts.codec.read(MemberRecord, found.value, key=found.key)
        )
        is_gone = known is not None and known.boot == inbox.owner_boot and known.status != "alive"
        if found is None or is_gone:
            # Rewritten by a cleanup, or expired after a week: its owner is still gone.
            inbox.owner = Check(key, ABSENT if found is None else found.version)
            return False
        if self._adopted.get(inbox.receiver_id) is inbox:
            del self._adopted[inbox.receiver_id]
        return True
