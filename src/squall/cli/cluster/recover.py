"""`squall recover --force DIR`: makes a new group from the data directory of one manager or gate.

For when most members have lost their disks for good. It reports what is kept and what may be
lost, and leaves the old files beside the new ones.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from squall.api.errors import UsageError
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.ledger.files.directory_owner import Storage, load_storage
from squall.cluster.ledger.recover import Recovery, recover_alone
from squall.cluster.ledger.settings import LedgerSettings
from squall.reporting.number_format import plural
from squall.reporting.text.standard_streams import print_json, print_or_drop
from squall.runtime.interfaces import Runtime
from squall.runtime.real.disk import RealDisk
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

SHUTDOWN_S = 5.0
LEDGER = "ledger"


@dataclass(frozen=True)
class RecoveredGroup:
    recovery: Recovery
    jobs: dict[str, int]
    """By state."""
    missing_blobs: int
    """Results and bundles that the state names but this disk does not have."""
    role: str = "manager"


def execute(arguments: Namespace) -> int:
    folder = Path(arguments.directory)
    if not (folder / LEDGER).is_dir():
        raise UsageError(f"there is no data directory of a manager or gate in {folder}")
    if not arguments.force:
        raise UsageError(
            "this makes a new group of one member from this directory alone; whatever only the "
            "other members had is lost. Make sure that none of them runs, then add --force"
        )
    recovered = asyncio.run(recover(folder))
    if arguments.json:
        found = asdict(recovered.recovery)
        return print_json(
            {**found, "jobs": recovered.jobs, "missing_blobs": recovered.missing_blobs}
        )
    print_or_drop("\n".join(lines_of(recovered)))
    return 0


async def recover(folder: Path) -> RecoveredGroup:
    owner = await _owner(folder)
    runtime = RealRuntime(owner.node, data_dir=folder)
    tasks = TaskRunner(runtime.clock, runtime.random)
    machine = Assignments() if owner.role == "gate" else Datacenter()
    settings = LedgerSettings(role=owner.role)
    try:
        recovery = await recover_alone(cast("Runtime", runtime), tasks, machine, settings)
        there = set(await runtime.disk.list(f"{LEDGER}/blobs"))
    finally:
        await tasks.shutdown(SHUTDOWN_S)
        await runtime.close()
    jobs = Counter(str(job.state) for job in machine.tables.jobs.values())
    missing = set(machine.referenced()) - there
    return RecoveredGroup(recovery, dict(sorted(jobs.items())), len(missing), owner.role)


async def _owner(folder: Path) -> Storage:
    disk = RealDisk(folder)
    try:
        storage = await load_storage(disk, LEDGER)
    finally:
        await disk.close()
    if storage is None:
        raise UsageError(f"there is no data directory of a manager or gate in {folder}")
    return storage


def lines_of(recovered: RecoveredGroup) -> list[str]:
    found = recovered.recovery
    unsure = found.op - found.known_committed
    jobs = ", ".join(f"{count} {state}" for state, count in recovered.jobs.items())
    lines = [
        f"new group {found.group}: {found.node} alone, epoch {found.epoch}; it was "
        f"{found.former_group} of {', '.join(found.former_members)}",
        f"kept: all {plural(found.op, 'command')} on this disk; jobs: {jobs or 'none'}",
    ]
    if unsure:
        lines.append(
            f"the group may not have accepted the last {unsure} of these; they are accepted now"
        )
    if len(found.former_members) > 1:
        lines.append(
            f"lost: whatever the other {recovered.role}s accepted without this one (submissions, "
            "ends of jobs, results); such a job no longer exists"
        )
    if recovered.missing_blobs:
        lines.append(
            f"missing: {plural(recovered.missing_blobs, 'blob')} that only other {recovered.role}s "
            "had"
        )
    lines += [
        f"the old files are in {found.former_files}; the other {recovered.role}s need empty "
        "directories",
        f"start it with --members {found.node}=HOST:PORT, or with three in --members and then "
        "squall group add",
    ]
    return lines
