"""Puts a member of a group together from its data directory, runtime and transport."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from squall.ledger.apply import Applier
from squall.ledger.interface import LedgerFailed, StateMachine
from squall.ledger.replica.core import Replica
from squall.ledger.replica.effects import Effect
from squall.ledger.replica.exchange import Transport
from squall.ledger.replica.keeping import open_kept
from squall.ledger.replica.ledger import GroupLedger
from squall.ledger.replica.types import NO_GROUP, GroupId, Timers
from squall.ledger.settings import LedgerSettings
from squall.ledger.wal.errors import WalError
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.tasks import TaskRunner

RECORD_BYTES = 16 << 20
"""Over the most that a primary has in flight (`normal.IN_FLIGHT_BYTES`), with room."""


async def open_group_ledger(
    runtime: Runtime,
    tasks: TaskRunner,
    machine: StateMachine,
    transport: Transport,
    *,
    peers: tuple[NodeId, ...],
    timers: Timers,
    settings: LedgerSettings | None = None,
    form_group: GroupId = NO_GROUP,
    form_facts: bytes = b"",
    prepare: Callable[[Replica], None] | None = None,
    observe: Callable[[Effect], None] | None = None,
    on_alarm: Callable[[str], None] | None = None,
    digest_every: int = 4096,
) -> GroupLedger:
    """`peers` are all nodes that may belong to the group, this one included; `form_group`
    names the group that an empty directory may help to form. Raises LedgerFailed, OSError."""
    settings = settings or LedgerSettings()
    if settings.wal.max_record_bytes < RECORD_BYTES:
        # The log of a view is installed in one record, together with the promise.
        wal = msgspec.structs.replace(settings.wal, max_record_bytes=RECORD_BYTES)
        settings = msgspec.structs.replace(settings, wal=wal)
    lock = runtime.disk.lock() if settings.lock else None
    try:
        kept = await open_kept(runtime, tasks, settings, mends=len(peers) > 1)
    except WalError as error:
        raise LedgerFailed(str(error)) from error
    replica = Replica(
        node=runtime.node,
        boot=runtime.boot,
        timers=timers,
        draw=runtime.random.random,
        peers=tuple(sorted(peers)),
        recovered=kept.recovered,
        version=machine.version,
        now=runtime.clock.boot_time(),
        form_group=form_group,
        form_facts=form_facts,
    )
    if prepare is not None:
        prepare(replica)
    opened: list[GroupLedger] = []
    applier = Applier(machine, settings.apply_slice, lambda error: opened[0].broke(error))
    ledger = GroupLedger(
        runtime,
        tasks,
        settings,
        kept,
        replica,
        applier,
        transport,
        lock=lock,
        observe=observe,
        on_alarm=on_alarm,
        digest_every=digest_every,
    )
    opened.append(ledger)
    if kept.slices is not None:
        machine.load(iter(kept.slices))
        applier.restore(kept.recovered.base)
    await ledger.start()
    core = replica.core
    if core.mending and core.is_member and not core.others():
        ledger.fail(LedgerFailed(f"{kept.recovered.mending}; nobody else has what is lost"))
    return ledger
