"""Catching up: a member fetches the log entries that it lacks, in chunks.

Two rules keep this safe. A member may take committed entries from any member at any time:
they are the same everywhere, so a local entry that differs was never committed. It takes the
uncommitted rest of a view's log only from a member that holds that log (the primary, or the
voter whose log was chosen), stages the entries until they connect to its own log, and installs
them in one record together with the new last-normal fence.

If the peer has already trimmed the entries, the driver fetches the peer's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from squall.cluster.ledger.interface import Fence
from squall.cluster.ledger.replica.effects import Diverged, FetchSnapshot, Mended
from squall.cluster.ledger.replica.messages import Entries, Fetch, Packet
from squall.cluster.ledger.replica.state import Core
from squall.cluster.ledger.replica.types import Base, Checksum, LogEntry, Status, is_whole
from squall.runtime.interfaces import NodeId

CHUNK_BYTES = 48_000


class Target(NamedTuple):
    """The log of a view that this member must install: it ends at `op`, and `source` holds it."""

    fence: Fence
    op: int
    checksum: Checksum
    source: NodeId
    source_commit: int
    """The source's commit number: up to here it serves entries as committed."""
    commit: int
    """The highest commit number known to this member; may exceed `source_commit`."""


class Transfer:
    """Fetches the entries that this member lacks and serves entries to other members."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # The log of a view that is being fetched, and the callback for when it is installed.
        self._target: Target | None = None
        self._installed: Callable[[], None] = lambda: None
        # Uncommitted entries of that log: a chain that follows `core.commit`.
        self._staged: list[LogEntry] = []
        # The member that serves committed entries to this one, and the last op wanted from it.
        self._source: NodeId | None = None
        self._wanted = 0
        self._asked_at = 0.0

    # The log of a view.

    def adopt(self, target: Target, installed: Callable[[], None]) -> None:
        if self._target is not None and self._target.fence > target.fence:
            return
        self._target = target
        self._installed = installed
        self._staged = []
        self._proceed()

    def is_adopting(self, fence: Fence) -> bool:
        return self._target is not None and self._target.fence == fence

    def cancel(self) -> None:
        self._target = None
        self._staged = []

    # Committed entries.

    def catch_up(self, source: NodeId, commit: int) -> None:
        core = self._core
        if commit <= core.commit:
            return
        busy = self._source is not None and core.now - self._asked_at < core.timers.heartbeat_s
        self._wanted = max(self._wanted, commit)
        if not busy:
            self._source = source
            self._ask(core.commit + 1, None, source)

    # Requests from other members.

    def fetch(self, packet: Packet, fetch: Fetch) -> None:
        core = self._core
        if core.config is None:
            return
        if fetch.fence is None:
            last = core.commit
        elif fetch.fence == core.fence and (core.leading or core.status is Status.VIEW_CHANGE):
            # A log with a hole must not become the log of a view (R2).
            if core.mending:
                return
            last = core.log.last
        elif fetch.first == 1:
            # Op 1 is the same in every view, so a member without a group may have it. The send
            # below waits until it is durable here.
            last = 1
        else:
            return
        snapshot = core.log.base_op if fetch.first <= core.log.base_op else 0
        entries = () if snapshot else core.log.slice(fetch.first, last, CHUNK_BYTES)
        answer = Entries(fetch.fence, fetch.first, entries, core.commit, snapshot)
        core.send(packet.sender.node, answer, after=core.promised)

    # Answers.

    def entries(self, packet: Packet, answer: Entries) -> None:
        if not all(is_whole(entry) for entry in answer.entries):
            return
        source = packet.sender.node
        if answer.snapshot:
            # The driver ignores this while it fetches or installs a checkpoint. It must hear of
            # each such answer, because a transfer or an installation may have failed.
            if answer.snapshot > self._core.commit:
                self._core.effects.append(FetchSnapshot(source, answer.snapshot))
        elif answer.fence is None:
            self._take_committed(source, answer)
        elif self._target is not None and self._target.fence == answer.fence:
            self._stage(answer)

    def snapshot_installed(self, base: Base) -> None:
        """Replaces the log up to `base.op` by the checkpoint that the driver has loaded."""
        core = self._core
        if base.op <= core.commit:
            return
        core.step_down("other members committed entries that this one lacks")
        core.log.restart(base.op, base.checksum)
        core.commit = int(base.op)
        core.durable_op = max(min(core.durable_op, core.log.last), core.log.base_op)
        core.group = base.group
        core.active_version = max(core.active_version, base.active_version)
        core.clock.floor(base.group_ms)
        self._staged = []
        # The entries are part of the checkpoint. The record names it, so that a start that cannot
        # read the checkpoint notices the hole (R2).
        core.persist(restart_op=int(base.op), restart_checksum=base.checksum)
        if base.config is not None and (
            core.config is None or base.config.epoch > core.config.epoch
        ):
            core.on_epoch(base.config)
        self._proceed()

    def _take_committed(self, source: NodeId, answer: Entries) -> None:
        core = self._core
        fresh = [entry for entry in answer.entries if entry.op > core.commit]
        if not fresh or fresh[0].op != core.commit + 1 or fresh[-1].op > answer.commit:
            return
        if fresh[0].previous != core.log.checksum(core.commit):
            core.effects.append(Diverged(f"op {core.commit} differs from that of {source}"))
            return
        keep = self._agreement(fresh)
        new = tuple(entry for entry in fresh if entry.op > keep)
        if new:
            # The other members went on without this one. It steps down first, so that none of
            # its own proposals is answered from an entry that another primary proposed.
            core.step_down("other members committed entries that this one lacks")
            core.log.cut(keep)
            for entry in new:
                core.log.append(entry)
            core.persist(keep=keep, entries=new)
        self._source = None
        wanted = self._wanted
        core.learn_commit(int(fresh[-1].op))
        if core.commit < wanted:
            self.catch_up(source, wanted)
        self._proceed()

    def _agreement(self, entries: list[LogEntry]) -> int:
        """Returns the last op up to which this log holds the same entries."""
        for entry in entries:
            if self._core.log.checksum(entry.op) != entry.checksum:
                return int(entry.op) - 1
        return int(entries[-1].op)

    def _stage(self, answer: Entries) -> None:
        for entry in answer.entries:
            expected = self._core.commit + len(self._staged) + 1
            if entry.op == expected and self._joins(entry):
                self._staged.append(entry)
        self._core.restart_election_timer()
        self._proceed()

    def _joins(self, entry: LogEntry) -> bool:
        if self._staged:
            return entry.previous == self._staged[-1].checksum
        return entry.previous == self._core.log.checksum(self._core.commit)

    # Progress.

    def tick(self) -> None:
        """Repeats a request that got no answer for a heartbeat."""
        core = self._core
        if core.now - self._asked_at < core.timers.heartbeat_s:
            return
        if self._target is not None:
            self._proceed()
        elif self._source is not None and self._wanted > core.commit:
            self._ask(core.commit + 1, None, self._source)

    def _proceed(self) -> None:
        core = self._core
        target = self._target
        if target is None:
            return
        if target.fence < core.fence:
            self.cancel()
            return
        self._staged = [entry for entry in self._staged if entry.op > core.commit]
        if target.op < core.commit:
            # Stale: this view or a later one has committed more since.
            self.cancel()
        elif core.log.checksum(target.op) == target.checksum:
            self._install(target, int(target.op), ())
        elif self._staged and self._staged[-1].op >= target.op:
            staged = [entry for entry in self._staged if entry.op <= target.op]
            if staged[-1].checksum != target.checksum:
                self.cancel()
                return
            keep = self._agreement(staged)
            self._install(target, keep, tuple(each for each in staged if each.op > keep))
        elif target.source_commit > core.commit:
            self._ask(core.commit + 1, None, target.source)
        else:
            first = int(self._staged[-1].op) + 1 if self._staged else core.commit + 1
            self._ask(first, target.fence, target.source)

    def _install(self, target: Target, keep: int, entries: tuple[LogEntry, ...]) -> None:
        """Makes the log that of the view. One record stores it with the promise and last-normal,
        so that a crash cannot separate them."""
        core = self._core
        installed = self._installed
        self.cancel()
        if target.fence > core.fence:
            core.step_down("another view began")
            core.fence = target.fence
            core.highest_view = max(core.highest_view, target.fence.view)
        core.log.cut(keep)
        for entry in entries:
            core.log.append(entry)
        core.status = Status.NORMAL
        core.last_normal = core.fence
        core.persist(keep=keep, entries=entries)
        core.promised = core.issued
        if core.mending:
            # The log of a view holds every entry that was committed with this member's
            # acknowledgment, so nothing is missing any more (R2).
            core.mending = False
            core.effects.append(Mended(core.issued))
        epoch = core.fence.epoch
        core.learn_commit(min(target.commit, core.log.last))
        if core.fence.epoch == epoch:
            installed()

    def _ask(self, first: int, fence: Fence | None, source: NodeId) -> None:
        core = self._core
        self._asked_at = core.now
        core.send(source, Fetch(first, fence))
