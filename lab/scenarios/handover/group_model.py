"""A control group as its users see it: one committed log, one primary at a time, and former
primaries that do not yet know that they were replaced.

A command of a former primary is not committed. Of the commands that a primary had under way when it
was replaced, a prefix is in the log and the rest is lost, as in a replicated log.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from lab.scenarios.handover.timeline import Timeline
from squall.cluster.ledger.interface import Capture, Entry, Fence, GroupMs, OpNumber
from squall.cluster.protocol.command_outcomes import CommandOutcome, decode_outcome


class Machine(Protocol):
    @property
    def version(self) -> int: ...
    def apply(self, entry: Entry) -> bytes: ...
    def capture(self) -> Capture: ...
    def load(self, slices: Any) -> None: ...


M = TypeVar("M", bound=Machine)
Outcome = Callable[[CommandOutcome | None], None]
Committed = Callable[["GroupModel[Any]", Any, CommandOutcome], None]


class Term(Generic[M]):
    """One member's term as primary. Its state is the member's own, which falls behind once another
    member leads."""

    def __init__(self, group: GroupModel[M], machine: M, fence: Fence) -> None:
        self.group = group
        self.machine = machine
        self.fence = fence
        # Its driver stops when its member learns that another one leads.
        self.ended = False

    @property
    def leads(self) -> bool:
        return self.group.term is self

    def submit(self, command: Any, done: Outcome) -> None:
        """`done` gets None if the command was not committed, or if that is not known."""
        self.group.propose(self, command, done)


class GroupModel(Generic[M]):
    def __init__(
        self,
        timeline: Timeline,
        random: Random,
        make: Callable[[], M],
        encode: Callable[[Any], bytes],
        on_committed: Committed,
        *,
        epoch: int = 0,
    ) -> None:
        self._timeline = timeline
        self._random = random
        self._make = make
        self._encode = encode
        self._on_committed = on_committed
        self.entries: list[tuple[Entry, Any]] = []
        self.epoch = epoch
        self.view = 0
        self.term: Term[M] | None = None
        self._machine = make()
        self._pending: list[tuple[Any, Outcome]] = []
        self._commit_at = 0.0
        # The chance that a commit takes long.
        self.slow = 0.0

    @property
    def machine(self) -> M:
        """The committed state."""
        return self._machine

    def group_ms(self) -> int:
        return 1000 + int(self._timeline.now * 1000)

    def lead(self) -> Term[M]:
        """A member begins to lead, with all that is committed."""
        self.view += 1
        self.term = Term(self, self._machine, Fence(self.epoch, self.view))
        return self.term

    def depose(self) -> None:
        """Removes the primary, which crashed or is cut off. It keeps its state and does not know
        that it was replaced."""
        if self.term is None:
            return
        self.term = None
        fresh = self._make()
        fresh.load(self._machine.capture().slices())
        self._machine = fresh
        pending, self._pending = self._pending, []
        survive = self._random.randint(0, len(pending))
        for index, (command, done) in enumerate(pending):
            if index < survive:
                self._commit(command)
            self._timeline.after(self._random.uniform(0.0, 1.0), lambda done=done: done(None))

    def propose(self, term: Term[M], command: Any, done: Outcome) -> None:
        if not term.leads:
            self._timeline.after(0.5, lambda: done(None))
            return
        self._pending.append((command, done))
        slow = self._random.random() < self.slow
        delay_s = self._random.uniform(0.3, 1.5) if slow else self._random.uniform(0.002, 0.05)
        # In order: a slow disk or link delays everything behind it.
        self._commit_at = max(self._commit_at, self._timeline.now + delay_s)
        self._timeline.after(self._commit_at - self._timeline.now, self._next)

    def copy(self, entries: int, epoch: int, group: str) -> GroupModel[M]:
        """A group that a forced recovery makes from the first `entries` of this log."""
        copied = GroupModel(
            self._timeline,
            self._random,
            self._make,
            self._encode,
            self._on_committed,
            epoch=epoch,
        )
        copied.entries = self.entries[:entries]
        for entry, _ in copied.entries:
            copied.machine.apply(entry)
        begin: Any = copied.machine
        begin.begin_group(group, epoch)
        return copied

    def _next(self) -> None:
        if self._pending:
            command, done = self._pending.pop(0)
            done(self._commit(command))

    def _commit(self, command: Any) -> CommandOutcome:
        entry = Entry(
            OpNumber(len(self.entries) + 1),
            GroupMs(self.group_ms()),
            self._machine.version,
            self._encode(command),
        )
        outcome = decode_outcome(self._machine.apply(entry))
        self.entries.append((entry, command))
        self._on_committed(self, command, outcome)
        return outcome
