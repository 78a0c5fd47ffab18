"""Opens a log in a store as its leader: `open_store_log(store, term=term)`.

The new leader reads the head (or creates one, with a new log), loads the newest complete
checkpoint, and replays the slots after it up to the first absent one. There it writes a slot of
its own with the VIEW entry that begins its lead. If another agent wrote that slot first, it
applies that slot and tries the next number. Once its own slot is in the store, every former
leader finds its next number taken and ends.

The fence is (epoch, view). The view is one above that of the last slot. The epoch of a new log is
the wall clock's, in seconds, so that a log after the store lost its data is above the one before;
later it is never lower than in the last slot, nor than the epoch of the election.

If the store lost part of a log (a head without its checkpoints), the leader logs one line and
begins a new log. It must never continue from less than what the head promises, never give up a
log that another version could read, and never write a slot before it has read all earlier ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from squall.cluster.group.open_log import BlobNamingMachine, LogOpener
from squall.cluster.ledger.apply import Applier
from squall.cluster.ledger.interface import Digest, Fence, LedgerFailed, StateMachine
from squall.cluster.ledger.replica.group_clock import away_ms, running_from
from squall.cluster.ledger.replica.types import (
    NO_FENCE,
    Config,
    Formation,
    GroupId,
    Kind,
    LogEntry,
    is_whole,
    make_entry,
)
from squall.coordination.store_errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.guarded_store import GuardedStore
from squall.coordination.stores.interface import ABSENT, Put, Record, Store
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.store_mode.ledger.blobs import StoreBlobs
from squall.store_mode.ledger.checkpoints import CheckpointMissing, Checkpoints
from squall.store_mode.ledger.housekeeping import Parts
from squall.store_mode.ledger.layout import (
    FIRST,
    Head,
    Keys,
    LeadCheck,
    LogSlot,
    References,
    StoreLogSettings,
    encode,
    head_key,
    head_of,
    settings_for,
    slot_of,
)
from squall.store_mode.ledger.store_ledger import TERM_ENDED, StoreLedger
from squall.store_mode.ledger.tail import LogLost, Overtaken, Superseded, Tail

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
    """Returns an opener for `ManagerPlan.opener`. The ledger ends with `term`; a later term opens
    another one. `scope` names the log among others in the same store. The default `settings`
    suit the store, which the caller still owns. The opener retries while the term is valid,
    returns when this leader serves, and raises `LedgerFailed` with a one-line reason."""

    async def opened(
        runtime: Runtime, tasks: TaskRunner, machine: BlobNamingMachine
    ) -> StoreLedger:
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
    """Opens the log for any state machine. Without `references` no blob is ever deleted."""
    settings = settings or settings_for(store.capabilities)
    log = log or Log(MemorySink(capacity=100), runtime.clock)
    opening = _Opening(runtime, machine, store, term, scope, settings, log)
    parts = await opening.run(references)
    ledger = StoreLedger(runtime, tasks, settings, parts)
    opening.ledger = ledger
    ledger.start()
    return ledger


class _Again(Exception):
    """The log moved on while it was read; the opening starts again."""


class _Opening:
    """Reads a log and takes the lead, as described at the top of this module."""

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
        # This store does not retry by itself: a slot is sent again only while the term is valid.
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
        head, version = await self._retry_until_term_ends(self._read_or_make_head)
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
            # The checkpoint's own slot is never deleted, so the store must have lost it.
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
        """Loads the newest complete checkpoint; returns the slot from which replay continues."""
        for ref in reversed(head.checkpoints):
            try:
                slices = await self._retry_until_term_ends(lambda ref=ref: checkpoints.read(ref))
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
        """Replaces a log of which the store lost a part by a new one, unless another agent has
        changed the head meanwhile."""
        self._log.error("store_log_lost", reason=str(LogLost(self._store.url, head.id, what)))
        await self._retry_until_term_ends(lambda: self._new_log(version))
        raise _Again

    # The slots.

    async def _replay(self, keys: Keys) -> None:
        """Applies slots up to the first absent one."""
        tail = self._tail
        at_once = self._settings.read_at_once
        while True:
            wanted = [keys.slot(tail.next + ahead) for ahead in range(at_once)]
            records = await self._retry_until_term_ends(
                lambda wanted=wanted: self._store.get(*wanted)
            )
            # After too long an absent slot may have been written and deleted again.
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
        """Applies the entries of a decided slot that the checkpoint does not cover."""
        slot, applier = slot_of(record.key, record.value), self._applier
        if slot.fence < self._fence:
            raise LedgerFailed(f"{record.key}: fence {slot.fence} is below {self._fence} before it")
        for entry in slot.entries:
            if entry.op > applier.applied:
                self._check(record.key, entry)
                applier.apply(entry)
        self._fence = slot.fence
        self._slots_behind += 1
        # The slot's age is a difference of two store times, so no leader's clock matters (R10).
        self._group_ms = applier.group_ms + away_ms(record.modified_ms, record.read_ms)
        self._group_clock = running_from(self._group_ms, self._clock.now())

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
            slot = LogSlot(self._writer, fence, entries)
            value, token = encode(slot), f"{self._writer}.{self._tail.next}"
            try:
                await self._retry_until_term_ends(lambda v=value, t=token: self._tail.append(v, t))
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
        """Applies the slot that another agent wrote first."""
        key = keys.slot(self._tail.next)
        (record,) = await self._retry_until_term_ends(lambda: self._store.get(key))
        if record is None or not self._tail.is_trusted:
            raise _Again
        self._take(record)
        self._tail.adopt(record)

    def _fence_after(self) -> Fence:
        last = self._fence
        epoch = max(self._term.epoch, last.epoch)
        if self._applier.applied == 0:
            # A store that lost its data has forgotten the epochs of its elections too, and an agent
            # that starts now cannot know them: it would lead in epoch 1 again. Workers ignore
            # answers below those that they have seen. If the wall clock was set back meanwhile,
            # such workers need a restart.
            epoch = max(epoch, int(self._clock.wall()))
        return Fence(epoch, last.view + 1)

    def _first_entries(self, keys: Keys, fence: Fence) -> tuple[LogEntry, ...]:
        applier, group_ms = self._applier, 0
        if applier.applied == 0:
            self._group_clock = running_from(0, self._clock.now())
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

    async def _retry_until_term_ends(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats the call while the store does not answer and the term is valid."""
        while True:
            if not self._term.valid:
                raise LedgerFailed(TERM_ENDED)
            try:
                return await call()
            except StoreUnavailableError as error:
                self._log.info("store_log_waits", reason=str(error))
            await self._clock.sleep(self._settings.retry.delay_s(1))

    def _broken(self, error: Exception) -> None:
        if self.ledger is not None:
            self.ledger.broke(error)
