"""Answers of Redis that are late, by a proxy: two minutes of it is `make accept-coord
ARGS="contention"`."""

from __future__ import annotations

import pytest

from tests.services.coordination.acceptance.slow_store import INTERVAL_S, slow_down
from tests.services.coordination.lab.places import Place


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["redis"], indirect=True)
async def test_a_coordinator_with_late_answers_tells_of_it_and_goes_on_leading(
    place: Place,
) -> None:
    found = await slow_down(place, 10.0 * INTERVAL_S)
    found.check()
    assert len(found.told) == 1, "once in half a minute"
