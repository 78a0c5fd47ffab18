"""The partition of cores by priority, for any mixture of workflows."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.engine.load.core_partition import (
    PartitionItem,
    ThreadGrant,
    partition,
    place,
    thread_range,
)
from squall.stats.manifest import Priority, Profile, WorkflowManifest

PRIORITIES: tuple[Priority, ...] = get_args(Priority)
RANK = {"exclusive": 4, "high": 3, "normal": 2, "auto": 1, "low": 0}

priorities = st.sampled_from(PRIORITIES)


@st.composite
def item_lists(draw: st.DrawFn) -> list[PartitionItem]:
    kinds = st.tuples(priorities, st.booleans(), st.none() | st.integers(1, 80))
    drawn = draw(st.lists(kinds, max_size=10))
    return [PartitionItem(f"W{at}", *kind) for at, kind in enumerate(drawn)]


@pytest.mark.parametrize("pool", range(1, 65))
def test_ranges_are_the_table_of_priorities(pool: int) -> None:
    quarter, three_quarters = math.ceil(pool * 0.25), math.ceil(pool * 0.75)
    table = {
        "low": (1, quarter),
        "normal": (quarter, three_quarters),
        "high": (three_quarters, pool),
        "exclusive": (pool, pool),
        "auto": (1, pool),
    }
    for priority in PRIORITIES:
        fewest, most = thread_range(priority, pool)
        assert (fewest, most) == table[priority]
        assert 1 <= fewest <= most <= pool


def limits(item: PartitionItem, pool: int) -> tuple[int, int]:
    """The range read with the users: more threads than users are of no use."""
    fewest, most = thread_range(item.priority, pool)
    useful = item.most_threads or pool
    return min(fewest, useful), min(most, useful)


def check_partition(items: list[PartitionItem], pool: int) -> None:
    batches = partition(items, pool)
    by_name = {item.name: item for item in items}
    names = [placed.name for batch in batches for placed in batch]
    assert sorted(names) == sorted(by_name), "every workflow appears exactly once"
    others = [item.name for item in items if not item.is_test]
    if others:
        assert [(placed.name, placed.threads) for placed in batches[0]] == [(n, 0) for n in others]
    for batch in batches[1:] if others else batches:
        check_batch(batch, by_name, pool)


def check_batch(batch: list[ThreadGrant], by_name: dict[str, PartitionItem], pool: int) -> None:
    total = sum(placed.threads for placed in batch)
    assert 1 <= total <= pool
    if any(placed.priority == "exclusive" for placed in batch):
        assert len(batch) == 1, "EXCLUSIVE never shares a batch"
    most = {placed.name: limits(by_name[placed.name], pool)[1] for placed in batch}
    for placed in batch:
        fewest, _ = limits(by_name[placed.name], pool)
        assert fewest <= placed.threads <= most[placed.name]
        assert total == pool or placed.threads == most[placed.name], "an idle thread is of use"
        for other in batch:
            # A workflow that has all it can use sets no limit for lower ranks.
            if RANK[other.priority] > RANK[placed.priority]:
                assert other.threads >= min(placed.threads, most[other.name])
            elif other.priority == placed.priority and other.threads < most[other.name]:
                assert placed.threads <= other.threads + 1, "equal ranks split evenly"


def test_ten_thousand_random_partitions_keep_every_rule() -> None:
    chance = random.Random(68)
    for _ in range(10_000):
        pool = chance.randint(1, 64)
        items = [
            PartitionItem(
                f"W{at}",
                chance.choice(PRIORITIES),
                chance.random() < 0.8,
                chance.choice((None, chance.randint(1, 80))),
            )
            for at in range(chance.randint(0, 8))
        ]
        check_partition(items, pool)


@given(item_lists(), st.integers(1, 64))
@settings(max_examples=300, deadline=None)
def test_any_partition_keeps_every_rule(items: list[PartitionItem], pool: int) -> None:
    check_partition(items, pool)


@given(item_lists(), st.integers(2, 64), st.integers(0, 70))
@settings(max_examples=200, deadline=None)
def test_reserved_cores_stay_free_of_tests(
    items: list[PartitionItem], pool: int, reserved: int
) -> None:
    for batch in partition(items, pool, reserved=reserved):
        if not any(placed.priority == "exclusive" for placed in batch):
            assert sum(placed.threads for placed in batch) <= max(1, pool - reserved)


@given(item_lists(), st.integers(1, 32))
@settings(max_examples=300, deadline=None)
def test_a_layer_runs_together_on_real_cores_and_only_exclusive_tests_wait(
    items: list[PartitionItem], cores: int
) -> None:
    layer = [
        WorkflowManifest(
            name=item.name,
            priority=item.priority,
            is_test=item.is_test,
            profile=Profile(vus=item.most_threads or 100),
        )
        for item in items
    ]
    phases = place(layer, cores)
    waiting = [w.name for w in layer if w.is_test and w.priority == "exclusive"]
    together = [w.name for w in layer if w.name not in waiting]
    expected = [together] if together else []
    assert [list(phase) for phase in phases] == expected + [[name] for name in waiting]
    for phase in phases:
        for name, indices in phase.items():
            workflow = next(w for w in layer if w.name == name)
            assert list(indices) == sorted(set(indices))
            assert indices and set(indices) <= set(range(cores))
            assert len(indices) <= (workflow.profile.vus if workflow.is_test else 1)
