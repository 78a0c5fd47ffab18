"""A worker that asks and makes progress gets more time: five times, each half of the one before."""

from __future__ import annotations

from squall.cluster.control.extensions import Extensions, ExtensionSettings


def test_grants_halve_and_end_and_each_needs_progress() -> None:
    tracker = Extensions(began=100.0, base_s=30.0)
    answers = [tracker.ask(progress, 110.0) for progress in (30, 60, 60, 70, 80, 90, 95)]
    assert [each.granted_s for each in answers] == [15.0, 7.5, 0.0, 3.75, 1.875, 1.0, 0.0]
    assert [each.denial for each in answers] == [
        "", "", "no progress", "", "", "", "no extension left",
    ]  # fmt: skip
    assert [each.left for each in answers] == [4, 3, 3, 2, 1, 0, 0]
    assert tracker.total_s == 29.125 and tracker.deadline == 159.125


def test_the_warning_comes_once_with_the_last_but_one() -> None:
    tracker = Extensions(began=0.0, base_s=30.0)
    warnings = [tracker.ask(progress, 1.0).is_warning for progress in range(1, 8)]
    assert warnings == [False, False, False, True, False, False, False]


def test_nothing_ends_before_the_deadline_nor_before_the_grace_of_who_is_exhausted() -> None:
    tracker = Extensions(began=0.0, base_s=30.0)
    for progress in range(5):
        assert tracker.ask(progress, 10.0).is_granted
    assert tracker.ends_at == 59.125
    denied = tracker.ask(9, 55.0)
    assert denied.grace_left_s == 10.0 and tracker.ends_at == 65.0
    assert tracker.ask(10, 60.0).grace_left_s == 5.0, "asking again begins no other grace"
    assert tracker.ask(11, 65.0).denial == "too late"


def test_who_comes_after_the_deadline_gets_nothing() -> None:
    tracker = Extensions(began=0.0, base_s=30.0)
    assert tracker.ask(1, 29.9).is_granted
    assert tracker.ask(2, 45.0).denial == "too late"
    assert tracker.ends_at == 45.0


def test_the_first_request_needs_no_earlier_one() -> None:
    assert Extensions(began=0.0, base_s=10.0).ask(0, 5.0).granted_s == 5.0


def test_numbers_are_settings() -> None:
    settings = ExtensionSettings(least_s=4.0, extensions_max=2, warns_at=0)
    tracker = Extensions(began=0.0, base_s=10.0, settings=settings)
    answers = [tracker.ask(progress, 1.0) for progress in range(3)]
    assert [each.granted_s for each in answers] == [5.0, 4.0, 0.0]
    assert [each.is_warning for each in answers] == [False, True, False]
