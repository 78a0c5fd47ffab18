"""Which cores of which workers a phase gets.

The number of cores follows the rules of the one-machine run (`engine.partition.place`)
over the free cores of the datacenter; whoever does not fit shares cores with others of the
same job. Cores are taken from all workers in turn, so that a loss hurts little. A core
serves one job at a time. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from squall.engine.partition import item_of, place, thread_range
from squall.engine.protocol import ShareSpec
from squall.engine.shares import share_specs
from squall.nodes.datacenter.commands import Assignment, Placement
from squall.nodes.datacenter.contexts import exports_of
from squall.nodes.datacenter.records import JobRecord, WorkerRecord, WorkflowRecord
from squall.nodes.datacenter.tables import Tables
from squall.nodes.identity import Attempt, JobId, ShareKey
from squall.nodes.messages import SpecValues
from squall.stats.manifest import Profile, WorkflowManifest

CORES_PER_PHASE_MAX = 2500
"""One command takes them all, and a command is at most 256 kB."""


class Core(NamedTuple):
    node: str
    boot: str
    slot: int


class Pool(NamedTuple):
    """The workers that may be given work, with their free cores."""

    total: int
    free: tuple[tuple[WorkerRecord, tuple[int, ...]], ...]

    @property
    def free_cores(self) -> int:
        return sum(len(slots) for _, slots in self.free)


class DoesNotFit(Exception):
    """One line: why a workflow can never run here."""


def pool_of(
    tables: Tables,
    usable: Iterable[WorkerRecord],
    offered: Iterable[WorkerRecord] | None = None,
) -> Pool:
    """`offered`: of whom free cores are given out now; None: of all."""
    workers = [each for each in usable if not each.draining]
    giving = [each for each in (workers if offered is None else offered) if not each.draining]
    free = tuple((each, tuple(tables.free_slots(each))) for each in giving)
    return Pool(sum(each.cores for each in workers), free)


def profile_of(job: JobRecord, name: str) -> Profile:
    """Of the whole workflow, as its present placement runs it."""
    record = job.workflow(name)
    if record is not None and record.profile is not None:
        return record.profile
    return job.submission.manifest.workflow(name).profile


def least_cores(workflows: Sequence[WorkflowManifest], pool: Pool) -> int:
    """Cores without which a phase does not begin: the fewest of each priority's range over
    the whole pool, and enough for the connections of closed models."""
    least = 0
    for workflow in workflows:
        if not workflow.is_test:
            continue
        item = item_of(workflow)
        fewest, _ = thread_range(workflow.priority, max(pool.total, 1))
        most = item.most_threads or fewest
        fewest = pool.total if workflow.priority == "exclusive" else min(fewest, most)
        least += max(fewest, min(_cores_for_connections(workflow, pool), pool.total))
    return max(1, min(least, pool.total))


def take_cores(pool: Pool, count: int) -> list[Core]:
    """Free cores from all workers in turn, those with most free ones first."""
    order = sorted(pool.free, key=lambda each: (-len(each[1]), each[0].node))
    chosen: list[Core] = []
    turn = 0
    while len(chosen) < count:
        row = [(w, slots[turn]) for w, slots in order if turn < len(slots)]
        if not row:
            break
        chosen += [Core(w.node, w.boot, slot) for w, slot in row[: count - len(chosen)]]
        turn += 1
    return chosen


def place_phase(
    tables: Tables,
    job: JobRecord,
    workflows: Sequence[WorkflowManifest],
    pool: Pool,
    values: Mapping[str, tuple[str, int]],
) -> list[Placement]:
    """All workflows of a phase on the pool's free cores. `values` names the blobs of what
    is handed over to them."""
    count = min(pool.free_cores, CORES_PER_PHASE_MAX)
    phase = place(workflows, count)[0]
    used = sorted({index for cores in phase.values() for index in cores})
    cores = dict(zip(used, take_cores(pool, len(used)), strict=True))
    processes = process_numbers(tables, job.job)
    placements: list[Placement] = []
    for workflow in workflows:
        if workflow.name not in phase:
            continue
        mine = [cores[index] for index in phase[workflow.name]]
        profile = fitted(workflow, len(mine), _descriptors(tables, mine))
        blob, size = values.get(workflow.name, ("", 0))
        placements.append(
            Placement(
                workflow=workflow.name,
                shares=len(mine),
                assignments=tuple(
                    Assignment(
                        share,
                        next_attempt(tables, ShareKey(job.job, workflow.name, share)),
                        core.node,
                        core.boot,
                        core.slot,
                        processes.setdefault(core, len(processes)),
                    )
                    for share, core in enumerate(mine)
                ),
                profile=profile,
                values_blob=blob,
                values_size=size,
            )
        )
    return placements


def refill_core(
    tables: Tables, job: JobRecord, pool: Pool, lost_on: str, taken: Sequence[Core]
) -> Core | None:
    """For the rest of a lost share: a free core of another worker, a free one of the same,
    or the job's core with the fewest shares. `taken` are those just given to others."""
    free = [
        Core(worker.node, worker.boot, slot)
        for worker, slots in pool.free
        for slot in slots
        if Core(worker.node, worker.boot, slot) not in taken
    ]
    if free:
        return min(free, key=lambda core: (core.node == lost_on, _load(tables, core), core))
    workers = {worker.node: worker for worker, _ in pool.free}
    hosted = {
        Core(node, workers[node].boot, slot): len(use.attempts)
        for (node, slot), use in tables.slots.items()
        if use.job == job.job and node in workers
    }
    for core in taken:
        hosted[core] = hosted.get(core, 0) + 1
    return min(hosted, key=lambda core: (hosted[core], core), default=None)


