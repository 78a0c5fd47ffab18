"""Anti-entropy: members compare the states that the same commands produced.

At a fixed interval of ops each member hashes its state after the same command and sends the digest
to the others. A member whose state differs from that of a quorum raises an alarm, stops and keeps
its files; the others only raise the alarm. The members merge and repair nothing.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from squall.cluster.ledger.apply import Applier
from squall.cluster.ledger.group_member.bulk_messages import Message, StateDigest
from squall.cluster.ledger.interface import Capture, Entry, LedgerFailed
from squall.runtime.tasks import TaskRunner

if TYPE_CHECKING:
    from squall.cluster.ledger.group_member.group_ledger import GroupLedger

DIGESTS_KEPT = 8
"""Number of ops whose digests are kept for members that report late."""


class Digests:
    """Hashes this member's state at fixed ops and compares it with that of the others."""

    def __init__(
        self, ledger: GroupLedger, applier: Applier, tasks: TaskRunner, *, every: int
    ) -> None:
        self._ledger = ledger
        self._applier = applier
        self._tasks = tasks
        self._every = every
        self._turn = 0
        # By op, then by storage id.
        self._known: dict[int, dict[str, bytes]] = {}
        self.compared = 0
        applier.on_applied(self._applied)

    def _applied(self, entry: Entry, result: bytes) -> None:
        turn = entry.op // self._every
        if turn == self._turn:
            return
        first, self._turn = self._turn == 0, turn
        if self._ledger.replica.core.is_alone:
            # There is no other state to compare with.
            return
        # The first entry after a start may lie in the middle of a turn, while other members
        # hashed their state at the turn's first command. Skip that turn.
        if not first or turn == 1:
            capture = self._applier.machine.capture()
            self._tasks.start(
                "state digest", self._send_digest(int(entry.op), capture), group="ledger"
            )

    async def _send_digest(self, op: int, capture: Capture) -> None:
        digest = blake2b(digest_size=16)
        for piece in capture.slices():
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
        mine = StateDigest(op, self._ledger.member.storage, digest.digest())
        self._ledger.send_message(self._ledger.replica.core.others(), mine)
        self.handle(mine)

    def handle(self, message: Message) -> None:
        if not isinstance(message, StateDigest):
            return
        config = self._ledger.replica.core.config
        if config is None or message.storage not in [m.storage for m in config.members]:
            return
        found = self._known.setdefault(message.op, {})
        found[message.storage] = message.digest
        while len(self._known) > DIGESTS_KEPT:
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
                        f"the state after op {op} differs from the group's; the files are kept"
                    )
                )
                return
