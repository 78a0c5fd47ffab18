"""Opens the ledger of one member: `open_group_ledger(runtime, tasks, machine, transport)`.

It takes the lock, reads the storage record, the newest valid checkpoint and the log, and
starts the core from them. The only member of a group leads when `open_group_ledger` returns; a
member of a larger group finds or elects its primary later.

A member must never start with less than it acknowledged (R2). Damage that other members
cannot repair, a missing file or a newer format raises `LedgerFailed` with one line of text,
and every file stays unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from squall.api.errors import ConfigError
from squall.cluster.ledger.apply import Applier
from squall.cluster.ledger.group_member.bulk_messages import Transport
from squall.cluster.ledger.group_member.durable_state import (
    DurableState,
    latest_config,
    open_durable_state,
)
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.recovery_report import RecoveryReport
from squall.cluster.ledger.interface import LedgerDamaged, LedgerFailed, StateMachine
from squall.cluster.ledger.replica.effects import Effect
from squall.cluster.ledger.replica.replica import Replica
from squall.cluster.ledger.replica.types import NO_GROUP, GroupId, Member, Timers
from squall.cluster.ledger.settings import Durability, LedgerSettings
from squall.cluster.ledger.wal.errors import WalDamaged, WalError
from squall.runtime.interfaces import DirectoryLock, NodeId, Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner

RECORD_BYTES = 16 << 20
"""Exceeds the most that a primary has in flight (`normal_operation.IN_FLIGHT_BYTES`)."""


async def open_group_ledger(
    runtime: Runtime,
    tasks: TaskRunner,
    machine: StateMachine,
    transport: Transport | None,
    *,
    peers: tuple[NodeId, ...],
    timers: Timers,
    settings: LedgerSettings | None = None,
    form_group: GroupId = NO_GROUP,
    form_facts: bytes = b"",
    log: Log | None = None,
    prepare: Callable[[Replica], None] | None = None,
    observe: Callable[[Effect], None] | None = None,
    on_alarm: Callable[[str], None] | None = None,
    digest_every: int = 4096,
) -> GroupLedger:
    """Opens and starts the ledger. `peers` are all nodes that may belong to the group, including
    this one; `form_group` names the group that a node with an empty directory may help to
    form. Raises LedgerFailed, ConfigError, OSError."""
    settings = _checked(settings or LedgerSettings())
    log = log or Log(MemorySink(capacity=100), runtime.clock)
    lock = _lock(runtime) if settings.lock else None
    durable_state: DurableState | None = None
    ledger: GroupLedger | None = None
    try:
        recovery = RecoveryReport(log, runtime.clock)
        durable_state = await open_durable_state(runtime, tasks, settings, mends=len(peers) > 1)
        _check(durable_state, machine, runtime.node, is_single=len(peers) == 1 and bool(form_group))
        replica = Replica(
            node=runtime.node,
            boot=runtime.boot,
            timers=timers,
            draw=runtime.random.random,
            peers=tuple(sorted(peers)),
            recovered=durable_state.recovered,
            version=machine.version,
            now=runtime.clock.boot_time(),
            form_group=form_group,
            form_facts=form_facts,
        )
        if prepare is not None:
            prepare(replica)
        applier = Applier(machine, settings.apply_slice)
        ledger = GroupLedger(
            runtime,
            tasks,
            settings,
            durable_state,
            replica,
            applier,
            transport,
            log,
            recovery=recovery,
            lock=lock,
            observe=observe,
            on_alarm=on_alarm,
            digest_every=digest_every,
        )
        if durable_state.slices is not None:
            machine.load(iter(durable_state.slices))
            applier.restore(durable_state.recovered.base)
        await ledger.start()
    except (Exception, asyncio.CancelledError) as error:
        await _abandon(durable_state, ledger, lock)
        if isinstance(error, WalError):
            failed = LedgerDamaged if isinstance(error, WalDamaged) else LedgerFailed
            raise failed(str(error)) from error
        raise
    return ledger


def _checked(settings: LedgerSettings) -> LedgerSettings:
    if settings.wal.durability < Durability.FSYNC:
        raise ConfigError("wal.durability: a ledger needs FSYNC or FSYNC_BATCH")
    if settings.wal.max_record_bytes >= RECORD_BYTES:
        return settings
    # A member installs the log of a view in one record, together with its promise.
    wal = msgspec.structs.replace(settings.wal, max_record_bytes=RECORD_BYTES)
    return msgspec.structs.replace(settings, wal=wal)


def _lock(runtime: Runtime) -> DirectoryLock:
    try:
        return runtime.disk.lock()
    except BlockingIOError as error:
        raise LedgerFailed(f"{error.strerror}: {error.filename or runtime.node}") from None


async def _abandon(
    durable_state: DurableState | None, ledger: GroupLedger | None, lock: DirectoryLock | None
) -> None:
    """Stops everything that was started and releases the directory."""
    with contextlib.suppress(WalError):
        if ledger is not None:
            # `close` releases the lock.
            await ledger.close()
            return
        if durable_state is not None:
            await durable_state.wal.close()
    if lock is not None:
        lock.release()


def _check(
    durable_state: DurableState, machine: StateMachine, node: NodeId, *, is_single: bool
) -> None:
    """Raises if this code, started with these flags, cannot continue from the disk's content."""
    recovered = durable_state.recovered
    config = latest_config(recovered)
    # A command's version is activated before the command is logged, so the highest version in
    # the log or the checkpoint is the highest active one.
    newest = max((entry.version for entry in recovered.entries), default=1)
    newest = max(newest, recovered.base.active_version)
    if newest > machine.version:
        raise LedgerFailed(
            f"the log holds commands of version {newest}, this Squall applies up to "
            f"{machine.version}: start the newer version"
        )
    if config is None:
        return
    me = Member(node, recovered.storage)
    if is_single and me not in config.members:
        # With peers it would wait to join them; without peers it would wait for ever.
        members = ", ".join(config.nodes)
        raise LedgerFailed(
            f"this data directory belongs to the group {members}, and {node} is not a member of it"
        )
    if recovered.mending and config.members == (me,):
        raise LedgerDamaged(f"{recovered.mending}; no other member has what is lost")
