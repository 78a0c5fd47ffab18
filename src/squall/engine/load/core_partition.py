"""Decides which workflows get which cores, and which workflows wait.

`partition` decides the number of threads: a priority is a range of threads out of the pool;
workflows are admitted with their minimum, spare threads go from the lowest rank upwards.
`place` decides the time: the workflows of a layer run together. A workflow that the partition
would postpone shares cores instead; only EXCLUSIVE waits for the others.

Both are pure and deterministic, so every process that plans makes the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from squall.stats.manifest import Priority, WorkflowManifest

_RANK: Mapping[Priority, int] = {"low": 0, "auto": 1, "normal": 2, "high": 3, "exclusive": 4}

Phase: TypeAlias = Mapping[str, tuple[int, ...]]
"""Workflows that run at the same time, each with the indices of its cores."""


class PartitionItem(NamedTuple):
    """A workflow as the partition sees it."""

    name: str
    priority: Priority = "auto"
    is_test: bool = True
    most_threads: int | None = None
    """More threads than this are of no use to it: the number of its users, if fixed."""


class ThreadGrant(NamedTuple):
    """The threads that the partition gives a workflow."""

    name: str
    priority: Priority
    threads: int


def thread_range(priority: Priority, pool: int) -> tuple[int, int]:
    """Fewest and most threads a priority may ask for out of the pool."""
    quarter = -(-pool // 4)
    three_quarters = -(-pool * 3 // 4)
    return {
        "low": (1, quarter),
        "normal": (quarter, three_quarters),
        "high": (three_quarters, pool),
        "exclusive": (pool, pool),
        "auto": (1, pool),
    }[priority]


def partition(
    items: Sequence[PartitionItem], pool: int, *, reserved: int = 0
) -> list[list[ThreadGrant]]:
    """Batches in the order in which they would run one after the other.

    Workflows that are not tests come first, in their own batch with 0 threads. They run on
    `reserved` cores while the tests run on the others.
    """
    if pool < 1:
        raise ValueError(f"the pool has {pool} threads; it needs at least 1")
    batches: list[list[ThreadGrant]] = []
    others = [ThreadGrant(item.name, item.priority, 0) for item in items if not item.is_test]
    if others:
        batches.append(others)
    capacity = max(1, pool - reserved)
    # The sort is stable: equal ranks stay in the order of the file.
    tests = sorted((i for i in items if i.is_test), key=lambda i: -_RANK[i.priority])
    members: list[_Member] = []
    for item in tests:
        member = _Member(item, pool, pool if item.priority == "exclusive" else capacity)
        if item.priority == "exclusive":
            batches.append([member.placed()])
            continue
        if members and sum(m.threads for m in members) + member.threads > capacity:
            batches.append(_share_out(members, capacity))
            members = []
        members.append(member)
    if members:
        batches.append(_share_out(members, capacity))
    return batches


def place(workflows: Sequence[WorkflowManifest], cores: int) -> list[Phase]:
    """The phases of one layer; in each, every workflow runs at the same time."""
    waiting = [w for w in workflows if _waits(w)]
    together = [w for w in workflows if not _waits(w)]
    phases: list[Phase] = [_place_together(together, cores)] if together else []
    for workflow in waiting:
        [[placed]] = partition([item_of(workflow)], cores)
        phases.append({workflow.name: tuple(range(placed.threads))})
    return phases


def describe_sharing(phase: Phase) -> list[str]:
    """One line per group of cores that hosts several workflows."""
    hosted: dict[int, list[str]] = {}
    for name, cores in phase.items():
        for core in cores:
            hosted.setdefault(core, []).append(name)
    groups: dict[tuple[str, ...], list[int]] = {}
    for core in sorted(hosted):
        if len(hosted[core]) > 1:
            groups.setdefault(tuple(hosted[core]), []).append(core)
    return [f"{' + '.join(names)} share {_cores(cores)}" for names, cores in groups.items()]


class _Member:
    """A test workflow of a batch while threads are handed out."""

    def __init__(self, item: PartitionItem, pool: int, capacity: int) -> None:
        fewest, most = thread_range(item.priority, pool)
        limit = capacity if item.most_threads is None else min(capacity, item.most_threads)
        self.item = item
        self.rank = _RANK[item.priority]
        self.threads = max(1, min(fewest, limit))
        self.most = max(1, min(most, limit))

    def placed(self) -> ThreadGrant:
        return ThreadGrant(self.item.name, self.item.priority, self.threads)


def _share_out(members: list[_Member], capacity: int) -> list[ThreadGrant]:
    """Hands out the spare threads of a batch; afterwards no usable thread is idle."""
    spare = capacity - sum(member.threads for member in members)
    # AUTO may use everything, so at first it is limited to an even share. What is left when
    # no other workflow can grow goes to it as well.
    for auto_most in (capacity // len(members), capacity):
        grown = True
        while spare and grown:
            grown = False
            for rank in sorted({member.rank for member in members}):
                while spare and (member := _next_to_grow(members, rank, auto_most)) is not None:
                    member.threads += 1
                    spare -= 1
                    grown = True
    return [member.placed() for member in members]


def _next_to_grow(members: list[_Member], rank: int, auto_most: int) -> _Member | None:
    """The smallest of a rank that may have one more: below its maximum and, unless they are
    at their own maximum, below all of higher rank."""
    ceiling = min(
        (m.threads for m in members if m.rank > rank and m.threads < m.most), default=None
    )
    able = [
        m
        for m in members
        if m.rank == rank
        and m.threads < (min(m.most, auto_most) if m.item.priority == "auto" else m.most)
        and (ceiling is None or m.threads < ceiling)
    ]
    return min(able, key=lambda m: m.threads, default=None)


def _place_together(workflows: Sequence[WorkflowManifest], cores: int) -> Phase:
    others = [w for w in workflows if not w.is_test]
    tests = [item_of(w) for w in workflows if w.is_test]
    # Set-up work stays off the cores that measure, as long as one is left for those.
    reserved = min(len(others), cores - 1) if tests else 0
    load = [0] * cores
    placed: dict[str, tuple[int, ...]] = {}
    for batch in partition(tests, cores, reserved=reserved):
        for member in batch:
            placed[member.name] = _least_loaded(load, range(cores - reserved), member.threads)
    off_tests = range(cores - reserved, cores) if reserved else range(cores)
    for workflow in others:
        placed[workflow.name] = _least_loaded(load, off_tests, 1)
    return {workflow.name: placed[workflow.name] for workflow in workflows}


def _least_loaded(load: list[int], among: range, count: int) -> tuple[int, ...]:
    chosen = sorted(sorted(among, key=lambda core: load[core])[:count])
    for core in chosen:
        load[core] += 1
    return tuple(chosen)


def _waits(workflow: WorkflowManifest) -> bool:
    return workflow.is_test and workflow.priority == "exclusive"


def item_of(workflow: WorkflowManifest) -> PartitionItem:
    """A workflow as the partition sees it."""
    profile = workflow.profile
    if profile.model == "closed":
        most = profile.vus
    elif profile.model == "iterations":
        most = min(profile.vus, profile.iterations)
    else:
        # Ramps begin below their peak and open models grow: what counts is the most they reach.
        most = profile.max_vus
    return PartitionItem(workflow.name, workflow.priority, workflow.is_test, max(1, most))


def _cores(indices: list[int]) -> str:
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{'core' if len(indices) == 1 else 'cores'} {', '.join(texts)}"
