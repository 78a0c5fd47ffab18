"""The election at the size of `make test`: members that start together, a coordinator that is
killed, and one that is stopped between a decision and its write. `make accept-coord` runs the
same at full size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.coordination.acceptance.clean_start import StartLab
from tests.services.coordination.acceptance.crash_failover import CrashLab
from tests.services.coordination.acceptance.one_winner import play_rounds
from tests.services.coordination.acceptance.paused_leader import PausedLab
from tests.services.coordination.lab.places import Place


@pytest.mark.asyncio
async def test_of_many_that_start_together_one_leads_in_each_round(place: Place) -> None:
    """How soon they agree is measured at full size, on a machine that does nothing else."""
    members = 8 if place.kind == "s3" else 50
    found = await play_rounds(place, members, 2, patience_s=60.0)
    found.check(within_s=60.0)
    assert len(found.epochs) == 2


def folder_in(path: Path) -> Path:
    made = path / "journals"
    made.mkdir()
    return made


@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
def test_a_killed_coordinator_is_followed_by_one_with_the_next_epoch(
    place: Place, tmp_path: Path
) -> None:
    scale = 4.0 if place.kind == "s3" else 1.5
    lab = CrashLab(place.url, place.prefix, folder_in(tmp_path), scale)
    try:
        lab.begin()
        lab.kill_the_leader()
    finally:
        lab.close()
    lab.check()


@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
def test_a_group_starts_in_phases_and_a_coordinator_that_ends_hands_over(
    place: Place, tmp_path: Path
) -> None:
    scale = 3.0 if place.kind == "s3" else 1.5
    lab = StartLab(place.url, place.prefix, folder_in(tmp_path), scale)
    if place.kind == "s3":
        lab.members = lab.members[:3]
    try:
        lab.begin_fresh()
        lab.stop_the_leader()
    finally:
        lab.close()
    lab.check()


@pytest.mark.asyncio
@pytest.mark.parametrize("holds", ["aware", "unaware"])
@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
async def test_what_was_decided_before_a_pause_is_refused_after_it(
    place: Place, tmp_path: Path, holds: str
) -> None:
    scale = 3.0 if place.kind == "s3" else 1.0
    lab = PausedLab(place.url, place.prefix, folder_in(tmp_path), scale, holds)
    try:
        lab.begin()
        lab.check_pause(lab.pause_the_leader())
    finally:
        lab.close()
    assert await lab.check_effects() > 1
    lab.check()
