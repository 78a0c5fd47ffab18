from __future__ import annotations

import pytest

from squall.engine.load.core_partition import (
    PartitionItem,
    ThreadGrant,
    describe_sharing,
    partition,
    place,
    thread_range,
)
from squall.stats.manifest import Priority, Profile, WorkflowManifest


def workflow(
    name: str, priority: Priority = "auto", *, is_test: bool = True, vus: int = 1000
) -> WorkflowManifest:
    profile = Profile(model="closed" if is_test else "once", vus=vus, max_vus=vus)
    return WorkflowManifest(name=name, priority=priority, is_test=is_test, profile=profile)


def threads(items: list[PartitionItem], pool: int) -> list[list[int]]:
    return [[placed.threads for placed in batch] for batch in partition(items, pool)]


@pytest.mark.parametrize(
    ("priority", "of_24", "of_8", "of_1"),
    [
        ("low", (1, 6), (1, 2), (1, 1)),
        ("normal", (6, 18), (2, 6), (1, 1)),
        ("high", (18, 24), (6, 8), (1, 1)),
        ("exclusive", (24, 24), (8, 8), (1, 1)),
        ("auto", (1, 24), (1, 8), (1, 1)),
    ],
)
def test_a_priority_is_a_range_of_threads(
    priority: Priority, of_24: tuple[int, int], of_8: tuple[int, int], of_1: tuple[int, int]
) -> None:
    assert thread_range(priority, 24) == of_24
    assert thread_range(priority, 8) == of_8
    assert thread_range(priority, 1) == of_1


def test_the_golden_case_of_three_workflows_on_24_threads() -> None:
    items = [
        PartitionItem("LoadTest", "high"),
        PartitionItem("DataLoad", "auto", False),
        PartitionItem("Metrics", "low"),
    ]
    assert partition(items, 24) == [
        [ThreadGrant("DataLoad", "auto", 0)],
        [ThreadGrant("LoadTest", "high", 18), ThreadGrant("Metrics", "low", 6)],
    ]


def test_a_single_auto_workflow_gets_everything() -> None:
    assert threads([PartitionItem("A")], 24) == [[24]]
    assert threads([PartitionItem("A")], 1) == [[1]]


def test_equal_ranks_split_evenly_with_the_extra_to_the_first() -> None:
    assert threads([PartitionItem("A"), PartitionItem("B")], 24) == [[12, 12]]
    assert threads([PartitionItem("A"), PartitionItem("B"), PartitionItem("C")], 8) == [[3, 3, 2]]


def test_spare_threads_go_from_the_lowest_rank_upwards() -> None:
    assert threads([PartitionItem("L", "low"), PartitionItem("N", "normal")], 24) == [[18, 6]]
    assert threads([PartitionItem("A"), PartitionItem("N", "normal")], 24) == [[18, 6]]
    assert threads([PartitionItem("A"), PartitionItem("L", "low")], 24) == [[18, 6]]


def test_exclusive_is_alone_and_first() -> None:
    items = [
        PartitionItem("A"),
        PartitionItem("X", "exclusive"),
        PartitionItem("B"),
        PartitionItem("Y", "exclusive"),
    ]
    assert [[p.name for p in batch] for batch in partition(items, 4)] == [["X"], ["Y"], ["A", "B"]]


def test_who_does_not_fit_by_its_minimum_opens_the_next_batch() -> None:
    items = [PartitionItem("H1", "high"), PartitionItem("H2", "high"), PartitionItem("L", "low")]
    assert [[p.name for p in batch] for batch in partition(items, 24)] == [["H1"], ["H2", "L"]]


def test_threads_that_few_users_cannot_use_go_to_the_others() -> None:
    assert threads([PartitionItem("H", "high", True, 2), PartitionItem("L", "low")], 24) == [[2, 6]]
    assert threads([PartitionItem("A", "auto", True, 2), PartitionItem("B")], 24) == [[2, 22]]
    assert threads([PartitionItem("X", "exclusive", True, 3)], 24) == [[3]]


