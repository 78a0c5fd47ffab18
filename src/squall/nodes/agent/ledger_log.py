"""A group's log that lies in a store: the ledger of whoever was elected to lead.

States: opening (`ledger.py`) -> leads -> over. There is no way back: who lost the lead, was
superseded or lost the log is over for good and says why in `failure`; another term opens the
log anew.

One request of the log is under way at a time: a slot with all commands that wait, or, when
none waits, a round that proves the lead. A slot that is written proves it as well. Invariants:

- A command is answered `Committed` when its slot is known to be in the store, and no
  earlier. The content of a slot under way never changes: without an answer it is sent again,
  unchanged, until the store shows what stands there. Its commands are told that their
  outcome is unknown after `unknown_after_s`; nothing else is written meanwhile.
- A slot is written, and a round begun, only while the term is valid. A round counts only if
  the term is still valid at its end.
- The fence of a leader is above that of every slot before its own: it read them all, and
  wrote its first slot directly behind them. A slot of a former leader cannot come later: its
  number is taken.
- The group clock goes on from the last entry. A new leader adds the age of the last slot, by
  the store's clock.

It must never say `NotPrimary` of a command that may be in the log, nor write after its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from squall.coordination.stores.errors import StoreUnavailableError
from squall.ledger.apply import Answer
from squall.ledger.interface import (
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
    TryLater,
)
from squall.ledger.replica.types import Kind, LogEntry, make_entry
from squall.ledger.wal.errors import TooLarge
from squall.nodes.agent.blobs import StoreBlobs
from squall.nodes.agent.ledger_upkeep import Parts, Upkeep
from squall.nodes.agent.slots import Slot, StoreLogSettings, encode
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.tasks import TaskRunner, TaskToken

TICK_S = 0.25
CLOSE_S = 2.0
ENTRY_BYTES = 128
"""What an entry takes beside its body."""
ANY_OP = OpNumber(0)
TERM_ENDED = "the term of this leader has ended"
NO_ANSWER = "the store does not answer"


@dataclass(slots=True)
class _Waiting:
    version: int
    body: bytes
    answer: Answer


@dataclass(slots=True)
class LogCounters:
    slots: int = 0
    commands: int = 0
    rounds: int = 0
    unanswered: int = 0


class StoreLedger:
    """Made by `open_store_log`; a `squall.nodes.manager.log.ManagerLog`."""

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
        self._sent: list[_Waiting] = []
        """In the slot under way."""
        self._asking: list[asyncio.Future[Fence]] = []
        """Wait for a round that has not begun."""
        self._asked: list[asyncio.Future[Fence]] = []
        """Wait for what is under way."""
        self._busy_since: float | None = None
        self._stuck = False
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_begin = float("-inf")
        self._roles: list[RoleChanged] = []
        self.upkeep = Upkeep(runtime.clock, settings, parts)
        self._running: list[TaskToken] = []
        self._driver: TaskToken | None = None
        self._upkeep: TaskToken | None = None

    def start(self) -> None:
        """Its first slot is written: from now on it leads."""
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
            asyncio.get_running_loop().call_soon(self._tell_late, callback)

    async def close(self) -> None:
        """Writes what was submitted, if the store answers soon, and gives up the lead."""
        if self._closing:
            return
        self._closing = True
        if self._leads:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._idle.wait()
                    await self._applier.wait(self._op)
        self._end(LedgerFailed("the ledger was closed"))
        for token in [*self._running, *([self._upkeep] if self._upkeep else [])]:
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
                await self._keep_pace()
                await self._turn()
            self._idle.set()

    async def _keep_pace(self) -> None:
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
        slot = Slot(self.parts.writer, self._fence, tuple(entries))
        value, token = encode(slot), f"{self.parts.writer}.{self._tail.next}"
        while True:
            try:
                await self._tail.append(value, token)
                break
            except StoreUnavailableError:
                self.counters.unanswered += 1
            await self._clock.sleep(self.settings.retry_s)
            if not self._may_go_on():
                return
        if self.failure is None:
            self._written(entries, size)

    async def _prove(self) -> None:
        """A round, again and again while somebody waits for it; commands go first."""
        self.counters.rounds += 1
        while True:
            try:
                await self._tail.confirm()
                return
            except StoreUnavailableError:
                self.counters.unanswered += 1
            await self._clock.sleep(self.settings.retry_s)
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
        self.upkeep.wrote(self._op, self._tail.next - 1, size)
        self.counters.slots += 1
        self.counters.commands += len(entries)
        answers = [item.answer for item in self._sent]
        self._applier.commit(zip(entries, answers, strict=True))

    def _confirmed(self) -> None:
        if not self._may_go_on():
            return
        for asked in self._asked:
            if not asked.done():
                asked.set_result(self._fence)
        self._asked = []

    # No answer.

    def _unknown(self) -> None:
        """What is under way may be in the log; what waits behind it is not."""
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
        """For good."""
        if self.failure is not None:
            return
        self.failure = error
        was, self._leads = self._leads, False
        for item in self._sent:
            if not item.answer.done():
                item.answer.set_exception(OutcomeUnknown(str(error)))
        self._refuse_waiting(NotPrimary(None))
        self._refuse_rounds(NotPrimary(None))
        self._applier.abandon(error)
        self._idle.set()
        for token in (self._driver, self._upkeep):
            if token is not None and token.task is not asyncio.current_task():
                self._tasks.cancel(token)
        if was:
            self._log.warning("store_log_ends", log_id=self.group, reason=str(error))
            for callback in self._roles:
                callback(None)

    def _broke(self, error: Exception) -> None:
        self._end(LedgerFailed(f"the log in the store cannot go on: {error}"))

    def broke(self, error: Exception) -> None:
        """The state machine raised."""
        self._broke(error)

    def _tell_late(self, callback: RoleChanged) -> None:
        if self._leads:
            callback(self._fence)

    def _check_leads(self) -> None:
        if self._closing:
            raise LedgerFailed("the ledger was closed")
        if not self._may_go_on():
            raise NotPrimary(None)

    # What happens by itself.

    async def _tick(self) -> None:
        if not self._may_go_on():
            return
        busy = self._busy_since
        if busy is not None and self._clock.now() - busy > self.settings.unknown_after_s:
            self._refuse_rounds()
            if self._sent:
                self._unknown()
        if self._upkeep is None or self._upkeep.task is None or self._upkeep.task.done():
            self._upkeep = self._tasks.start("store log upkeep", self._keep_up(), group="ledger")

    async def _keep_up(self) -> None:
        try:
            if await self.upkeep.run():
                await self.collect()
        except LedgerFailed as error:
            self._end(error)

    async def checkpoint(self) -> OpNumber:
        """Makes the state as of now durable."""
        return await self.upkeep.checkpoint()

    async def collect(self) -> int:
        """Deletes what nothing refers to any more, if it is proven to lead."""
        try:
            await self.confirm()
        except NotPrimary:
            return 0
        return await self.upkeep.collect()
