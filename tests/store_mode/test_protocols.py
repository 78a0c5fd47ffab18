"""Runs of several protocols in store mode count by protocol what the servers count."""

from __future__ import annotations

from pathlib import Path

from tests.lab.exit_codes import check_code
from tests.lab.protocol_servers import CLOSED, OPEN, running_protocol_servers
from tests.lab.target import TargetHandle
from tests.store_mode.lab.agents import RedisPlace, StoreLab


def test_the_counts_of_each_protocol_are_those_of_its_server(
    tmp_path: Path, store_target: TargetHandle, counting: TargetHandle
) -> None:
    place = RedisPlace(tmp_path)
    with StoreLab(tmp_path, store_target, place, agents=1, cores=2, timers="lan") as lab:
        for load in (CLOSED, OPEN):
            store_target.reset()
            with running_protocol_servers() as servers:
                ended = lab.run(lab.write(servers.workflow(load, lab.folder)), "--insecure").end()
                check_code(ended)
                servers.check(ended.document, store_target.counts()["total"])
