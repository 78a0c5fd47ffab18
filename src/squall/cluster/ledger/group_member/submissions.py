"""Proposes submitted commands to the core and answers each caller once its command is applied.

The commands of one turn of the event loop become one record on disk and one proposal, up to
`BATCH_OPS` and `BATCH_BYTES`. The rest of a burst follows in later turns: one huge proposal would
keep the loop from answering heartbeats, and the primary would lose its lead. A group of one that
has nothing under way proposes a lone command at once: it has no turn to share.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from squall.cluster.ledger.apply import Answer
from squall.cluster.ledger.group_member.waiting import refuse
from squall.cluster.ledger.interface import OutcomeUnknown, TryLater
from squall.cluster.ledger.replica.log import ENTRY_OVERHEAD
from squall.cluster.ledger.replica.types import LogEntry

if TYPE_CHECKING:
    from squall.cluster.ledger.group_member.group_ledger import GroupLedger

BATCH_OPS = 512
"""Most commands of one proposal: about 10 ms of work in a group of three."""
BATCH_BYTES = 512 * 1024
"""Most bytes of one proposal; one larger command still goes alone."""


class Submissions:
    """Collects the commands of a turn, and holds the answers of those that are not applied yet."""

    def __init__(self, ledger: GroupLedger) -> None:
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        # The commands of this turn: (version, body) and the answer.
        self._batch: list[tuple[tuple[int, bytes], Answer]] = []
        # The last batch held one command: the next one probably comes alone as well.
        self._is_lone = True
        # By op number: the answers to commands of this boot that are not applied yet.
        self.answers: dict[int, Answer] = {}

    def add(self, version: int, body: bytes) -> Answer:
        answer: Answer = self._loop.create_future()
        if not self._batch:
            ledger = self._ledger
            if self._is_lone and ledger.replica.is_idle() and not ledger.wal.waiting_records:
                # A group of one with nothing under way has room for any command. Waiting for a
                # turn would cost a lone caller more than its share of a batch saves.
                op, effects = ledger.replica.submit([(version, body)], ledger.now())
                self.answers[op] = answer
                ledger.perform(effects)
                return answer
            self._loop.call_soon(self.flush)
            # The writer runs right after `flush` and finds the record there. If the record
            # woke it, every commit would take one more turn of the event loop.
            ledger.wal.wake()
        self._batch.append(((version, body), answer))
        return answer

    def flush(self) -> None:
        """Proposes the next batch, as far as there is room for it, and leaves the rest of a burst
        to the next turn."""
        ledger = self._ledger
        if ledger.failure is not None or not ledger.replica.may_submit():
            batch, self._batch = self._batch, []
            for _, answer in batch:
                refuse(answer, ledger.failure or ledger.not_primary())
            return
        commands, answers = self._next()
        if self._batch:
            self._loop.call_soon(self.flush)
        self._is_lone = len(answers) == 1
        if answers:
            first, effects = ledger.replica.submit(commands, ledger.now())
            self.answers.update(enumerate(answers, first))
            ledger.perform(effects)

    def flush_all(self) -> None:
        """Proposes everything that waits, before the ledger closes."""
        while self._batch:
            self.flush()

    def _next(self) -> tuple[list[tuple[int, bytes]], list[Answer]]:
        """Takes the next batch; refuses the commands for which there is no room."""
        ops, size = self._room()
        taken = total = 0
        commands: list[tuple[int, bytes]] = []
        answers: list[Answer] = []
        for command, answer in self._batch:
            needed = len(command[1])
            if answers and (len(answers) >= BATCH_OPS or total + needed > BATCH_BYTES):
                break
            taken += 1
            if answer.done():
                # The caller stopped waiting before the command was proposed.
                continue
            if len(answers) >= ops or needed > size:
                text = "too much waits for the disk or the group"
                refuse(answer, TryLater(self._ledger.member.node, text))
                continue
            size -= needed + ENTRY_OVERHEAD
            total += needed
            commands.append(command)
            answers.append(answer)
        del self._batch[:taken]
        return commands, answers

    def committed(self, entries: tuple[LogEntry, ...]) -> list[tuple[LogEntry, Answer | None]]:
        """Pairs each committed entry with the answer of its caller, if this boot has one."""
        if not self.answers:
            return [(entry, None) for entry in entries]
        answer_of = self.answers.pop
        return [(entry, answer_of(entry.op, None)) for entry in entries]

    def lost_role(self, reason: str) -> None:
        answers, self.answers = self.answers, {}
        for answer in answers.values():
            refuse(answer, OutcomeUnknown(f"the primary stopped: {reason}"))

    def taken_back(self, last: int, error: TryLater) -> None:
        """Fails the callers of the commands above `last`: the full disk removed them."""
        for op in [op for op in self.answers if op > last]:
            refuse(self.answers.pop(op), error)

    def _room(self) -> tuple[int, int]:
        """Returns for how many commands and bytes the core, the disk and the settings have room."""
        ledger, core = self._ledger, self._ledger.replica.core
        ops, size = ledger.replica.room()
        ops = min(ops, ledger.settings.max_in_flight - (core.log.last - core.commit))
        return ops, min(size, ledger.wal.room_bytes())
