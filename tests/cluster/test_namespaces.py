"""Three regions with addresses of their own; one of them is unplugged for a minute while a job
runs over all three, and the sums stay the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.lab.namespaces import NotPermitted, regions
from tests.cluster.lab.region_case import REGIONS
from tests.lab.programs import ROOT, program

SECONDS = 90
UNPLUGGED_S = 60.0
FAR = {"rtt_ms": 80.0, "loss_percent": 1.0}


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("far", [{}, FAR], ids=["near", "80 ms and 1 % loss"])
def test_a_region_that_is_unplugged_for_a_minute_changes_no_sum(
    tmp_path: Path, far: dict[str, float]
) -> None:
    try:
        with regions(REGIONS, **far) as made:
            words = program(
                "tests.cluster.lab.region_case",
                made.prefix, *map(str, made.far), str(SECONDS), str(UNPLUGGED_S), str(tmp_path),
            )  # fmt: skip
            ended = subprocess.run(
                ["ip", "netns", "exec", made.hub, *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
    except NotPermitted as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4000:]}"
