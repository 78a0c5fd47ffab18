"""Chooses the cores for the workflows of a phase.

The number of cores follows the rules of a run on one machine (`core_partition.place`), applied
to the free cores of the datacenter; workflows that do not fit share cores with others of the
same job. Cores are taken from all workers in turn, so that the loss of one worker costs little.
A core serves one job at a time. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from squall.cluster.datacenter.commands import Assignment, Placement
from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkerRecord, WorkflowRecord
from squall.cluster.datacenter.tables import Tables
from squall.cluster.manager.primary.lease_rules import was_cut_short
from squall.cluster.protocol.job_keys import JobId, ShareKey
from squall.cluster.protocol.messages import SpecValues
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.core_partition import item_of, place, thread_range
from squall.engine.load.share_specs import share_specs
from squall.engine.plan.received_values import exports_of
from squall.stats.manifest import Profile, WorkflowManifest

CORES_PER_PHASE_MAX = 2500
"""One command takes them all, and a command is at most 256 kB."""


SHARE_PREPARE_S = 0.1
"""Time to get ready for each share beyond the first on a core. They have one process, which imports
the file once; each share takes a few milliseconds of CPU and opens its users beside the others."""


class WorkerCore(NamedTuple):
    """One core of one boot of a worker."""

    node: str
    boot: str
    slot: int


class FreeCores(NamedTuple):
    """The workers that may get work, with their free cores."""

    total: int
    free: tuple[tuple[WorkerRecord, tuple[int, ...]], ...]
    loaded: frozenset[str] = frozenset()
    """The workers among them whose machines have little left."""

    @property
    def free_cores(self) -> int:
        return sum(len(slots) for _, slots in self.free)


class DoesNotFit(Exception):
    """A workflow can never run on these workers; the text is one line that says why."""

    def __init__(self, workflow: str, text: str) -> None:
        super().__init__(f"{workflow}: {text}")
        self.workflow = workflow


def pool_of(
    tables: Tables,
    usable: Iterable[WorkerRecord],
    offered: Iterable[WorkerRecord] | None = None,
    loaded: Iterable[str] = (),
) -> FreeCores:
    """`total` counts the cores of all `usable` workers; free cores are only those of `offered`
    (None: of all). `loaded` names workers that come after the others."""
    workers = [each for each in usable if not each.draining]
    giving = [each for each in (workers if offered is None else offered) if not each.draining]
    free = tuple((each, tuple(tables.free_slots(each))) for each in giving)
    return FreeCores(sum(each.cores for each in workers), free, frozenset(loaded))


def profile_of(job: JobRecord, name: str) -> Profile:
    """The profile of a whole workflow, as its present placement runs it."""
    record = job.workflow(name)
    if record is not None and record.profile is not None:
        return record.profile
    return job.submission.manifest.workflow(name).profile


def least_cores(workflows: Sequence[WorkflowManifest], pool: FreeCores) -> int:
    """The cores that a phase needs to begin: the minimum of each priority's range over the whole
    pool, and enough for the connections of its users."""
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


def take_cores(pool: FreeCores, count: int) -> list[WorkerCore]:
    """Takes free cores from all workers in turn: first those whose machines are not loaded, among
    them the worker that has most free cores."""

    def place_of(each: tuple[WorkerRecord, tuple[int, ...]]) -> tuple[bool, int, str]:
        worker, slots = each
        return worker.node in pool.loaded, -len(slots), worker.node

    order = sorted(pool.free, key=place_of)
    chosen: list[WorkerCore] = []
    turn = 0
    while len(chosen) < count:
        row = [(w, slots[turn]) for w, slots in order if turn < len(slots)]
        if not row:
            break
        chosen += [WorkerCore(w.node, w.boot, slot) for w, slot in row[: count - len(chosen)]]
        turn += 1
    return chosen


def place_phase(
    tables: Tables,
    job: JobRecord,
    workflows: Sequence[WorkflowManifest],
    pool: FreeCores,
    values: Mapping[str, tuple[str, int]],
) -> list[Placement]:
    """Places all workflows of a phase on the free cores of the pool. `values` names the blobs of
    the values for them."""
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
                        tables.next_attempt(ShareKey(job.job, workflow.name, share)),
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


def extra_prepare_s(shares_by_core: Iterable[int]) -> float:
    """The time beyond `prepare_timeout_s` that the fullest of these cores needs to get ready."""
    return SHARE_PREPARE_S * max(max(shares_by_core, default=1) - 1, 0)


def refill_core(
    tables: Tables, job: JobRecord, pool: FreeCores, share: ShareKey, taken: Sequence[WorkerCore]
) -> WorkerCore | None:
    """Chooses a core for the rest of a lost share. A worker that failed this share comes last, the
    more often the later; then free cores come before shared ones of the same job, workers that no
    attempt at this share ran on before others, and workers that are less busy before busier ones.
    `taken` are cores that the same command gives to other shares."""
    free = {
        WorkerCore(worker.node, worker.boot, slot): 0
        for worker, slots in pool.free
        for slot in slots
        if WorkerCore(worker.node, worker.boot, slot) not in taken
    }
    workers = {worker.node: worker for worker, _ in pool.free}
    hosted = {
        WorkerCore(node, workers[node].boot, slot): len(use.attempts)
        for (node, slot), use in tables.slots.items()
        if use.job == job.job and node in workers
    }
    for core in taken:
        hosted[core] = hosted.get(core, 0) + 1
    failed = _failed_attempts(tables, share)

    def rank(core: WorkerCore) -> tuple[int, int, bool, bool, int, WorkerCore]:
        here = sum(each.boot == core.boot for each in failed if each.node == core.node)
        before = sum(each.node == core.node for each in failed) - here
        # A boot that was killed once says little about the next one, which has its cores free.
        again = here + max(before - 1, 0)
        ran_it, loaded = bool(here or before), core.node in pool.loaded
        return again, hosted.get(core, 0), ran_it, loaded, _load(tables, core), core

    return min({**hosted, **free}, key=rank, default=None)


def _failed_attempts(tables: Tables, share: ShareKey) -> list[AttemptFacts]:
    """The attempts at a share that did not do what was left of it: lost, cut or refused."""
    return [
        each
        for each in tables.attempts.get(share, ())
        if each.state == "lost" or (each.state == "returned" and each.refill) or was_cut_short(each)
    ]


def process_numbers(tables: Tables, job: JobId) -> dict[WorkerCore, int]:
    """The numbers of the core processes of a job so far: one for each core of each boot."""
    return {
        WorkerCore(facts.node, facts.boot, facts.slot): facts.process
        for _, facts in tables.attempts_of(job)
    }


def specs_of(job: JobRecord, workflow: WorkflowRecord, values: SpecValues) -> list[ShareSpec]:
    """The shares of a placed workflow; together they make the load of the plan."""
    manifest = job.submission.manifest
    plan = msgspec.structs.replace(
        manifest.workflow(workflow.name), profile=profile_of(job, workflow.name)
    )
    names = [each.name for each in manifest.workflows]
    split = job.submission.split
    return share_specs(
        plan,
        workflow.shares,
        seed=job.submission.options.seed,
        values=values.values,
        received=values.received,
        exports=exports_of(manifest, workflow.name),
        place=(names.index(workflow.name), len(names)),
        part=split.workflows.get(workflow.name) if split is not None else None,
    )


def fitted(workflow: WorkflowManifest, shares: int, descriptors: int) -> Profile | None:
    """The profile reduced to the sockets that its processes may open; None if it fits as it is."""
    profile = workflow.profile
    if not descriptors:
        return None
    most = descriptors * shares // max(workflow.connections_per_vu, 1)
    if profile.max_vus <= most:
        return None
    if not profile.is_open or profile.vus > most:
        wanted = profile.vus if profile.is_open else profile.max_vus
        raise DoesNotFit(
            workflow.name,
            f"{wanted} users need more connections than the workers allow "
            f"({most} users fit on {shares} cores); add workers or raise their limit (ulimit -n)",
        )
    return msgspec.structs.replace(profile, max_vus=most)


def _cores_for_connections(workflow: WorkflowManifest, pool: FreeCores) -> int:
    descriptors = [worker.descriptors for worker, _ in pool.free if worker.descriptors]
    if not descriptors:
        return 1
    profile = workflow.profile
    users = profile.vus if profile.is_open else profile.max_vus
    return -(-users * max(workflow.connections_per_vu, 1) // min(descriptors))


def _descriptors(tables: Tables, cores: Iterable[WorkerCore]) -> int:
    known = [tables.workers[core.node].descriptors for core in cores]
    return min((each for each in known if each), default=0)


def _load(tables: Tables, core: WorkerCore) -> int:
    return len(tables.live.get(core.node, {}))
