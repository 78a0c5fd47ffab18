"""Which of two records is newer, and which are refused."""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.membership import records
from squall.cluster.membership.messages import PeerStatus
from tests.unit.cluster.membership.lab.one_member import record

ALIVE, SUSPECT, DEAD, LEFT = PeerStatus


@pytest.mark.parametrize("low", [ALIVE, SUSPECT, DEAD, LEFT])
def test_a_higher_incarnation_replaces_every_state(low: PeerStatus) -> None:
    assert records.is_newer(record("a", ALIVE, 2), record("a", low, 1))
    assert not records.is_newer(record("a", DEAD, 1), record("a", ALIVE, 2))


@pytest.mark.parametrize(
    ("status", "known", "newer"),
    [
        (SUSPECT, ALIVE, True),
        (DEAD, SUSPECT, True),
        (LEFT, ALIVE, True),
        (ALIVE, SUSPECT, False),
        (ALIVE, DEAD, False),
        (SUSPECT, DEAD, False),
        (DEAD, LEFT, False),
        (LEFT, DEAD, False),
        (SUSPECT, SUSPECT, False),
    ],
)
def test_at_equal_incarnation_bad_news_win(
    status: PeerStatus, known: PeerStatus, newer: bool
) -> None:
    assert records.is_newer(record("a", status, 3), record("a", known, 3)) is newer


def test_another_boot_wins_by_a_higher_incarnation_only() -> None:
    new = record("a", ALIVE, 0, boot="2")
    assert not records.is_newer(new, record("a", ALIVE, 0))
    assert records.is_newer(msgspec.structs.replace(new, incarnation=1), record("a", DEAD, 0))
    assert not records.is_newer(record("a", DEAD, 1), msgspec.structs.replace(new, incarnation=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"node": ""},
        {"node": "a" * 129},
        {"boot": "b" * 129},
        {"address": ("h" * 129, 1)},
        {"address": ("h", 0)},
        {"address": ("h", 70_000)},
        {"incarnation": -1},
        {"incarnation": 2**60},
        {"suspectors": ("x",)},
        {"status": SUSPECT},
        {"status": SUSPECT, "suspectors": ("a", "b", "c", "d", "e")},
    ],
)
def test_a_record_that_no_honest_member_makes_is_refused(changes: dict[str, object]) -> None:
    good = record("a")
    assert records.is_acceptable(good)
    assert not records.is_acceptable(msgspec.structs.replace(good, **changes))
