"""An interruption in every state of a run ends it soon, with exit code 105. That Ctrl-C
interrupts, and that the summary is still written, is in `tests/runs/command/test_signals.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.runs.lab.run import Lab

NOTE = """
def note(name):
    open(os.path.join(os.path.dirname(__file__), name), "a").write(".")
"""

STATES = {
    "preparing a resource": """
async def connect():
    note("reached")
    await asyncio.sleep(60)

class Stuck(Workflow):
    grace = "100ms"
    thing = Resource(connect)

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
""",
    "start actions": """
class Stuck(Workflow):
    vus = 3
    grace = "100ms"

    @action()
    async def sign_in(self, url: URL = "/login?hang=1") -> None:
        note("reached")
        await self.client.http.post(url)

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
""",
    "connecting": """
class Stuck(Workflow):
    vus = 2
    grace = "100ms"

    @step()
    async def one(self, url: URL = os.environ["DEAF"]) -> HTTPResponse:
        note("reached")
        return await self.client.http.get(url)
""",
    "thinking": """
class Stuck(Workflow):
    vus = 2
    think = "60s"

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        response = await self.client.http.get(url)
        note("reached")
        return response
""",
    "pausing": """
class Stuck(Workflow):
    vus = 2
    grace = "100ms"

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        note("reached")
        await self.pause("60s")
        return await self.client.http.get(url)
""",
    "steps side by side": """
class Stuck(Workflow):
    vus = 2
    grace = "100ms"

    @step()
    async def one(self, url: URL = "/?hang=1") -> HTTPResponse:
        note("reached")
        return await self.client.http.get(url)

    @step()
    async def two(self, url: URL = "/two") -> HTTPResponse:
        return await self.client.http.get(url)
""",
    "waiting for a planned start": """
class Stuck(Workflow):
    rate = "1/m"
    duration = "5m"

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        note("reached")
        return await self.client.http.get(url)
""",
    "a step that will not be cancelled": """
class Stuck(Workflow):
    grace = "100ms"

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        note("reached")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return await self.client.http.get(url)
""",
}
AFTER = """
@depends("Stuck", when="always")
class Teardown(Workflow):
    @step()
    async def clean(self, url: URL = "/clean") -> None:
        await self.client.http.delete(url)
"""


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address that takes no more connections: attempts neither succeed nor fail."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}/"
        for filler in fillers:
            filler.close()


def interrupted(lab: Lab, text: str, *, times: int, deaf: str = "") -> dict[str, str]:
    """Interrupts a run where the file notes it; returns the statuses of its workflows."""
    result = lab.interrupt(
        NOTE + text, when=(lab.folder / "reached").exists, times=times, DEAF=deaf
    )
    assert result.exit_code == 105
    return {each.name: each.status for each in result.outcome.workflows}


@pytest.mark.parametrize("state", STATES)
def test_one_interruption_ends_a_run_wherever_it_is(lab: Lab, deaf: str, state: str) -> None:
    statuses = interrupted(lab, STATES[state] + AFTER, times=1, deaf=deaf)
    assert statuses == {"Stuck": "interrupted", "Teardown": "completed"}
    assert lab.target.counts()["paths"]["/clean"] == 1


@pytest.mark.parametrize("state", [state for state in STATES if "100ms" in STATES[state]])
def test_a_second_interruption_does_not_wait_for_the_grace_time(
    lab: Lab, deaf: str, state: str
) -> None:
    patient = STATES[state].replace('grace = "100ms"', 'grace = "60s"')
    statuses = interrupted(lab, patient + AFTER, times=2, deaf=deaf)
    assert statuses == {"Stuck": "interrupted", "Teardown": "skipped"}
    assert "/clean" not in lab.target.counts()["paths"]


def test_end_actions_run_after_ctrl_c_and_are_cut_by_a_second_one(lab: Lab) -> None:
    text = """
class Members(Workflow):
    vus = 4
    grace = "100ms"

    @step()
    async def one(self, url: URL = "/one?delay=5ms") -> HTTPResponse:
        note("reached")
        return await self.client.http.get(url)

    @action(at="end")
    async def sign_out(self, url: URL = "/logout?delay=400ms") -> None:
        await self.client.http.post(url)
        note("signed_out")
"""
    interrupted(lab, text, times=1)
    assert len((lab.folder / "signed_out").read_text()) == 4, "longer than the grace time"
    for name in ("reached", "signed_out"):
        (lab.folder / name).unlink()
    interrupted(lab, text.replace("400ms", "60s"), times=2)
    assert not (lab.folder / "signed_out").exists()
