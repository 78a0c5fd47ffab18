"""The execution lease: two clocks, one limit, and an end that is for good."""

from __future__ import annotations

from math import inf

import pytest

from squall.engine.process import lease
from squall.engine.process.lease import GAP_S, LeaseGuard, LeaseMemory


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


def guarded(until: float, boot_until: float) -> tuple[LeaseMemory, LeaseGuard, list[str]]:
    memory = LeaseMemory()
    memory.write(until, boot_until)
    ends: list[str] = []
    return memory, LeaseGuard(memory, lambda: ends.append("ended")), ends


def test_parent_and_child_see_the_same_memory() -> None:
    parent = LeaseMemory()
    child = LeaseMemory(parent.descriptor)
    parent.write(12.5, 99.0)
    assert child.deadlines == (12.5, 99.0)
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
    memory.write(120.0, 9020.0)
    assert guard.allows(112.0) and not ends


def test_the_end_is_told_once_and_for_good(clocks: Clocks) -> None:
    memory, guard, ends = guarded(110.0, 9010.0)
    assert not guard.allows(110.0)
    memory.write(200.0, 9900.0)
    assert not guard.allows(111.0) and guard.limit[0] == -inf
    assert ends == ["ended"]


def test_time_that_the_machine_slept_counts(clocks: Clocks) -> None:
    """The monotonic clock stood still; only the other one knows."""
    _, guard, ends = guarded(110.0, 9010.0)
    assert guard.allows(100.0)
    clocks.boot = 9010.0
    assert not guard.allows(100.05)
    assert ends == ["ended"]


def test_a_lease_that_was_never_granted_does_not_end(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, guard, ends = guarded(0.0, 0.0)
    guard.check()
    assert not ends
    memory.write(50.0, 9050.0)
    monkeypatch.setattr(lease, "perf_counter", lambda: 51.0)
    guard.check()
    assert ends == ["ended"]


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
    assert parent.deadlines == (0.0, 0.0)
    parent.close()
