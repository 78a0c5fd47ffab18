"""Member processes on S3 whose answers are errors for a while."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET
from tests.services.coordination.lab.processes import Lab

MEMBERS = ["a", "b"]
AWAY_S = 20.0
MANY = 1_000_000


@pytest.mark.nightly
@pytest.mark.parametrize("status", [500, 503])
def test_answers_that_are_errors_for_a_while_are_lived_through(
    s3_endpoint: str, tmp_path: Path, status: int
) -> None:
    proxy = FaultyS3(s3_endpoint)
    folder = tmp_path / "journals"
    folder.mkdir()
    prefix = f"faulty.{tmp_path.name}"
    url = f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}&region=us-east-1"
    lab = Lab(url, prefix, folder, MEMBERS, 3.0)
    try:
        for member in MEMBERS:
            lab.start(member)
        lab.until_acts(0.0, within_s=90.0)
        lab.until_acked(0.0)
        proxy.fail_next(MANY, status)
        time.sleep(lab.timing.lease_ttl + 2.0)
        silent = time.monotonic()
        time.sleep(AWAY_S - lab.timing.lease_ttl - 2.0)
        assert not [line for line in lab.lines("acts") if line["at"] > silent]
        proxy.fail_next(0, status)
        back = time.monotonic()
        lab.until_acts(back, within_s=3 * lab.failover_s)
        lab.until_acked(back)
        assert lab.lines("dead") == []
    finally:
        lab.close()
        proxy.close()
    lab.check()
