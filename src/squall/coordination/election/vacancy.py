"""Reports each change of the leader, and how long there was none. Pure; decides nothing.

A member that joins a group with a leader, or that reads the lease too rarely to see the vacancy,
reports no duration.
"""

from __future__ import annotations

from squall.coordination.election.messages import HolderChanged, SeenLease


class VacancyTracker:
    """Compares each read of the lease with the one before, for one boot of a member."""

    def __init__(self) -> None:
        self._vacant_since: float | None = None

    def vacant(self, since: float) -> None:
        """No member leads since then; a later call for the same vacancy changes nothing."""
        if self._vacant_since is None:
            self._vacant_since = since

    def changed(
        self, before: SeenLease | None, seen: SeenLease | None, now: float
    ) -> list[HolderChanged]:
        """The record has another version than at the last read."""
        lease = None if seen is None else seen.lease
        if lease is None or lease.released or not lease.member_id:
            return []
        since, self._vacant_since = self._vacant_since, None
        old = None if before is None else before.lease
        if old is not None and old.epoch == lease.epoch:
            return []
        vacant_s = None if since is None else max(0.0, now - since)
        return [HolderChanged("" if old is None else old.member_id, lease, vacant_s)]
