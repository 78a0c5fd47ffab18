"""A worker that is far away from its manager, with the default timers: its share starts on time, or
the result says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import check_code, losses
from tests.lab.target import TargetHandle

ONE_WAY_S = 0.3
RATE_PER_S = 40
SECONDS = 8
OPEN = f"""
class Load(Workflow):
    rate = "{RATE_PER_S}/s"
    duration = "{SECONDS}s"

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""
CLOSED = f"""
class Load(Workflow):
    vus = 4
    duration = "{SECONDS}s"

    @step()
    async def get(self, url: URL = "/?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


@pytest.fixture(scope="module")
def far(
    tmp_path_factory: pytest.TempPathFactory, cluster_target: TargetHandle
) -> Iterator[Cluster]:
    """`w1` is 600 ms away from its manager and back; `w2` is near."""
    folder: Path = tmp_path_factory.mktemp("far")
    with Cluster(folder, cluster_target, workers=2, proxied=True, timers="lan") as made:
        assert made.proxy is not None
        made.proxy.delay(ONE_WAY_S)
        # It also registers over the long line.
        assert made.stop("w1") == 0
        made.start("w1")
        made.wait_ready()
        yield made


@pytest.mark.parametrize("text", [OPEN, CLOSED], ids=["open", "closed"])
def test_a_share_far_away_starts_and_the_result_is_true(far: Cluster, text: str) -> None:
    far.target.reset()
    ended = far.run(far.write(text)).end()
    check_code(ended)
    document, counts = ended.document, far.target.counts()
    (workflow,) = document["workflows"]
    assert document["status"] == "completed" and losses(document) == []
    assert workflow["requests"]["sent"] == counts["total"]
    # Each worker made its part, and no attempt was lost on the way.
    assert {name.rpartition("/")[2] for name in counts["attempts"]} == {"0#1", "1#1"}
    starts = workflow["starts"]
    if text is OPEN:
        assert starts["planned"] == RATE_PER_S * SECONDS, "the plan is never smaller"
        assert starts["made"] + starts["dropped"] == starts["planned"]
    else:
        late = {loss["worker"]: loss["below_target_s"] for loss in document["losses"]}
        times = [each["last_s"] - each["first_s"] for each in counts["attempt_times"].values()]
        missing_s = max(late.values(), default=0.5)
        assert min(times) > SECONDS - missing_s - 1.0
