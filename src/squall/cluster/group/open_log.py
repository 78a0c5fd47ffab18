"""Opens the log of a control group, as this node's member of the group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol

from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.group_member.wire_transport import WireTransport
from squall.cluster.ledger.interface import Digest, Ledger, StateMachine
from squall.cluster.ledger.replica.types import NO_GROUP, GroupId
from squall.cluster.ledger.replica.types import Timers as ReplicaTimers
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.wire.links.switchboard import Switchboard
from squall.runtime.interfaces import Address, NodeId, Runtime
from squall.runtime.tasks import TaskRunner
from squall.settings.shared_sections import TimerSettings


class BlobNamingMachine(StateMachine, Protocol):
    """A state machine whose state names blobs."""

    def referenced(self) -> Iterator[str]:
        """The digests of the blobs that the state names; a digest may come twice."""
        ...


LogOpener = Callable[[Runtime, TaskRunner, BlobNamingMachine], Awaitable[Ledger]]
"""Opens a log that is in a store instead of on this node's disk."""


async def open_log(
    runtime: Runtime,
    tasks: TaskRunner,
    machine: BlobNamingMachine,
    board: Switchboard,
    *,
    members: dict[str, Address],
    timers: TimerSettings,
    settings: LedgerSettings,
    group: str,
    joins: bool,
    watch: GroupWatch,
) -> Ledger:
    """Opens the log. With `joins`, an empty directory waits until an existing group admits it,
    instead of forming a new group."""

    def references() -> Iterable[Digest]:
        return [Digest(blob) for blob in machine.referenced()]

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
        log=watch.log,
        observe=watch.observe,
        on_alarm=watch.alarm,
    )
    ledger.blobs.references = references
    return ledger


def replica_timers(timers: TimerSettings) -> ReplicaTimers:
    return ReplicaTimers(
        timers.heartbeat_round_s,
        timers.check_quorum_s,
        timers.follower_timeout_s,
        timers.stagger_s,
        timers.jitter_s,
    )
