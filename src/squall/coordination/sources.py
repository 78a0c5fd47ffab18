"""The streams that a member reads: its own, and the inboxes that it adopted.

An inbox is adopted under the incarnation of its owner that has ended. It is its owner's again as
soon as the registration shows another one; writes to it are bound to that registration. It must
never stand between a member that lives and its signals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from squall.coordination import keys
from squall.coordination.assembly import Assembly
from squall.coordination.records import MemberRecord
from squall.coordination.stores.interface import ABSENT, Check, Record


@dataclass
class Source:
    """A stream that is read: the member's own, or one that it adopted."""

    stream: str
    receiver_id: str
    cursor: str = ""
    owner_incarnation: int = 0
    """Of one that was adopted: the incarnation of its owner that has ended."""
    owner: Check | None = None
    """Of one that was adopted: holds while its owner has not come back."""


class Sources:
    """Of one member; its own is the first."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts
        self.own = Source(keys.inbox(parts.member_id), parts.member_id)
        self._adopted: dict[str, Source] = {}

    def __iter__(self) -> Iterator[Source]:
        yield self.own
        yield from list(self._adopted.values())

    @property
    def is_single(self) -> bool:
        return not self._adopted

    def adopt(self, found: Record, dead: MemberRecord) -> None:
        before = self._adopted.get(dead.member_id)
        if before is None or before.owner_incarnation != dead.incarnation:
            self._adopted[dead.member_id] = Source(
                keys.inbox(dead.member_id),
                dead.member_id,
                owner_incarnation=dead.incarnation,
                owner=Check(found.key, found.version),
            )

    def find(self, receiver_id: str, owner_incarnation: int) -> Source | None:
        """None if its owner came back."""
        if receiver_id == self.own.receiver_id:
            return self.own
        source = self._adopted.get(receiver_id)
        return source if source and source.owner_incarnation == owner_incarnation else None

    async def is_given_up(self, source: Source) -> bool:
        """Looks whether the owner of an adopted inbox came back; then it is not read any more."""
        key = keys.member(source.receiver_id)
        (found,) = await self._parts.urgent.get(key)
        known = (
            None
            if found is None
            else self._parts.codec.read(MemberRecord, found.value, key=found.key)
        )
        is_gone = (
            known is not None
            and known.incarnation == source.owner_incarnation
            and known.status != "alive"
        )
        if found is None or is_gone:
            # Written again, or forgotten after a week: still nobody's.
            source.owner = Check(key, ABSENT if found is None else found.version)
            return False
        if self._adopted.get(source.receiver_id) is source:
            del self._adopted[source.receiver_id]
        return True
