"""A proxy cuts only the coordinator from the store; 50 times in a row is `make accept-coord
ARGS="cut"`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.coordination.acceptance.cut_leader import running
from tests.services.coordination.lab.places import Place


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["redis", "s3"], indirect=True)
async def test_a_leader_that_is_cut_off_has_stopped_before_another_can_lead(
    place: Place, tmp_path: Path
) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    slow = place.kind == "s3"
    with running(place.url, place.prefix, folder, 3.0 if slow else 1.0) as lab:
        for silently in (True,) if slow else (True, False):
            lab.cut_the_leader(silently=silently)
        assert lab.check_leading() >= (1 if slow else 2)
        assert await lab.check_effects() > 0
