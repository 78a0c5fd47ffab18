"""Live outputs of a run in store mode hold the totals of the document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.exit_codes import check_code
from tests.lab.outputs import LiveFiles, recording_server
from tests.lab.target import TargetHandle
from tests.store_mode.lab.agents import RedisPlace, StoreLab

STEADY = """
class Load(Workflow):
    vus = 4
    duration = "6s"
    think = "20ms"

    @step()
    async def get(self, url: URL = "/?status=200:3,503:1") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


@pytest.mark.nightly
def test_a_run_over_a_store(
    tmp_path: Path, store_target: TargetHandle, counting: TargetHandle
) -> None:
    place = RedisPlace(tmp_path)
    with (
        recording_server() as server,
        StoreLab(tmp_path, store_target, place, agents=2, cores=1, timers="lan") as lab,
    ):
        files = LiveFiles(lab.folder, server)
        ended = lab.run(lab.write(STEADY), *files.words).end()
        check_code(ended)
        files.check(ended.document)
