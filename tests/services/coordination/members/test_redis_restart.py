"""Member processes on a Redis server of their own, which is restarted with its data and
without."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.coordination.lab.processes import Lab
from tests.services.coordination.lab.redis_servers import Server

MEMBERS = ["a", "b", "c"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "redis")
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("lose_data", [False, True])
def test_a_restarted_server_is_lived_through(
    server: Server, tmp_path: Path, lose_data: bool
) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    lab = Lab(server.url, "test", folder, MEMBERS)
    try:
        for member in MEMBERS:
            lab.start(member)
        lab.until_acts(0.0, within_s=30.0)
        lab.until_acked(0.0)
        killed = lab.leader()
        lab.kill(killed)
        lab.until_acts(time.monotonic() + 0.5, within_s=lab.failover_s)
        epoch = lab.lines("acts")[-1]["epoch"]
        server.stop(lose_data=lose_data)
        time.sleep(0.5)
        server.start()
        back = time.monotonic()
        lab.until(
            lambda: any(
                line["at"] > back and (line["epoch"] > epoch or not lose_data)
                for line in lab.lines("acts")
            ),
            2 * lab.failover_s + lab.timing.lease_ttl,
            "somebody acts again",
        )
        lab.until_acked(back)
        if not lose_data:
            lab.until(lambda: lab.lines("dead"), lab.death_s, "the death of the killed one is told")
        assert {line["dead"] for line in lab.lines("dead")} <= {killed}
    finally:
        lab.close()
    lab.check()
