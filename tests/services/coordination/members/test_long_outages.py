"""A store that does not answer, for a moment and for long. `make accept-coord ARGS="absence"`
runs three minutes of it on the default profile.
"""

from __future__ import annotations

import msgspec
import pytest

from squall.coordination.stores.breaker import BreakerSettings
from squall.coordination.stores.guarded_store import RetrySettings
from tests.lab.machine import factor
from tests.services.coordination.acceptance.long_outage import Outage, Size
from tests.services.coordination.lab.places import Place
from tests.services.coordination.programs.member import scaled


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["redis", "s3"], indirect=True)
async def test_a_store_that_is_away_opens_the_circuit_and_kills_no_member(place: Place) -> None:
    # Long enough that a process that stands still for a moment keeps its lease and its life.
    scale = max(2.0 if place.kind == "s3" else 1.0, factor())
    timing = msgspec.structs.replace(
        scaled(scale), lease_ttl=4.0 * scale, heartbeat_ttl=4.4 * scale, dead_after=5.9 * scale
    )
    size = Size(
        timing,
        away_s=timing.dead_after + 2.0,
        retry=RetrySettings(first_delay_s=0.04),
        breaker=BreakerSettings(open_s=0.8),
    )
    async with Outage(place, size) as outage:
        await outage.short()
        calls = await outage.long()
        outage.check(calls)
        assert calls.probes >= 1
