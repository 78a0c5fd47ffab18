"""Anti-entropy: members compare what they made of the same commands.

Every so many ops each member hashes its state as it was after exactly that command and
tells the others. Whoever finds itself alone against a quorum stops, with an alarm, and
its files are kept; the others only raise the alarm. Nothing is merged or repaired here.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from squall.ledger.apply import Applier
from squall.ledger.interface import Capture, Entry, LedgerFailed
from squall.ledger.replica.exchange import Message, StateDigest
from squall.runtime.tasks import TaskRunner

if TYPE_CHECKING:
    from squall.ledger.replica.ledger import GroupLedger

KEPT = 8
"""Digests of so many ops are kept for those who are late."""


class Digests:
    def __init__(
        self, ledger: GroupLedger, applier: Applier, tasks: TaskRunner, *, every: int
    ) -> None:
        self._ledger = ledger
        self._applier = applier
        self._tasks = tasks
        self._every = every
        self._turn = 0
        self._known: dict[int, dict[str, bytes]] = {}
        """Op, storage, digest."""
        self.compared = 0
        applier.on_applied(self._applied)

    def _applied(self, entry: Entry, result: bytes) -> None:
        turn = int(entry.op) // self._every
        if turn == self._turn:
            return
        first, self._turn = self._turn == 0, turn
        # After a start or a snapshot the turn is unknown: others may have begun it earlier.
        if not first or turn == 1:
            capture = self._applier.machine.capture()
            self._tasks.start("state digest", self._tell(int(entry.op), capture), group="ledger")

    async def _tell(self, op: int, capture: Capture) -> None:
        digest = blake2b(digest_size=16)
        for piece in capture.slices():
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
        mine = StateDigest(op, self._ledger.member.storage, digest.digest())
        self._ledger.tell(self._ledger.replica.core.others(), mine)
        self.handle(mine)

    def handle(self, message: Message) -> None:
        if not isinstance(message, StateDigest):
            return
        config = self._ledger.replica.core.config
        if config is None or message.storage not in [m.storage for m in config.members]:
            return
        found = self._known.setdefault(message.op, {})
        found[message.storage] = message.digest
        while len(self._known) > KEPT:
            del self._known[min(self._known)]
        self._compare(message.op, found, config.quorum)

    def _compare(self, op: int, found: dict[str, bytes], quorum: int) -> None:
        mine = found.get(self._ledger.member.storage)
        if mine is None or len(found) < 2:
            return
        self.compared += 1
        for storage, digest in sorted(found.items()):
            if digest == mine:
                continue
            self._ledger.alarm(f"the state after op {op} differs from that of {storage}")
            if sum(each == digest for each in found.values()) >= quorum:
                self._ledger.fail(
                    LedgerFailed(
                        f"the state after op {op} is not that of the group; files are kept"
                    )
                )
                return
