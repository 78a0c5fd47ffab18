"""`squall agent --web`: the page of the agents of a store, served beside one of them."""

from __future__ import annotations

from pathlib import Path

from tests.lab.node_page import NodePage, is_gone, page_processes
from tests.lab.target import TargetHandle
from tests.runs.lab.command import wait_until
from tests.store_mode.lab.agents import RedisPlace, StoreLab

FLOW = """
class Load(Workflow):
    vus = 2
    iterations = 20

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


def test_the_page_of_an_agent_shows_the_jobs_of_the_store_and_ends_with_it_however_it_ends(
    tmp_path: Path, counting: TargetHandle
) -> None:
    made = StoreLab(tmp_path, counting, RedisPlace(tmp_path), agents=0)
    made.add_agent("a1", "--web", "0")
    with made as lab:
        page = NodePage(tmp_path / "a1" / "web" / "address")
        ended = lab.run(lab.write(FLOW), "-q").end()
        assert ended.document["status"] == "completed", ended.err
        wait_until(lambda: [state for _, state in page.jobs()] == ["completed"])
        node = lab.nodes["a1"]
        [process] = page_processes(node.pid)
        words = Path(f"/proc/{process}/cmdline").read_text()
        assert "redis" not in words, "the URL of a store may have a password"
        lab.kill("a1")
        wait_until(lambda: is_gone(process))
        assert page.token not in node.said()
