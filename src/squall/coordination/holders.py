"""Who leads, as one member saw it from one reading of the lease to the next. Pure.

It tells a new holder, and how long nobody led before. Who joins a group that is led, or looks
too rarely to see the time in between, says nothing about that. It decides nothing.
"""

from __future__ import annotations

from squall.coordination.election_messages import HolderChanged, Seen


class Holders:
    """Of one incarnation of one member."""

    def __init__(self) -> None:
        self._vacant_since: float | None = None

    def vacant(self, since: float) -> None:
        """Nobody leads; the first word counts."""
        if self._vacant_since is None:
            self._vacant_since = since

    def changed(self, before: Seen | None, seen: Seen | None, now: float) -> list[HolderChanged]:
        """The record has another version than before."""
        lease = None if seen is None else seen.lease
        if lease is None or lease.released or not lease.worker_id:
            return []
        since, self._vacant_since = self._vacant_since, None
        old = None if before is None else before.lease
        if old is not None and old.epoch == lease.epoch:
            return []
        vacant_s = None if since is None else max(0.0, now - since)
        return [HolderChanged("" if old is None else old.worker_id, lease, vacant_s)]
