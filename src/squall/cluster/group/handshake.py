"""Presents the settings that the managers of a group must share when they connect.

The handshake refuses a manager with different timers, because leases and elections rely on
equal ones (R5), and a manager with the data directory of another group. Both sides report
the refusal in their logs and in `squall group status`. A manager that does not know its group
yet, or is in an older epoch, gets a link and catches up (R2).
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.ledger.interface import Ledger
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.negotiation import GroupSettings
from squall.settings.loader import digest
from squall.settings.shared_sections import TimerSettings


class GroupHandshake:
    """Keeps the settings that this manager presents on its links up to date."""

    def __init__(
        self, board: Switchboard, watch: GroupWatch, *, name: str, timers: TimerSettings
    ) -> None:
        """`name` is the group name from this manager's settings."""
        self._board = board
        self._watch = watch
        self._settings = GroupSettings(group=name, timers=bytes.fromhex(digest(timers)))
        self._present(self._settings)

    def refresh(self, ledger: Ledger) -> None:
        """Updates the settings once the group is known, and reports each refusal once. The
        manager calls it regularly."""
        transport = self._watch.transport
        if transport is None:
            # The log is in a store, so the managers have no links with each other.
            return
        group = ledger.standing().group
        formed = blake2b(group.encode(), digest_size=16).digest() if group else b""
        known = replace(self._settings, epoch=ledger.fence.epoch, digest=formed)
        # The group and the epoch change after the links exist, so later handshakes need them.
        if known != self._settings:
            self._present(known)
        for node, text in transport.refusals().items():
            self._watch.alarm_once(f"no link to {node}: {text}")
        for node, heard in self._watch.heard.items():
            if group and heard.note.group not in ("", group):
                self._watch.alarm_once(f"{node} has the data directory of another group")

    def _present(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._board.profile = replace(self._board.profile, settings=settings)
