"""Opens a manager's log: alone, or as a member of its group.

A group of one writes the same bytes; which of both is opened follows from the members
that the manager was started with, until the log itself knows better.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from squall.ledger.interface import Digest, Ledger, LedgerFailed
from squall.ledger.open import open_ledger
from squall.ledger.replica.ledger import GroupLedger
from squall.ledger.replica.open_group import open_group_ledger
from squall.ledger.replica.types import NO_GROUP, GroupId
from squall.ledger.replica.types import Timers as ReplicaTimers
from squall.ledger.replica.wire_transport import WireTransport
from squall.ledger.settings import LedgerSettings
from squall.ledger.single import OneMemberLedger
from squall.ledger.wal.log import Wal
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.manager.group_watch import GroupWatch
from squall.runtime.interfaces import Address, NodeId, Runtime
from squall.runtime.sections import TimerSettings
from squall.runtime.tasks import TaskRunner
from squall.wire.switchboard import Switchboard


class ManagerLog(Ledger, Protocol):
    """A ledger with its end."""

    failure: LedgerFailed | None

    async def close(self) -> None: ...


LogOpener = Callable[[Runtime, TaskRunner, Datacenter], Awaitable[ManagerLog]]
"""Opens a log that does not lie on this node's disk."""


async def open_log(
    runtime: Runtime,
    tasks: TaskRunner,
    machine: Datacenter,
    board: Switchboard,
    *,
    members: dict[str, Address],
    timers: TimerSettings,
    settings: LedgerSettings,
    group: str,
    joins: bool,
    watch: GroupWatch,
) -> ManagerLog:
    """`joins`: an empty directory waits to be admitted to a group that exists."""

    def references() -> Iterable[Digest]:
        return [Digest(blob) for blob in machine.referenced()]

    if len(members) == 1 and not joins:
        return await open_ledger(
            runtime, machine, settings, tasks=tasks, references=references, log=watch.log
        )
    transport = WireTransport(board, {NodeId(name): at for name, at in members.items()})
    watch.transport = transport
    ledger = await open_group_ledger(
        runtime,
        tasks,
        machine,
        transport,
        peers=tuple(NodeId(name) for name in sorted(members)),
        timers=replica_timers(timers),
        settings=settings,
        form_group=NO_GROUP if joins else GroupId(group),
        observe=watch.observe,
        on_alarm=watch.alarm,
    )
    ledger.group_blobs.references = references
    return ledger


def replica_timers(timers: TimerSettings) -> ReplicaTimers:
    return ReplicaTimers(
        timers.heartbeat_round_s,
        timers.check_quorum_s,
        timers.follower_timeout_s,
        timers.stagger_s,
        timers.jitter_s,
    )


def is_alone(log: Ledger) -> bool:
    """This member is its own quorum: what it knows needs no round to confirm."""
    return isinstance(log, OneMemberLedger)


async def step_aside(log: ManagerLog, within_s: float) -> None:
    """A primary that stops asks another member to lead first."""
    if isinstance(log, GroupLedger):
        await log.step_aside(within_s)


def size_of(log: ManagerLog) -> int:
    """How many members the group has, by its log."""
    config = log.replica.core.config if isinstance(log, GroupLedger) else None
    return len(config.members) if config is not None else 1


def wal_of(log: ManagerLog) -> Wal | None:
    """The write-ahead log of this member, for its metrics."""
    if isinstance(log, GroupLedger):
        return log.kept.wal
    return log.parts.wal if isinstance(log, OneMemberLedger) else None