def test_reserved_cores_are_not_given_to_tests() -> None:
    batches = partition([PartitionItem("A"), PartitionItem("S", "auto", False)], 8, reserved=1)
    assert batches == [[ThreadGrant("S", "auto", 0)], [ThreadGrant("A", "auto", 7)]]
    assert partition([PartitionItem("A")], 1, reserved=1) == [[ThreadGrant("A", "auto", 1)]]


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="pool has 0 threads"):
        partition([], 0)


# Cores


def test_on_one_core_everything_runs_together_on_it() -> None:
    layer = [workflow("Browse"), workflow("Buy", "high"), workflow("Setup", is_test=False)]
    assert place(layer, 1) == [{"Browse": (0,), "Buy": (0,), "Setup": (0,)}]


def test_workflows_that_fit_get_cores_of_their_own() -> None:
    assert place([workflow("A"), workflow("B")], 4) == [{"A": (0, 1), "B": (2, 3)}]
    assert place([workflow("L", "low"), workflow("N", "normal")], 4) == [
        {"L": (3,), "N": (0, 1, 2)}
    ]


def test_workflows_that_do_not_fit_share_cores_at_the_same_time() -> None:
    layer = [workflow("A", "high"), workflow("B", "high"), workflow("C", "low")]
    [phase] = place(layer, 4)
    assert phase == {"A": (0, 1, 2, 3), "B": (0, 1, 2), "C": (3,)}
    assert describe_sharing(phase) == ["A + B share cores 0-2", "A + C share core 3"]


def test_only_exclusive_tests_wait_each_in_a_phase_of_its_own() -> None:
    layer = [
        workflow("X", "exclusive"),
        workflow("A"),
        workflow("Y", "exclusive", vus=1),
        workflow("Setup", "exclusive", is_test=False),
    ]
    assert place(layer, 2) == [{"A": (0,), "Setup": (1,)}, {"X": (0, 1)}, {"Y": (0,)}]


def test_a_workflow_that_is_no_test_has_one_core_that_tests_keep_off() -> None:
    layer = [workflow("A"), workflow("S", is_test=False, vus=10_000)]
    assert place(layer, 4) == [{"A": (0, 1, 2), "S": (3,)}]
    assert place([workflow("S", is_test=False), workflow("T", is_test=False)], 4) == [
        {"S": (0,), "T": (1,)}
    ]


def test_many_set_up_workflows_leave_one_core_to_the_test() -> None:
    setups = [workflow(f"S{i}", is_test=False) for i in range(5)]
    [phase] = place([*setups, workflow("A")], 3)
    assert phase["A"] == (0,)
    assert [phase[f"S{i}"] for i in range(5)] == [(1,), (2,), (1,), (2,), (1,)]


def test_no_more_cores_than_users() -> None:
    assert place([workflow("A", vus=3)], 8) == [{"A": (0, 1, 2)}]
    few = Profile(model="iterations", vus=20, max_vus=20, iterations=2)
    assert place([WorkflowManifest(name="I", profile=few)], 8) == [{"I": (0, 1)}]


def test_ramps_and_open_models_are_not_limited_by_the_users_they_begin_with() -> None:
    ramp = Profile(model="ramp", vus=0, max_vus=100)
    rate = Profile(model="open", vus=1, max_vus=100, rate_per_s=5)
    for profile in (ramp, rate):
        assert place([WorkflowManifest(name="W", profile=profile)], 4) == [{"W": (0, 1, 2, 3)}]


def test_an_empty_layer_has_no_phases() -> None:
    assert place([], 4) == []


def test_sharing_is_described_by_groups_of_cores() -> None:
    assert describe_sharing({"Browse": (0,), "Buy": (0,)}) == ["Browse + Buy share core 0"]
    assert describe_sharing({"A": (0, 1), "B": (2,)}) == []
    assert describe_sharing({"A": (0, 1, 2, 4), "B": (0, 1, 4)}) == ["A + B share cores 0-1, 4"]
