from __future__ import annotations

import pytest

from squall.cluster.group.views import quorum_region


@pytest.mark.parametrize(
    ("regions", "members", "held_by"),
    [
        (["eu", "us", "ap"], 3, ""),
        (["eu", "eu", "us"], 3, "eu"),
        (["eu", "eu"], 3, "eu"),
        (["eu", "eu", "us", "us", "ap"], 5, ""),
        (["eu", "eu", "eu", "us", "ap"], 5, "eu"),
        (["", "", ""], 3, ""),
        (["eu"], 1, ""),
        ([], 3, ""),
    ],
)
def test_a_region_with_a_quorum_is_found(regions: list[str], members: int, held_by: str) -> None:
    assert quorum_region(regions, members) == held_by