def process_numbers(tables: Tables, job: JobId) -> dict[Core, int]:
    """Numbers of the core processes of a job so far: one for each core of each boot."""
    return {
        Core(facts.node, facts.boot, facts.slot): facts.process
        for _, facts in tables.attempts_of(job)
    }


def next_attempt(tables: Tables, share: ShareKey) -> Attempt:
    return Attempt(len(tables.attempts.get(share, ())) + 1)


def specs_of(job: JobRecord, workflow: WorkflowRecord, values: SpecValues) -> list[ShareSpec]:
    """The shares of a placed workflow; the sums are the plan's."""
    manifest = job.submission.manifest
    plan = msgspec.structs.replace(
        manifest.workflow(workflow.name), profile=profile_of(job, workflow.name)
    )
    names = [each.name for each in manifest.workflows]
    return share_specs(
        plan,
        workflow.shares,
        seed=job.submission.options.seed,
        values=values.values,
        received=values.received,
        exports=exports_of(manifest, workflow.name),
        place=(names.index(workflow.name), len(names)),
    )


def fitted(workflow: WorkflowManifest, shares: int, descriptors: int) -> Profile | None:
    """The profile within the sockets of its processes; None if it fits as it is."""
    profile = workflow.profile
    if not descriptors:
        return None
    most = descriptors * shares // max(workflow.connections_per_vu, 1)
    if profile.max_vus <= most:
        return None
    if not profile.is_open or profile.vus > most:
        wanted = profile.vus if profile.is_open else profile.max_vus
        raise DoesNotFit(
            f"{workflow.name}: {wanted} users need more connections than the workers allow "
            f"({most} users fit on {shares} cores); add workers or raise their limit (ulimit -n)"
        )
    return msgspec.structs.replace(profile, max_vus=most)


def _cores_for_connections(workflow: WorkflowManifest, pool: Pool) -> int:
    descriptors = [worker.descriptors for worker, _ in pool.free if worker.descriptors]
    if not descriptors:
        return 1
    profile = workflow.profile
    users = profile.vus if profile.is_open else profile.max_vus
    return -(-users * max(workflow.connections_per_vu, 1) // min(descriptors))


def _descriptors(tables: Tables, cores: Iterable[Core]) -> int:
    known = [tables.workers[core.node].descriptors for core in cores]
    return min((each for each in known if each), default=0)


def _load(tables: Tables, core: Core) -> int:
    return len(tables.live.get(core.node, {}))
