"""Reports in the log and as metrics what a member's start and its checkpoints took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from squall.cluster.ledger.files.checkpoints import Checkpoints
from squall.cluster.ledger.group_member.durable_state import DurableState
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.metrics import Registry


class RecoveryReport:
    """Follows one start of a member: its files are read, its log is replayed, and, if it had lost
    something, it is mended."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._began = clock.now()
        self._read_s = 0.0
        # -1 until everything is applied that was known to be committed at the start.
        self._replay_s = -1.0
        self._commit = 0
        self._entries = 0
        self._skipped = 0
        self._mending = False

    def read(self, durable_state: DurableState) -> None:
        """Reports what is on the disk. Its entries are not applied yet."""
        recovered, wal = durable_state.recovered, durable_state.wal
        for text in durable_state.checkpoints.skipped:
            self._log.error("checkpoint_skipped", reason=text)
        self._read_s = self._clock.now() - self._began
        self._skipped = len(durable_state.checkpoints.skipped)
        self._entries, self._commit = len(recovered.entries), recovered.commit
        self._log.info(
            "ledger_recovered",
            directory=wal.directory,
            first=wal.recovered.first_lsn,
            last=wal.next_lsn - 1,
            checkpoint=recovered.base.op,
            entries=self._entries,
            op=recovered.entries[-1].op if recovered.entries else recovered.base.op,
            committed=self._commit,
            torn_bytes=wal.recovered.torn_bytes,
            closed_in_order=wal.recovered.clean,
            mending=bool(recovered.mending),
            took_s=round(self._read_s, 3),
        )
        self._mending = bool(recovered.mending)
        if not recovered.entries:
            # There is nothing to replay.
            self._replay_s = self._read_s

    def applied(self, op: int) -> None:
        """Called often. A member of a larger group may know only later what is committed above
        its own commit number; that is not part of its replay."""
        if self._replay_s >= 0.0 or op < self._commit:
            return
        self._replay_s = self._clock.now() - self._began
        self._log.info("ledger_replayed", op=self._commit, took_s=round(self._replay_s, 3))

    def mended(self) -> float:
        """Returns the seconds since the start."""
        self._mending = False
        return self._clock.now() - self._began

    def add_metrics(self, registry: Registry) -> None:
        _show(
            registry,
            "squall_recovery",
            ("read_seconds", "time to read the files at the start", lambda: self._read_s),
            (
                "seconds",
                "time until all that was known to be committed is applied, -1 before",
                lambda: self._replay_s,
            ),
            ("entries", "entries of the log after the checkpoint", lambda: self._entries),
            ("skipped_checkpoints", "checkpoints not readable at the start", lambda: self._skipped),
            ("mending", "1 while lost entries are fetched from others", lambda: self._mending),
        )


@dataclass(slots=True)
class CheckpointCounters:
    """What a member did with checkpoints since its start."""

    written: int = 0
    installed: int = 0
    """Those of other members, because this one was too far behind for the log."""
    failed: int = 0
    last_s: float = 0.0
    """How long the last one took to write."""
    last_at: float = 0.0

    def add_metrics(self, registry: Registry, checkpoints: Checkpoints, clock: Clock) -> None:
        self.last_at = self.last_at or clock.now()
        _show(
            registry,
            "squall_checkpoint",
            ("written", "checkpoints written since the start", lambda: self.written),
            ("installed", "checkpoints taken from others", lambda: self.installed),
            ("failed", "checkpoints that could not be written or sent", lambda: self.failed),
            ("seconds", "time that the last one took", lambda: self.last_s),
            ("bytes", "size of the newest one", lambda: checkpoints.last_bytes),
            (
                "op",
                "entry up to which the newest one reaches",
                lambda: checkpoints.heads[-1].base.op if checkpoints.heads else 0,
            ),
            (
                "age_seconds",
                "time since the last one, or since the start",
                lambda: clock.now() - self.last_at,
            ),
        )


def _show(registry: Registry, prefix: str, *shown: tuple[str, str, Callable[[], float]]) -> None:
    for name, text, value in shown:
        registry.gauge(f"{prefix}_{name}", text).follow(value)
