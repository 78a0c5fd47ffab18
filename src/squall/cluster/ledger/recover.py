"""Creates a new group from one data directory after the old group lost its quorum for good.

Recovery keeps everything on this disk, including entries that are not known to be committed,
because some of them were. What only the other members had is lost. The new group has a new
id and an epoch far above the old one, so that no message of the old group can count in it.
This node is its only member, with a new storage id. The state machine takes the new id: op
numbers that the lost log has used come again, so that an op number alone names two things.

Recovery never changes the old files. It renames their directory once the new directory is
durable. The caller must ensure that no other member of the old group runs or comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from squall.cluster.ledger.apply import Applier
from squall.cluster.ledger.durable_directories import make_directories
from squall.cluster.ledger.files.checkpoints import CheckpointHead, Checkpoints
from squall.cluster.ledger.files.directory_owner import load_storage
from squall.cluster.ledger.files.new_directory import own_storage
from squall.cluster.ledger.group_member.durable_state import (
    DurableState,
    clock_stamp,
    open_durable_state,
)
from squall.cluster.ledger.group_member.snapshots import Slices
from squall.cluster.ledger.interface import Fence, GroupMs, LedgerFailed, StateMachine
from squall.cluster.ledger.replica.state import config_of, formation_of
from squall.cluster.ledger.replica.types import Base, Config, GroupId, Kind, Member, StorageId
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.ledger.wal.errors import WalError
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner

# The other members may have seen epochs that this disk has not; the gap keeps the new epoch
# above all of them.
EPOCHS_AHEAD = 1000
GROUP_ID_BYTES = 4
BLOB_NAME = 64
"""Length of a blob's file name: a SHA-256 in hex."""
FRESH = "ledger.recovering"
FORMER = "ledger.former"


class RecoverableMachine(StateMachine, Protocol):
    """A state machine that a new group can take over."""

    def begin_group(self, group: str, epoch: int) -> None:
        """Makes `group` part of every id that the machine derives from an op number, and `epoch`,
        which is above that of every group of this log, of every other id."""
        ...


@dataclass(frozen=True)
class Recovery:
    """Describes a finished recovery: the former group and the new one."""

    node: str
    former_group: str
    former_members: tuple[str, ...]
    group: str
    epoch: int
    op: int
    """The last entry that was kept."""
    known_committed: int
    """The last entry that is known to be committed."""
    former_files: str


async def recover_alone(
    runtime: Runtime,
    tasks: TaskRunner,
    machine: RecoverableMachine,
    settings: LedgerSettings | None = None,
) -> Recovery:
    """Recovers the group and loads its state into `machine`. Raises LedgerFailed, OSError."""
    settings = settings or LedgerSettings()
    disk = runtime.disk
    storage = await load_storage(disk, settings.directory)
    if storage is None:
        raise LedgerFailed("there is no ledger in this directory")
    if storage.node != runtime.node:
        raise LedgerFailed(f"this directory belongs to {storage.node}, not to {runtime.node}")
    try:
        lock = disk.lock()
    except BlockingIOError:
        raise LedgerFailed(f"a {storage.role} runs with this directory: stop it first") from None
    try:
        return await _recover(runtime, tasks, machine, settings)
    except WalError as error:
        raise LedgerFailed(str(error)) from None
    finally:
        lock.release()


