"""`squall explain --store` states the number of requests that a store counts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from squall.store_mode.request_cost import RATES, store_cost
from tests.lab.target import TargetHandle
from tests.store_mode.measure_cost import S3Meter, counted, metered, requests_of

AGENTS = 2
SETTLE_S = 4.0
COUNT_S = 13.0
KINDS = ("redis", "s3")
LOOK = "GET loadtests"


class Counted(NamedTuple):
    requests: float
    """In a minute."""
    looks: int
    """For schedules, in all; of S3 only."""
    seconds: float


@pytest.fixture(scope="module")
def idle(
    tmp_path_factory: pytest.TempPathFactory, store_target: TargetHandle
) -> dict[str, Counted]:
    """What idle agents ask for, by kind of store; both are counted at the same time."""

    def one(kind: str) -> Counted:
        folder = tmp_path_factory.mktemp(f"cost-{kind}")
        with metered(kind, folder, store_target, AGENTS) as (_, meter):
            time.sleep(SETTLE_S)
            began = time.monotonic()
            meter.read()
            before = meter.what_for[LOOK] if isinstance(meter, S3Meter) else 0
            counts, _ = counted(meter, COUNT_S)
            seconds = time.monotonic() - began
            looks = meter.what_for[LOOK] - before if isinstance(meter, S3Meter) else 0
            return Counted(requests_of(counts) / seconds * 60.0, looks, seconds)

    with ThreadPoolExecutor(len(KINDS)) as lanes:
        return dict(zip(KINDS, lanes.map(one, KINDS), strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_requests_are_those_that_the_store_counts(
    idle: dict[str, Counted], kind: str
) -> None:
    """A machine that is busy asks for less, and not for more."""
    stated = store_cost(f"{kind}://h/p", RATES[kind], AGENTS, 60.0).idle.requests
    assert 0.4 * stated <= idle[kind].requests <= 1.2 * stated


@pytest.mark.timeout(300)
def test_the_look_for_schedules_comes_as_often_as_stated(idle: dict[str, Counted]) -> None:
    stated = store_cost("s3://h/p", RATES["s3"], AGENTS, 60.0).schedules.requests / 60.0
    assert 1 <= idle["s3"].looks <= stated * idle["s3"].seconds + 1.0
