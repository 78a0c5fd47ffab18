"""Opens the log of a group that lies in a store: `open_store_log(store, term=term)`.

Order: the head (made if there is none: a new log), the newest whole checkpoint, the slots
behind it up to the first that is absent, then a slot of its own there: the VIEW entry that
begins the lead. If somebody else was faster with that number, its slot is read, applied and
the next number tried. From the moment its own slot is there every former leader meets a
number that is taken, and is over.

The fence is (epoch of the election, view), the view one above that of the last slot and the
epoch no lower than there. An election that forgot its epochs, because its record was lost,
can thus not lower a fence.

A log that the store lost in part (a head without its checkpoints) is told in one line and
replaced by a new one. It must never go on from less than what a head promises, never give
up a log that another version could read, and never write a slot without having read
everything before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from squall.coordination.stores.errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.guard import GuardedStore
from squall.coordination.stores.interface import ABSENT, Put, Record, Store
from squall.ledger.apply import Applier
from squall.ledger.clock import GroupClock, after_restart
from squall.ledger.interface import Digest, Fence, LedgerFailed, StateMachine
from squall.ledger.replica.types import (
    NO_FENCE,
    Config,
    Formation,
    GroupId,
    Kind,
    LogEntry,
    is_whole,
    make_entry,
)
from squall.nodes.agent.blobs import StoreBlobs
from squall.nodes.agent.ledger_checkpoints import CheckpointMissing, Checkpoints
from squall.nodes.agent.ledger_log import TERM_ENDED, StoreLedger
from squall.nodes.agent.ledger_tail import LogLost, Overtaken, Superseded, Tail
from squall.nodes.agent.ledger_upkeep import Parts
from squall.nodes.agent.slots import (
    FIRST,
    Head,
    Keys,
    LeadCheck,
    References,
    Slot,
    StoreLogSettings,
    encode,
    head_key,
    head_of,
    settings_for,
    slot_of,
)
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.manager.log import LogOpener, ManagerLog
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner

LOG_ID_BYTES = 6
WRITER_BYTES = 8
T = TypeVar("T")


def open_store_log(
    store: Store,
    *,
    term: LeadCheck,
    scope: str = "main",
    settings: StoreLogSettings | None = None,
    log: Log | None = None,
) -> LogOpener:
    """For `ManagerPlan.opener`. `term` is the leave to lead; when it is no longer valid the
    ledger is over, and a later term opens another one. `scope` names the log among others
    of the same store. Without `settings` those that suit the store. The store stays the
    caller's. The opener returns when this leader serves, and tries while the term is valid;
    it raises `LedgerFailed` with one clear line."""

    async def opened(runtime: Runtime, tasks: TaskRunner, machine: Datacenter) -> ManagerLog:
        return await open_store_ledger(
            runtime,
            tasks,
            machine,
            store,
            term=term,
            scope=scope,
            settings=settings,
            references=lambda: [Digest(blob) for blob in machine.referenced()],
            log=log,
        )

    return opened


async def open_store_ledger(
    runtime: Runtime,
    tasks: TaskRunner,
    machine: StateMachine,
    store: Store,
    *,
    term: LeadCheck,
    scope: str = "main",
    settings: StoreLogSettings | None = None,
    references: References | None = None,
    log: Log | None = None,
) -> StoreLedger:
    """The same for any state machine. Without `references` no blob is ever deleted."""
    settings = settings or settings_for(store.capabilities)
    log = log or Log(MemorySink(capacity=100), runtime.clock)
    opening = _Opening(runtime, machine, store, term, scope, settings, log)
    parts = await opening.run(references)
    ledger = StoreLedger(runtime, tasks, settings, parts)
    opening.ledger = ledger
    ledger.start()
    return ledger


class _Again(Exception):
    """What was read is too old to go on with."""


class _Opening:
    def __init__(
        self,
        runtime: Runtime,
        machine: StateMachine,
        store: Store,
        term: LeadCheck,
        scope: str,
        settings: StoreLogSettings,
        log: Log,
    ) -> None:
        self.ledger: StoreLedger | None = None
        self._runtime = runtime
        self._clock = runtime.clock
        self._machine = machine
        self._blank = list(machine.capture().slices())
        guarded = isinstance(store, GuardedStore)
        self._patient = store if guarded else GuardedStore(store, runtime.clock, runtime.random)
        # Without repeats of its own: a slot is sent again only while the term is valid.
        self._store = self._patient.urgent
        self._term = term
        self._scope = scope
        self._settings = settings
        self._log = log
        self._writer = runtime.entropy(WRITER_BYTES).hex()
        self._fence = NO_FENCE
        self._group_ms = 0
        self._slots_behind = 0

    async def run(self, references: References | None) -> Parts:
        while True:
            try:
                with contextlib.suppress(_Again):
                    return await self._open(references)
            except LogLost as error:
                self._log.error("store_log_lost", reason=str(error))

    async def _open(self, references: References | None) -> Parts:
        seen_at = self._clock.boot_time()
        head, version = await self._patiently(self._read_or_make_head)
        keys = Keys(self._scope, head.id)
        checkpoints = Checkpoints(self._patient, keys, self._clock, self._settings, head)
        self._applier = Applier(self._machine, self._settings.apply_slice, self._broken)
        self._fence, self._group_ms, self._slots_behind = NO_FENCE, 0, 0
        first = await self._load(head, version, checkpoints)
        self._tail = Tail(
            self._store,
            keys,
            self._clock,
            self._settings,
            next_slot=first,
            previous=version,
            seen_at=seen_at,
        )
        await self._replay(keys)
        if self._tail.next == first and head.checkpoints:
            await self._give_up(head, version, f"slot {first}")
        await self._take_lead(keys)
        clock, group_clock = self._clock, self._group_clock
        blobs = StoreBlobs(
            self._patient,
            self._scope,
            self._settings,
            group_ms=lambda: group_clock.read(clock.now()),
            entropy=self._runtime.entropy,
        )
        return Parts(
            self._term,
            keys,
            self._tail,
            self._applier,
            checkpoints,
            blobs,
            group_clock,
            self._fence,
            self._writer,
            references,
            self._log,
            self._slots_behind,
        )

    # The head and the checkpoint.

    async def _read_or_make_head(self) -> tuple[Head, str]:
        key = head_key(self._scope)
        (record,) = await self._store.get(key)
        if record is not None:
            return head_of(key, record.value), record.version
        return await self._new_log(ABSENT)

    async def _new_log(self, expect: str | object) -> tuple[Head, str]:
        key = head_key(self._scope)
        head = Head(self._runtime.entropy(LOG_ID_BYTES).hex())
        condition = expect if isinstance(expect, str) else ABSENT
        put = Put(key, encode(head), expect=condition, ttl_s=None, token=head.id)
        try:
            (version,) = await self._store.write(put)
        except VersionConflict:
            raise _Again from None
        self._log.info("store_log_made", log_id=head.id, store=self._store.url)
        return head, version

    async def _load(self, head: Head, version: str, checkpoints: Checkpoints) -> int:
        """Loads the newest checkpoint that is whole; the slot to go on from."""
        for ref in reversed(head.checkpoints):
            try:
                slices = await self._patiently(lambda ref=ref: checkpoints.read(ref))
            except CheckpointMissing as error:
                self._log.error("store_log_checkpoint_skipped", reason=str(error))
                continue
            self._check_version(ref.base.active_version)
            self._machine.load(slices)
            self._applier.restore(ref.base)
            self._fence, self._group_ms = ref.fence, int(ref.base.group_ms)
            return ref.slot
        self._machine.load(self._blank)
        if head.checkpoints:
            await self._give_up(head, version, "no checkpoint is left")
        return FIRST

    async def _give_up(self, head: Head, version: str, what: str) -> None:
        """The store lost what the head names: a new log begins, unless the head is newer
        than what was read."""
        self._log.error("store_log_lost", reason=str(LogLost(self._store.url, head.id, what)))
        await self._patiently(lambda: self._new_log(version))
        raise _Again

    # The slots.

    async def _replay(self, keys: Keys) -> None:
        """Up to the first slot that is absent."""
        tail = self._tail
        at_once = self._settings.read_at_once
        while True:
            wanted = [keys.slot(tail.next + ahead) for ahead in range(at_once)]
            records = await self._patiently(lambda wanted=wanted: self._store.get(*wanted))
            if not tail.is_trusted:
                raise _Again
            for record in records:
                if record is None:
                    break
                self._take(record)
                tail.adopt(record)
                await asyncio.sleep(0)
            else:
                continue
            return

    def _take(self, record: Record) -> None:
        """Applies a slot that is decided; of the one in which the checkpoint stands, what
        comes after it."""
        slot, applier = slot_of(record.key, record.value), self._applier
        if slot.fence < self._fence:
            raise LedgerFailed(f"{record.key} goes back from {self._fence} to {slot.fence}")
        for entry in slot.entries:
            if entry.op > applier.applied:
                self._check(record.key, entry)
                applier.apply(entry)
        self._fence = slot.fence
        self._slots_behind += 1
        # The age is a difference of store times: no clock of a leader enters it.
        self._group_ms = after_restart(applier.group_ms, record.modified_ms, record.read_ms)
        self._group_clock = GroupClock(self._group_ms, self._clock.now())

    def _check(self, key: str, entry: LogEntry) -> None:
        applier = self._applier
        follows = entry.op == applier.applied + 1 and entry.previous == applier.checksum
        if not follows or not is_whole(entry) or entry.group_ms < applier.group_ms:
            raise LedgerFailed(f"{key}: entry {entry.op} does not follow entry {applier.applied}")
        if entry.kind in (Kind.COMMAND, Kind.ACTIVATE):
            self._check_version(entry.version)

    def _check_version(self, version: int) -> None:
        if version > self._machine.version:
            raise LedgerFailed(
                f"the log holds commands of version {version}, this Squall applies up to "
                f"{self._machine.version}; start the newer one"
            )

    # The lead.

    async def _take_lead(self, keys: Keys) -> None:
        while True:
            fence = self._fence_after()
            entries = self._first_entries(keys, fence)
            slot = Slot(self._writer, fence, entries)
            value, token = encode(slot), f"{self._writer}.{self._tail.next}"
            try:
                await self._patiently(lambda v=value, t=token: self._tail.append(v, t))
            except Overtaken:
                raise _Again from None
            except Superseded:
                await self._adopt(keys)
                continue
            for entry in entries:
                self._applier.apply(entry)
            self._fence = fence
            return

    async def _adopt(self, keys: Keys) -> None:
        """Somebody else was faster: what it wrote comes first."""
        key = keys.slot(self._tail.next)
        (record,) = await self._patiently(lambda: self._store.get(key))
        if record is None or not self._tail.is_trusted:
            raise _Again
        self._take(record)
        self._tail.adopt(record)

    def _fence_after(self) -> Fence:
        last = self._fence
        if last.epoch > self._term.epoch:
            self._log.warning("store_log_epoch_fell", log=last.epoch, term=self._term.epoch)
        return Fence(max(self._term.epoch, last.epoch), last.view + 1)

    def _first_entries(self, keys: Keys, fence: Fence) -> tuple[LogEntry, ...]:
        applier, group_ms = self._applier, 0
        if applier.applied == 0:
            self._group_clock = GroupClock(0, self._clock.now())
            body = msgspec.msgpack.encode(Formation(GroupId(keys.log_id), Config(0, ())))
            kind = Kind.FORM
        else:
            group_ms = self._group_clock.read(self._clock.now())
            body, kind = b"", Kind.VIEW
        op = int(applier.applied) + 1
        first = make_entry(op, fence, group_ms, kind, body, previous=applier.checksum)
        version = self._machine.version
        if version <= applier.active_version:
            return (first,)
        second = make_entry(
            op + 1,
            fence,
            group_ms,
            Kind.ACTIVATE,
            b"",
            previous=first.checksum,
            version=version,
        )
        return first, second

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Again and again while the store does not answer and the term is valid."""
        while True:
            if not self._term.valid:
                raise LedgerFailed(TERM_ENDED)
            try:
                return await call()
            except StoreUnavailableError as error:
                self._log.info("store_log_waits", reason=str(error))
            await self._clock.sleep(self._settings.retry_s)

    def _broken(self, error: Exception) -> None:
        if self.ledger is not None:
            self.ledger.broke(error)
