"""When a user of a closed model rests after a failure, and what the run says about it."""

from __future__ import annotations

import pytest

from tests.runs.lab.run import Lab, check_identities

BEFORE_AN_EXCHANGE = """
        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)

        @then()
        async def broken(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url, path=self.missing)
"""
AFTER_AN_ACTION = """
        @step()
        async def login(self, url: URL = "/") -> None:
            await self.client.http.get(url)

        @then()
        async def broken(self) -> HTTPResponse:
            raise ValueError("no")
"""
BESIDE_AN_ANSWER = """
        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)

        @step()
        async def broken(self) -> None:
            raise ValueError("no")
"""
IN_A_TIMED_CALL = """
        async def query(self) -> None:
            await asyncio.sleep(0.001)
            raise ValueError("duplicate key")

        @step()
        async def broken(self) -> Timed[None]:
            return await self.timed(self.query())
"""
BEFORE_A_LOST_CALL = """
        @step()
        async def broken(self, url: URL = "/") -> HTTPResponse:
            await self.client.http.get(url)
            return await self.client.http.get("http://127.0.0.1:1/")
"""
RETURNED = """
        @step()
        async def broken(self, url: URL = "/") -> HTTPResponse:
            return (await self.client.http.get(url)).status_code
"""


def flow(steps: str, iterations: int = 60) -> str:
    return f"""
    class Flow(Workflow):
        vus = 1
        iterations = {iterations}
{steps}
    """


@pytest.mark.parametrize(
    "steps",
    [
        BEFORE_AN_EXCHANGE,
        AFTER_AN_ACTION,
        BESIDE_AN_ANSWER,
        IN_A_TIMED_CALL,
        BEFORE_A_LOST_CALL,
        RETURNED,
    ],
)
def test_a_failed_iteration_with_an_answer_does_not_rest(lab: Lab, steps: str) -> None:
    result = lab.run(flow(steps))
    check_identities(result)
    stats = result.outcome.stats.workflows["Flow"]
    assert stats.iteration.failed == 60
    assert stats.rested_s == 0.0
    assert "rested" not in result.summary


@pytest.mark.parametrize(
    "steps",
    [
        'async def broken(self) -> HTTPResponse:\n            raise ValueError("no")',
        "async def broken(self) -> Timed[None]:\n            return await self.timed(self.gone())\n"
        '        async def gone(self) -> None:\n            raise ConnectionRefusedError("no")',
        "async def broken(self) -> Timed[None]:\n            return await self.timed(self.gone())\n"
        "        async def gone(self) -> None:\n            try:\n"
        '                raise ConnectionResetError("no")\n'
        "            except OSError:\n"
        '                raise RuntimeError("of a library")',
    ],
)
def test_an_iteration_without_an_answer_rests_and_the_run_says_so(lab: Lab, steps: str) -> None:
    result = lab.run(flow("        @step()\n        " + steps, iterations=6))
    stats = result.outcome.stats.workflows["Flow"]
    # 10, 20, 40 ... ms, of which half is drawn.
    assert stats.rested_s > 0.1
    note = next(note for note in result.document["notes"] if "rested" in note)
    assert note.startswith("Flow: users rested for ")
    assert note in result.summary


def test_a_failed_timed_call_has_its_latency(lab: Lab) -> None:
    text = """
    class Flow(Workflow):
        iterations = 5

        async def query(self) -> None:
            await asyncio.sleep(0.02)
            raise ValueError("duplicate key")

        @step()
        async def insert(self) -> Timed[None]:
            return await self.timed(self.query())

        @step()
        async def fetch(self) -> Timed[None]:
            found = await self.timed(asyncio.sleep(0.02))
            assert found.value == 1
            return found
    """
    result = lab.run(text)
    for name in ("insert", "fetch"):
        step = result.step(name)
        assert step.failed == 5
        assert step.min > 0.015
    assert result.workflow("Flow").requests["sent"] == 0
