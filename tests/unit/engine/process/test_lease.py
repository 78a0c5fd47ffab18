"""The execution lease: two clocks, one limit, and an end that is for good."""

from __future__ import annotations

from math import inf

import pytest

from squall.engine.process import lease
from squall.engine.process.lease import GAP_S, SLOTS, LeaseGuard, LeaseMemory

SLOT = 7


class Clocks:
    def __init__(self) -> None:
        self.boot = 9000.0

    def boot_time(self) -> float:
        return self.boot


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(lease, "boot_time", clocks.boot_time)
    return clocks


def guarded(until: float, boot_until: float) -> tuple[LeaseMemory, LeaseGuard, list[float]]:
    memory = LeaseMemory()
    memory.write(SLOT, until, boot_until)
    ends: list[float] = []
    guard = LeaseGuard(memory, SLOT)
    guard.on_end = ends.append
    return memory, guard, ends


def test_parent_and_child_see_the_same_memory() -> None:
    parent = LeaseMemory()
    child = LeaseMemory(parent.descriptor)
    for slot in range(SLOTS):
        parent.write(slot, 12.5 + slot, 99.0)
    assert [child.deadlines(slot) for slot in range(SLOTS)] == [
        (12.5 + slot, 99.0) for slot in range(SLOTS)
    ]
    assert (child.beat, child.held_by) == (0.0, "")
    parent.close()
    parent.close()


def test_the_limit_is_never_beyond_the_deadline_nor_a_gap_from_the_last_look(
    clocks: Clocks,
) -> None:
    _, guard, ends = guarded(110.0, 9010.0)
    assert guard.limit[0] == -inf, "a request may leave before the first check"
    assert guard.allows(100.0)
    assert guard.limit[0] == 100.0 + GAP_S
    assert guard.allows(109.9)
    assert guard.limit[0] == 110.0
    assert not ends


def test_a_lease_that_is_renewed_goes_on(clocks: Clocks) -> None:
    memory, guard, ends = guarded(110.0, 9010.0)
    assert guard.allows(109.0)
    memory.write(SLOT, 120.0, 9020.0)
    assert guard.allows(112.0) and not ends


def test_the_end_is_told_once_and_for_good(clocks: Clocks) -> None:
    memory, guard, ends = guarded(110.0, 9010.0)
    assert not guard.allows(110.0)
    memory.write(SLOT, 200.0, 9900.0)
    assert not guard.allows(111.0) and guard.limit[0] == -inf
    assert ends == [110.0]


def test_time_that_the_machine_slept_counts(clocks: Clocks) -> None:
    """The monotonic clock stood still; only the other one knows."""
    _, guard, ends = guarded(110.0, 9010.0)
    assert guard.allows(100.0)
    clocks.boot = 9500.0
    assert not guard.allows(100.05)
    assert ends == [100.0], "it was last seen to hold then"


def test_a_lease_ended_at_its_deadline_however_late_that_is_noticed(clocks: Clocks) -> None:
    _, guard, ends = guarded(110.0, 9010.0)
    assert guard.allows(105.0)
    clocks.boot = 9075.0
    assert not guard.allows(175.0)
    assert ends == [110.0]


def test_no_request_leaves_a_gap_after_the_counters_without_new_ones(clocks: Clocks) -> None:
    _, guard, _ = guarded(110.0, 9010.0)
    written: list[float] = []
    now = 100.0
    guard.on_gap = lambda: written.append(now)
    guard.allows(now)
    while now < 104.0:
        now += 0.01
        # As a client does it for each request, in a turn of the loop that takes seconds.
        assert now <= guard.limit[0] or guard.allows(now)
        assert now - written[-1] <= GAP_S


def test_a_share_that_is_over_sends_nothing_more(clocks: Clocks) -> None:
    _, guard, ends = guarded(110.0, 9010.0)
    assert guard.allows(100.0)
    guard.close()
    assert guard.limit[0] == -inf and not guard.allows(100.1) and not ends


def test_a_lease_that_was_never_granted_does_not_end(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, guard, ends = guarded(0.0, 0.0)
    guard.check()
    assert not ends
    memory.write(SLOT, 50.0, 9050.0)
    monkeypatch.setattr(lease, "perf_counter", lambda: 51.0)
    guard.check()
    assert ends == [50.0]


def test_an_endless_lease_never_ends(clocks: Clocks) -> None:
    _, guard, ends = guarded(inf, inf)
    assert guard.allows(1e9) and not ends


def test_who_holds_the_loop_is_known_until_it_beats_again() -> None:
    parent = LeaseMemory()
    child = LeaseMemory(parent.descriptor)
    assert (parent.beat, parent.held_by) == (0.0, "")
    child.beats(12.25)
    assert (parent.beat, parent.held_by) == (12.25, "")
    assert parent.held_since == inf
    child.holds(12.25, 12.5, "Shop.home holds its core process: time.sleep at shop.py:10")
    assert parent.held_since == 12.5
    assert parent.held_by == "Shop.home holds its core process: time.sleep at shop.py:10"
    child.holds(12.25, 12.5, "ü" * 1000)
    assert parent.held_by.startswith("üüü") and len(parent.held_by) < 500
    child.beats(13.0)
    assert (parent.held_by, parent.held_since) == ("", inf)
    assert parent.deadlines(0) == parent.deadlines(SLOTS - 1) == (0.0, 0.0)
    parent.close()
