"""The sliding window over sequences, and its bound on senders."""

from __future__ import annotations

from squall.cluster.wire.seal.replay import ReplayGuard, ReplayWindow


def test_a_sequence_is_accepted_once() -> None:
    window = ReplayWindow()
    assert window.accept(0)
    assert not window.accept(0)
    assert window.accept(1)
    assert not window.accept(0)
    assert not window.accept(1)


def test_reordering_inside_the_window_is_accepted() -> None:
    window = ReplayWindow(8)
    assert [window.accept(n) for n in (5, 3, 4, 0, 7, 6)] == [True] * 6
    assert not any(window.accept(n) for n in (5, 3, 4, 0, 7, 6))


def test_what_is_older_than_the_window_is_taken_for_a_replay() -> None:
    window = ReplayWindow(8)
    window.accept(100)
    assert window.accept(93)
    assert not window.accept(92)


def test_a_long_jump_forgets_nothing_that_is_inside_the_window() -> None:
    window = ReplayWindow(8)
    window.accept(0)
    window.accept(1_000_000)
    assert not window.accept(1_000_000)
    assert not window.accept(0)
    assert window.accept(999_999)


def test_senders_have_windows_of_their_own() -> None:
    guard = ReplayGuard()
    assert guard.accept("one", 5)
    assert guard.accept("other", 5)
    assert not guard.accept("one", 5)


def test_the_sender_that_was_silent_longest_is_forgotten_first() -> None:
    guard = ReplayGuard(senders_max=2)
    guard.accept("a", 1)
    guard.accept("b", 1)
    guard.accept("a", 2)
    guard.accept("c", 1)
    assert len(guard) == 2
    assert not guard.accept("a", 2)
    assert not guard.accept("c", 1)
