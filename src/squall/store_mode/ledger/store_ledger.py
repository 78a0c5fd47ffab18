"""The ledger of an elected leader, over a log in a store.

States: opening (`open_store_ledger`) -> leading -> ended. A ledger whose term ended, that another
leader superseded, or whose log was lost never leads again; `failure` holds the reason. The next
term opens the log again.

The ledger has one request in flight at a time: a slot with all waiting commands, or, if no
command waits, a round that confirms the lead. A written slot confirms it too. Invariants:

- A command is answered `Committed` only once its slot is known to be in the store. The content
  of a slot in flight never changes: without an answer the leader sends it again, unchanged,
  until the store shows which slot has that number. After `unknown_after_s` the callers get
  `OutcomeUnknown`; the leader writes nothing else meanwhile.
- The leader writes a slot or begins a round only while its term is valid. A round counts only
  if the term is still valid at its end.
- A leader's fence is above that of every earlier slot: it has read them all, and wrote its first
  slot directly after them. A former leader cannot add a slot later: its next number is taken.
- The group clock continues from the last entry. A new leader adds the age of the last slot, by
  the store's clock (R10).

The ledger must never answer `NotPrimary` for a command that may be in the log, and never write
after its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from squall.cluster.ledger.apply import Answer
from squall.cluster.ledger.interface import (
    Applied,
    Committed,
    Fence,
    GroupMs,
    LedgerFailed,
    NotPrimary,
    OpNumber,
    OutcomeUnknown,
    ReadLevel,
    RoleChanged,
    Standing,
    TryLater,
)
from squall.cluster.ledger.replica.types import Kind, LogEntry, make_entry
from squall.cluster.ledger.wal.errors import TooLarge
from squall.coordination.store_errors import StoreUnavailableError
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.metrics import Registry
from squall.runtime.tasks import TaskRunner, TaskToken
from squall.store_mode.ledger.blobs import StoreBlobs
from squall.store_mode.ledger.housekeeping import Housekeeping, Parts
from squall.store_mode.ledger.layout import LogSlot, StoreLogSettings, encode

TICK_S = 0.25
CLOSE_S = 2.0
ENTRY_BYTES = 128
"""Approximate bytes of an entry without its body."""
ANY_OP = OpNumber(0)
SHARED = "store"
"""Used as the storage id: the store belongs to no single node."""
TERM_ENDED = "the term of this leader has ended"
NO_ANSWER = "the store does not answer"


@dataclass(slots=True)
class _Waiting:
    """A submitted command and the future that answers it."""

    version: int
    body: bytes
    answer: Answer


@dataclass(slots=True)
class LogCounters:
    """Counts what a ledger has written and how often the store did not answer."""

    slots: int = 0
    commands: int = 0
    rounds: int = 0
    unanswered: int = 0


class StoreLedger:
    """Orders commands in the slots of a log in a store, for the one manager that leads it;
    created by `open_store_log`."""

    def __init__(
        self, runtime: Runtime, tasks: TaskRunner, settings: StoreLogSettings, parts: Parts
    ) -> None:
        self.parts = parts
        self.settings = settings
        self.failure: LedgerFailed | None = None
        self.counters = LogCounters()
        self._node: NodeId = runtime.node
        self._clock = runtime.clock
        self._tasks = tasks
        self._log = parts.log
        self._tail = parts.tail
        self._applier = parts.applier
        self._group_clock = parts.group_clock
        self._fence = parts.fence
        self._leads = False
        self._closing = False
        self._op = int(parts.applier.applied)
        self._checksum = parts.applier.checksum
        self._queue: deque[_Waiting] = deque()
        # The commands in the slot that is being written.
        self._sent: list[_Waiting] = []
        # Callers that wait for the next round, and those of the round in flight. A caller never
        # joins a round that began before it asked (R2).
        self._asking: list[asyncio.Future[Fence]] = []
        self._asked: list[asyncio.Future[Fence]] = []
        self._busy_since: float | None = None
        self._stuck = False
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_begin = float("-inf")
        self._roles: list[RoleChanged] = []
        self.housekeeping = Housekeeping(runtime.clock, settings, parts)
        self._running: list[TaskToken] = []
        self._driver: TaskToken | None = None
        self._housekeeping_task: TaskToken | None = None

    def start(self) -> None:
        """Starts to lead; the opening has written this leader's first slot."""
        self._leads = True
        self._log.info(
            "store_log_leads",
            log_id=self.group,
            epoch=self._fence.epoch,
            view=self._fence.view,
            op=self._op,
            slot=self._tail.next - 1,
        )
        self._driver = self._tasks.start("store log", self._drive(), group="ledger")
        self._running = [
            self._driver,
            self._applier.start(self._tasks),
            self._tasks.every("store log tick", TICK_S, self._tick, group="ledger"),
        ]

    # The facade.

    @property
    def fence(self) -> Fence:
        return self._fence

    @property
    def is_primary(self) -> bool:
        return self._leads

    @property
    def primary(self) -> NodeId | None:
        return self._node if self._leads else None

    @property
    def applied(self) -> OpNumber:
        return self._applier.applied

    @property
    def active_version(self) -> int:
        return self._applier.active_version

    @property
    def group(self) -> str:
        """The id of the log."""
        return self.parts.keys.log_id

    @property
    def blobs(self) -> StoreBlobs:
        return self.parts.blobs

    @property
    def is_alone(self) -> bool:
        """Always False: another leader may have written the next slot."""
        return False

    def standing(self) -> Standing:
        members = {str(self._node): SHARED}
        return Standing(
            group=self.group,
            storage=SHARED,
            members=members,
            committed=int(self._applier.applied),
        )

    def add_metrics(self, registry: Registry) -> None:
        """Adds none: the operators of the store monitor it themselves."""

    async def step_aside(self, within_s: float) -> bool:
        """Asks no other agent to lead, because the election finds the next leader."""
        return not self._leads

    def group_ms(self) -> GroupMs:
        return self._group_clock.read(self._clock.now())

    async def submit(self, body: bytes, *, version: int = 1) -> Committed:
        self._check_leads()
        limit = self.settings.max_command_bytes
        if len(body) > limit:
            raise TooLarge(f"a command of {len(body)} bytes is over the limit of {limit}")
        if version > self._applier.active_version:
            active = self._applier.active_version
            raise TryLater(self._node, f"version {version} is not active, {active} is")
        if self._stuck:
            raise TryLater(self._node, NO_ANSWER)
        if len(self._queue) >= self.settings.max_waiting:
            raise TryLater(self._node, f"{len(self._queue)} commands wait for the store")
        answer: Answer = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(version, body, answer))
        self._wake()
        return await answer

    async def read(self, level: ReadLevel, minimum_op: OpNumber = ANY_OP) -> OpNumber:
        if level is ReadLevel.STRONG:
            await self.confirm()
            await self._applier.wait(max(self._op, minimum_op))
        elif level is ReadLevel.SESSION:
            if self.failure is not None and self._applier.applied < minimum_op:
                raise self.failure
            await self._applier.wait(minimum_op)
        return self._applier.applied

    async def confirm(self) -> Fence:
        self._check_leads()
        if self._stuck:
            raise TryLater(self._node, NO_ANSWER)
        asked: asyncio.Future[Fence] = asyncio.get_running_loop().create_future()
        self._asking.append(asked)
        self._wake()
        return await asked

    def on_applied(self, callback: Applied) -> None:
        self._applier.on_applied(callback)

    def on_role(self, callback: RoleChanged) -> None:
        self._roles.append(callback)
        if self._leads:
            asyncio.get_running_loop().call_soon(self._call_late_subscriber, callback)

    async def close(self) -> None:
        """Writes the submitted commands, if the store answers soon, and gives up the lead."""
        if self._closing:
            return
        self._closing = True
        if self._leads:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._idle.wait()
                    await self._applier.wait(self._op)
        self._end(LedgerFailed("the ledger was closed"))
        for token in [
            *self._running,
            *([self._housekeeping_task] if self._housekeeping_task else []),
        ]:
            self._tasks.cancel(token)
            await self._tasks.stopped(token)

    # One request at a time.

    def _wake(self) -> None:
        self._idle.clear()
        self._more.set()

    async def _drive(self) -> None:
        while self._leads:
            await self._more.wait()
            self._more.clear()
            while self._leads and (self._queue or self._asking):
                await self._wait_for_pace()
                await self._turn()
            self._idle.set()

    async def _wait_for_pace(self) -> None:
        wait_s = self._last_begin + self.settings.pace_s - self._clock.now()
        if wait_s > 0.0:
            await self._clock.sleep(wait_s)
        self._last_begin = self._clock.now()

    async def _turn(self) -> None:
        if not self._may_go_on():
            return
        self._asked, self._asking = self._asking, []
        self._busy_since = self._clock.now()
        try:
            if self._queue:
                await self._write_slot()
            else:
                await self._prove()
            self._confirmed()
        except LedgerFailed as error:
            self._end(error)
        except Exception as error:
            self._broke(error)
        finally:
            self._busy_since = None
            self._sent = []

    async def _write_slot(self) -> None:
        entries, size = self._take_batch()
        slot = LogSlot(self.parts.writer, self._fence, tuple(entries))
        value, token = encode(slot), f"{self.parts.writer}.{self._tail.next}"
        while True:
            try:
                await self._tail.append(value, token)
                break
            except StoreUnavailableError:
                self.counters.unanswered += 1
            # The slot may be in the store: only the same content may be sent for its number.
            await self._clock.sleep(self.settings.retry.delay_s(1))
            if not self._may_go_on():
                return
        if self.failure is None:
            self._written(entries, size)

    async def _prove(self) -> None:
        """Repeats a round until it succeeds, no caller waits for it, or a command arrives: the
        slot of that command confirms the lead as well."""
        self.counters.rounds += 1
        while True:
            try:
                await self._tail.confirm()
                return
            except StoreUnavailableError:
                self.counters.unanswered += 1
            await self._clock.sleep(self.settings.retry.delay_s(1))
            waiting = [each for each in self._asked if not each.done()]
            if not self._may_go_on() or self._queue or not waiting:
                self._asking, self._asked = [*waiting, *self._asking], []
                return

    def _take_batch(self) -> tuple[list[LogEntry], int]:
        settings, now_ms = self.settings, self.group_ms()
        entries: list[LogEntry] = []
        op, checksum, size = self._op, self._checksum, 0
        while self._queue and len(entries) < settings.slot_entries:
            item = self._queue[0]
            if entries and size + len(item.body) > settings.slot_bytes:
                break
            self._queue.popleft()
            op += 1
            entry = make_entry(
                op,
                self._fence,
                now_ms,
                Kind.COMMAND,
                item.body,
                previous=checksum,
                version=item.version,
            )
            checksum = entry.checksum
            size += len(item.body) + ENTRY_BYTES
            entries.append(entry)
            self._sent.append(item)
        return entries, size

    def _written(self, entries: list[LogEntry], size: int) -> None:
        last = entries[-1]
        self._op, self._checksum = int(last.op), last.checksum
        self._stuck = False
        self.housekeeping.wrote(self._op, self._tail.next - 1, size)
        self.counters.slots += 1
        self.counters.commands += len(entries)
        answers = [item.answer for item in self._sent]
        self._applier.commit(zip(entries, answers, strict=True))

    def _confirmed(self) -> None:
        # A round counts only if the term is still valid at its end.
        if not self._may_go_on():
            return
        for asked in self._asked:
            if not asked.done():
                asked.set_result(self._fence)
        self._asked = []

    # No answer.

    def _unknown(self) -> None:
        """Ends the wait of all callers. Commands in flight may be in the log; those queued
        behind them certainly are not."""
        self._stuck = True
        for item in self._sent:
            if not item.answer.done():
                item.answer.set_exception(OutcomeUnknown(NO_ANSWER))
        self._refuse_waiting(TryLater(self._node, NO_ANSWER))
        self._refuse_rounds()

    def _refuse_waiting(self, error: NotPrimary) -> None:
        queue, self._queue = self._queue, deque[_Waiting]()
        for item in queue:
            if not item.answer.done():
                item.answer.set_exception(error)

    def _refuse_rounds(self, error: NotPrimary | None = None) -> None:
        asked, self._asked = [*self._asked, *self._asking], []
        self._asking = []
        for each in asked:
            if not each.done():
                each.set_exception(error or TryLater(self._node, NO_ANSWER))

    # The role.

    def _may_go_on(self) -> bool:
        if self.failure is None and not self.parts.term.valid:
            self._end(LedgerFailed(TERM_ENDED))
        return self.failure is None

    def _end(self, error: LedgerFailed) -> None:
        """Ends this ledger; only the first error counts."""
        if self.failure is not None:
            return
        self.failure = error
        was, self._leads = self._leads, False
        # Commands in flight may be in the log; queued ones were never sent.
        for item in self._sent:
            if not item.answer.done():
                item.answer.set_exception(OutcomeUnknown(str(error)))
        self._refuse_waiting(NotPrimary(None))
        self._refuse_rounds(NotPrimary(None))
        self._applier.abandon(error)
        self._idle.set()
        for token in (self._driver, self._housekeeping_task):
            if token is not None and token.task is not asyncio.current_task():
                self._tasks.cancel(token)
        if was:
            self._log.warning("store_log_ends", log_id=self.group, reason=str(error))
            for callback in self._roles:
                callback(None)

    def _broke(self, error: Exception) -> None:
        self._end(LedgerFailed(f"the log in the store cannot continue: {error}"))

    def broke(self, error: Exception) -> None:
        """Ends this ledger because the state machine raised."""
        self._broke(error)

    def _call_late_subscriber(self, callback: RoleChanged) -> None:
        if self._leads:
            callback(self._fence)

    def _check_leads(self) -> None:
        if self._closing:
            raise LedgerFailed("the ledger was closed")
        if not self._may_go_on():
            raise NotPrimary(None)

    # Background work.

    async def _tick(self) -> None:
        if not self._may_go_on():
            return
        busy = self._busy_since
        if busy is not None and self._clock.now() - busy > self.settings.unknown_after_s:
            self._refuse_rounds()
            if self._sent:
                self._unknown()
        if (
            self._housekeeping_task is None
            or self._housekeeping_task.task is None
            or self._housekeeping_task.task.done()
        ):
            self._housekeeping_task = self._tasks.start(
                "store log upkeep", self._run_housekeeping(), group="ledger"
            )

    async def _run_housekeeping(self) -> None:
        try:
            if await self.housekeeping.run():
                await self.collect()
        except LedgerFailed as error:
            self._end(error)

    async def checkpoint(self) -> OpNumber:
        """Makes the present state durable."""
        return await self.housekeeping.checkpoint()

    async def collect(self) -> int:
        """Deletes unreferenced blobs and leftovers after a confirmed round; returns how many."""
        try:
            await self.confirm()
        except NotPrimary:
            return 0
        return await self.housekeeping.collect()
