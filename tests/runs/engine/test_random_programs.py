"""Random programs against a target that misbehaves: the counts must balance in every one.

A seed makes a file of one to three workflows: any load model, step graphs with weights,
faults of the target, exceptions of the author, short grace times, every connection policy.
"""

from __future__ import annotations

import random

import pytest

from tests.runs.lab.run import Lab, check_counts

FAULTS = (
    "",
    "delay=0ms..50ms",
    "errors=0.3",
    "resets=0.2",
    "hang=1",
    "close=1",
    "redirects=2",
    "chunked=3&size=3000",
    "cut=1&size=10",
    "status=404",
)
BODIES = (
    "pass",
    "if self.vu.random.random() < 0.2: raise RuntimeError('no')",
    "await self.client.http.get(url)",
    "await asyncio.sleep(self.vu.random.random() * 0.05)",
    "await self.pause('1ms..20ms')",
    "if self.vu.random.random() < 0.1: sys.exit(1)",
    "if self.vu.random.random() < 0.1: asyncio.current_task().cancel()",
)


def profile(dice: random.Random) -> str:
    length, other = f"{dice.randint(100, 400)}ms", f"{dice.randint(50, 300)}ms"
    return dice.choice(
        [
            f"vus = {dice.randint(1, 20)}; duration = '{length}'",
            f"vus = {dice.randint(1, 10)}; iterations = {dice.randint(1, 200)}; duration = '1s'",
            f"rate = '{dice.randint(1, 300)}/s'; duration = '{length}'; max_vus = 20",
            f"stages = ['{length}:{dice.randint(1, 20)}', '{other}:{dice.randint(0, 9)}']",
            f"stages = ['{length}:{dice.randint(1, 200)}/s', '{other}:{dice.randint(0, 99)}/s']",
        ]
    )


def steps(dice: random.Random) -> list[str]:
    lines: list[str] = []
    for number in range(dice.randint(1, 5)):
        earlier = [f"'step_{n}'" for n in range(number)]
        arguments = dice.sample(earlier, min(number, dice.choice([0, 1, 1, 2])))
        if dice.random() < 0.25:
            arguments.append(f"weight={dice.randint(1, 5)}")
        url = f"/step_{number}?{dice.choice(FAULTS)}"
        lines += [
            f"    @step({', '.join(arguments)})",
            f"    async def step_{number}(self, url: URL = '{url}') -> HTTPResponse:",
            f"        {dice.choice(BODIES)}",
            "        return await self.client.http.get(url)",
        ]
    return lines


def program(seed: int) -> str:
    dice = random.Random(seed)
    lines: list[str] = []
    for number in range(dice.randint(1, 3)):
        lines += [
            f"class Flow{number}(Workflow):",
            f"    {profile(dice)}",
            f"    grace = '{dice.choice([0, 50, 300])}ms'",
            f"    timeout = '{dice.choice(['60s', '150ms'])}'",
            f"    connections = '{dice.choice(['vu', 'iteration', 'request', 'shared'])}'",
            "    @action()",
            "    async def begin(self, url: URL = '/begin') -> None:",
            "        await self.client.http.get(url)",
            f"        assert self.vu.random.random() >= {dice.choice([0.0, 0.3])}",
            "    @action(at='end')",
            "    async def end(self, url: URL = '/end') -> None:",
            "        await self.client.http.get(url)",
            *steps(dice),
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(6))
def test_the_books_balance(lab: Lab, seed: int) -> None:
    stopped_early = {"timeout": 0.2} if seed % 3 == 2 else {}
    result = lab.run(program(seed), workers=1 + seed % 2, seed=seed, **stopped_early)
    check_counts(result, lab.target.counts())
    assert [process.died for process in result.outcome.processes if process.died] == []
