"""A new group from one data directory, when the quorum of the old one is lost for good.

Everything that this disk holds is kept, also entries that are not known to be committed:
some of them were. What only the other members had is lost. The new group has a new id and
an epoch far above the old one, so that nothing of the old group is ever taken for it, and
this node is its only member, with a new storage id.

It must never change the old files: they are moved aside whole, after the new directory is
durable. The caller makes sure that no other member of the old group runs or comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from squall.ledger.apply import Applier
from squall.ledger.checkpoint import CheckpointHead, Checkpoints
from squall.ledger.directories import make_directories
from squall.ledger.fresh import own_storage
from squall.ledger.interface import Fence, GroupMs, LedgerFailed, StateMachine
from squall.ledger.replica.keeping import Kept, open_kept
from squall.ledger.replica.snapshots import Slices
from squall.ledger.replica.state import config_of, formation_of
from squall.ledger.replica.types import Base, Config, GroupId, Kind, Member, StorageId
from squall.ledger.settings import LedgerSettings
from squall.ledger.storage import load_storage
from squall.ledger.wal.errors import WalError
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner

EPOCHS_AHEAD = 1000
GROUP_ID_BYTES = 4
BLOB_NAME = 64
"""Characters of the name of a blob: SHA-256 in hex."""
FRESH = "ledger.recovering"
FORMER = "ledger.former"


@dataclass(frozen=True)
class Recovery:
    """What was found, and what it became."""

    node: str
    former_group: str
    former_members: tuple[str, ...]
    group: str
    epoch: int
    op: int
    """All entries up to here are kept."""
    known_committed: int
    """Up to here they were certainly committed."""
    former_files: str


async def recover_alone(
    runtime: Runtime,
    tasks: TaskRunner,
    machine: StateMachine,
    settings: LedgerSettings | None = None,
) -> Recovery:
    """`machine` has the recovered state afterwards. Raises LedgerFailed, OSError."""
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
        raise LedgerFailed("a manager runs with this directory: stop it first") from None
    try:
        return await _recover(runtime, tasks, machine, settings)
    except WalError as error:
        raise LedgerFailed(str(error)) from None
    finally:
        lock.release()


async def _recover(
    runtime: Runtime, tasks: TaskRunner, machine: StateMachine, settings: LedgerSettings
) -> Recovery:
    disk = runtime.disk
    kept = await open_kept(runtime, tasks, settings)
    try:
        applier, former = _replay(kept, machine, settings)
    finally:
        await kept.wal.close()
    if await disk.list(FRESH):
        raise LedgerFailed(f"{FRESH} is left over from a recovery that was cut short: remove it")
    await make_directories(disk, FRESH)
    storage = await own_storage(runtime, FRESH)
    fence = Fence(max(kept.recovered.fence.epoch, former.epoch) + EPOCHS_AHEAD, 0)
    member = Member(runtime.node, StorageId(storage.storage_id))
    group = GroupId(runtime.entropy(GROUP_ID_BYTES).hex())
    group_ms = max(applier.group_ms, kept.recovered.group_ms)
    base = Base(
        applier.applied,
        applier.checksum,
        GroupMs(group_ms),
        group,
        Config(fence.epoch, (member,)),
        applier.active_version,
    )
    wall_ms = int(runtime.clock.wall() * 1000.0)
    head = CheckpointHead(storage.storage_id, base, 1, fence, fence, wall_ms)
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
        known_committed=min(kept.recovered.commit, int(applier.applied)),
        former_files=aside,
    )


@dataclass(frozen=True)
class _Former:
    group: str
    epoch: int
    members: tuple[str, ...]


def _replay(kept: Kept, machine: StateMachine, settings: LedgerSettings) -> tuple[Applier, _Former]:
    """The state after all entries on this disk, and whose it was."""

    def broken(error: Exception) -> None:
        raise error

    recovered = kept.recovered
    applier = Applier(machine, settings.apply_slice, broken)
    group, config = recovered.base.group, recovered.base.config
    if kept.slices is not None:
        machine.load(iter(kept.slices))
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


async def _bring_blobs(runtime: Runtime, directory: str) -> None:
    disk = runtime.disk
    await make_directories(disk, f"{FRESH}/blobs")
    for name in await disk.list(f"{directory}/blobs"):
        if len(name) == BLOB_NAME:
            data = await disk.read(f"{directory}/blobs/{name}")
            await disk.write_atomic(f"{FRESH}/blobs/{name}", data)


async def _swap(runtime: Runtime, directory: str) -> str:
    """The old directory goes aside under the first free name."""
    disk = runtime.disk
    number = 1
    while await disk.list(f"{FORMER}-{number}"):
        number += 1
    aside = f"{FORMER}-{number}"
    await disk.rename(directory, aside)
    await disk.rename(FRESH, directory)
    await disk.sync_directory("")
    return aside