async def _recover(
    runtime: Runtime, tasks: TaskRunner, machine: RecoverableMachine, settings: LedgerSettings
) -> Recovery:
    disk = runtime.disk
    durable_state = await open_durable_state(runtime, tasks, settings)
    try:
        applier, former = _replay(durable_state, machine, settings)
    finally:
        await durable_state.wal.close()
    if await disk.list(FRESH):
        raise LedgerFailed(f"{FRESH} is left over from an interrupted recovery: remove it")
    await make_directories(disk, FRESH)
    storage = await own_storage(runtime, FRESH, settings.role)
    fence = Fence(_new_epoch(runtime, max(durable_state.recovered.fence.epoch, former.epoch)), 0)
    member = Member(runtime.node, StorageId(storage.storage_id))
    group = GroupId(runtime.entropy(GROUP_ID_BYTES).hex())
    machine.begin_group(group, fence.epoch)
    group_ms = max(applier.group_ms, durable_state.recovered.group_ms)
    base = Base(
        applier.applied,
        applier.checksum,
        GroupMs(group_ms),
        group,
        Config(fence.epoch, (member,)),
        applier.active_version,
    )
    stamp = clock_stamp(runtime.clock)
    head = CheckpointHead(
        storage.storage_id,
        base,
        1,
        fence,
        fence,
        stamp.wall_ms,
        boot_ms=stamp.boot_ms,
        kernel=stamp.kernel,
    )
    checkpoints = Checkpoints(disk, f"{FRESH}/checkpoints", storage.storage_id)
    await make_directories(disk, f"{FRESH}/checkpoints")
    await checkpoints.write(head, Slices(list(machine.capture().slices())))
    await _bring_blobs(runtime, settings.directory)
    aside = await _swap(runtime, settings.directory)
    return Recovery(
        node=str(runtime.node),
        former_group=former.group,
        former_members=former.members,
        group=group,
        epoch=fence.epoch,
        op=int(applier.applied),
        known_committed=min(durable_state.recovered.commit, int(applier.applied)),
        former_files=aside,
    )


@dataclass(frozen=True)
class _Former:
    """The group that the directory belonged to."""

    group: str
    epoch: int
    members: tuple[str, ...]


def _replay(
    durable_state: DurableState, machine: StateMachine, settings: LedgerSettings
) -> tuple[Applier, _Former]:
    """Applies all entries on this disk; returns the applier and the former group."""
    recovered = durable_state.recovered
    applier = Applier(machine, settings.apply_slice)
    group, config = recovered.base.group, recovered.base.config
    if durable_state.slices is not None:
        machine.load(iter(durable_state.slices))
        applier.restore(recovered.base)
    for entry in recovered.entries:
        if entry.version > machine.version:
            raise LedgerFailed(
                f"the log holds commands of version {entry.version}, this Squall applies up to "
                f"{machine.version}: recover with the newer one"
            )
        if entry.kind is Kind.FORM:
            formation = formation_of(entry)
            group, config = formation.group, formation.config
        elif entry.kind is Kind.MEMBERS:
            config = config_of(entry)
        applier.apply(entry)
    if config is None:
        raise LedgerFailed("this directory never belonged to a group: there is nothing to recover")
    return applier, _Former(group, config.epoch, tuple(str(node) for node in config.nodes))


def _new_epoch(runtime: Runtime, former: int) -> int:
    """The epoch of the new group, above every epoch of the former one.

    Workers ignore answers of a lower epoch than they have seen. Two copies of one log may become
    groups one after the other, so the second must not repeat the epoch of the first: the wall
    clock orders them. If that clock was set back in between, such workers need a restart."""
    return max(former + EPOCHS_AHEAD, int(runtime.clock.wall()))


async def _bring_blobs(runtime: Runtime, directory: str) -> None:
    disk = runtime.disk
    await make_directories(disk, f"{FRESH}/blobs")
    for name in await disk.list(f"{directory}/blobs"):
        if len(name) == BLOB_NAME:
            data = await disk.read(f"{directory}/blobs/{name}")
            await disk.write_atomic(f"{FRESH}/blobs/{name}", data)


async def _swap(runtime: Runtime, directory: str) -> str:
    """Renames the old directory to the first free name, and the new one into its place."""
    disk = runtime.disk
    number = 1
    while await disk.list(f"{FORMER}-{number}"):
        number += 1
    aside = f"{FORMER}-{number}"
    # A crash between the two renames leaves both directories complete, under other names.
    await disk.rename(directory, aside)
    await disk.rename(FRESH, directory)
    await disk.sync_directory("")
    return aside
