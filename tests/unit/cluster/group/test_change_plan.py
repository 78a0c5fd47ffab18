"""Which epochs a wish for other members needs, and which wishes are refused."""

from __future__ import annotations

from itertools import combinations

import pytest

from squall.cluster.group.change_plan import (
    ChangeRefused,
    MemberStep,
    NoSuchMember,
    after,
    steps_of,
)
from squall.cluster.ledger.replica.types import Config, Member, StorageId, is_single_step
from squall.runtime.interfaces import NodeId


def members(*names: str) -> list[Member]:
    return [Member(NodeId(name), StorageId(f"disk of {name}")) for name in sorted(names)]


def joining(*names: str) -> dict[str, Member]:
    return {name: Member(NodeId(name), StorageId(f"new disk of {name}")) for name in names}


def disks(*names: str) -> dict[str, str]:
    """The disks of nodes that wait to join."""
    return {name: f"new disk of {name}" for name in names}


def test_one_takes_the_place_of_another_in_one_epoch() -> None:
    now = members("m1", "m2", "m3")
    assert steps_of(now, ["m3"], ["m4"], disks("m4")) == [MemberStep(("m3",), ("m4",))]


def test_a_wish_that_is_fulfilled_needs_nothing() -> None:
    now = members("m1", "m2", "m4")
    here = {str(member.node): str(member.storage) for member in now}
    assert steps_of(now, ["m3"], ["m4"], here) == []
    assert steps_of(now, [], ["m4", "m1"], here) == []
    assert steps_of(now, ["m7", "m8"], [], here) == []


def test_a_wiped_member_is_replaced_by_itself_and_a_sound_one_is_not() -> None:
    now = members("m1", "m2", "m3")
    assert steps_of(now, ["m3"], ["m3"], disks("m3")) == [MemberStep(("m3",), ("m3",))]
    assert steps_of(now, ["m3"], ["m3"], {"m3": "disk of m3"}) == []
    with pytest.raises(ChangeRefused, match="another disk"):
        steps_of(now, [], ["m3"], disks("m3"))


@pytest.mark.parametrize(
    ("now", "gone", "added", "text"),
    [
        (["m1", "m2", "m3"], ["m3"], ["m2"], "m2 is a member already"),
        (["m1", "m2", "m3"], ["m1", "m2"], ["m4", "m5"], "one at a time"),
        (["m1", "m2", "m3"], [], ["m4"], "4 managers"),
        (["m1", "m2", "m3"], ["m1"], [], "2 managers"),
        (["m1"], [], ["m2"], "2 managers"),
        (["m1"], ["m1"], [], "0 managers"),
        (["m1", "m2", "m3", "m4", "m5"], [], ["m6", "m7"], "7 managers"),
    ],
)
def test_what_cannot_be_is_refused(
    now: list[str], gone: list[str], added: list[str], text: str
) -> None:
    with pytest.raises(ChangeRefused, match=text):
        steps_of(members(*now), gone, added, disks(*(set(added) - set(now))))


def test_an_unknown_name_is_told_as_such() -> None:
    with pytest.raises(NoSuchMember, match="no manager m9"):
        steps_of(members("m1", "m2", "m3"), ["m9"], ["m8"], disks("m8"))
    with pytest.raises(NoSuchMember, match="no manager m9"):
        steps_of(members("m1"), ["m9"], ["m9"], disks("m9"))


def test_from_one_to_three_is_one_epoch_and_to_five_are_two() -> None:
    assert steps_of(members("m1"), [], ["m3", "m2"], disks("m2", "m3")) == [
        MemberStep(added=("m2", "m3"))
    ]
    three = members("m1", "m2", "m3")
    assert steps_of(three, [], ["m5", "m4"], disks("m4", "m5")) == [
        MemberStep(added=("m4",)),
        MemberStep(added=("m5",)),
    ]
    assert steps_of(three, ["m3", "m1"], [], {}) == [
        MemberStep(gone=("m1",)),
        MemberStep(gone=("m3",)),
    ]


def test_a_change_that_was_cut_short_in_the_middle_goes_on() -> None:
    four = members("m1", "m2", "m3", "m4")
    assert steps_of(four, [], ["m4", "m5"], disks("m5")) == [MemberStep(added=("m5",))]
    assert steps_of(four, ["m4", "m5"], [], {}) == [MemberStep(gone=("m4",))]


def test_every_step_is_one_that_the_log_allows() -> None:
    names = [f"m{number}" for number in range(1, 8)]
    for size in (1, 3, 5):
        now = members(*names[:size])
        wishes = [(list[str](), list(added)) for added in combinations(names[size:], 2)]
        wishes += [(list(gone), list[str]()) for gone in combinations(names[:size], 2)]
        wishes += [([old], [new]) for old in names[:size] for new in names[size:]]
        for gone, added in wishes:
            try:
                steps = steps_of(now, gone, added, disks(*added))
            except ChangeRefused:
                continue
            config = Config(3, tuple(now))
            for step in steps:
                follows = after(config.members, step, joining(*step.added))
                former, config = config, Config(config.epoch + 1, tuple(follows))
                assert is_single_step(former, config), (gone, added, step)
            left = (set(map(str, Config(0, tuple(now)).nodes)) - set(gone)) | set(added)
            assert set(config.nodes) == left
