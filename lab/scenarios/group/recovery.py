"""The end of a group: all members but one are gone for good, or all and a backup is left.

`squall recover` makes a new group of one from the disk of the last member, `squall restore` from a
backup that was copied while the member ran. The new group must hold everything that the disk, or
the backup, held; its epoch must be above every epoch of the former group; and it must serve.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.scenarios.group.checks import GroupChecks
from lab.scenarios.group.machine import Machine
from lab.sim.checks import check
from lab.sim.disk.disk import SimDisk
from lab.sim.disk.files import parent
from squall.cluster.ledger.recover import Recovery

LEDGER = "ledger/"


@dataclass(frozen=True)
class LastCopy:
    """What is left of a group: the disk of one member, or a backup of it."""

    node: str
    durable_op: int
    """Everything up to here was durable on the disk."""
    acked: dict[tuple[str, int], int]
    """The acknowledged commands that were durable on it: (client, number) -> op."""
    files: dict[str, bytes] | None = None
    """The files of a backup; None if the disk itself is left."""

    def check(self, recovery: Recovery, machine: Machine, former: GroupChecks) -> None:
        check(
            recovery.op >= self.durable_op,
            f"{self.node} held op {self.durable_op}, and recovery kept op {recovery.op}",
        )
        check(
            recovery.epoch > former.epoch,
            f"the new group begins in epoch {recovery.epoch}, the former was in {former.epoch}",
        )
        for (client, number), op in self.acked.items():
            last = machine.state.last.get(client, (0, ""))[0]
            check(
                last >= number,
                f"{client} #{number} was acknowledged as op {op} and is lost with op"
                f" {recovery.op} recovered",
            )


def copy_files(disk: SimDisk) -> dict[str, bytes]:
    """Copies what a reader sees at this moment, as `squall backup` does beside a running member."""
    files = sorted(disk.tree.names.files.items())
    return {path: bytes(inode.content) for path, inode in files if path.startswith(LEDGER)}


def put_files(disk: SimDisk, files: dict[str, bytes]) -> None:
    """Replaces the content of the disk by durable copies of the files."""
    disk.wipe()
    tree = disk.tree
    for path, content in files.items():
        for folder in ("ledger", parent(path)):
            if folder not in tree.names.directories:
                tree.make_directory(folder)
        inode = tree.create(path)
        inode.append(content)
        inode.make_durable(len(inode.pending))
        tree.sync_names(parent(path))
    tree.sync_names("ledger")
    tree.sync_names("")
