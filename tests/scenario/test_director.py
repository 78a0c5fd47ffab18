"""Plays the text files in `director/`: what happens to a datacenter, and what follows.

workers w1=2 w2=1                          models of workers, with their cores
job j Load vus=4 s=20 ; After < Load s=2   a job named j: workflows, what they wait for
run 3                                      time passes, in seconds
kill w1 | restart w1 | cut w1 | join w1 | manager | cancel j | now j | drain w1
until j.Load running                       time passes until a workflow or job is so
expect j running, j.Load running lost=1 attempts=3, slots 2
events j                                   all that its log tells, as the lines below say
| text of an event, a prefix is enough
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from director_bench import Bench, workflow
from squall.nodes.datacenter.commands import DrainWorker
from squall.nodes.identity import JobId
from squall.stats.manifest import WorkflowManifest

FILES = sorted((Path(__file__).parent / "director").glob("*.txt"))


class Play:
    def __init__(self) -> None:
        self.bench = Bench()
        self.jobs: dict[str, JobId] = {}
        self.told: list[str] = []
        self.events: dict[str, Callable[[str], None]] = {
            "workers": self.workers,
            "job": self.job,
            "run": lambda rest: self.bench.run(float(rest)),
            "kill": lambda rest: self.bench.workers[rest].kill(),
            "restart": lambda rest: self.bench.workers[rest].restart(),
            "cut": lambda rest: setattr(self.bench.workers[rest], "connected", False),
            "join": lambda rest: setattr(self.bench.workers[rest], "connected", True),
            "manager": lambda rest: self.bench.restart_manager(),
            "cancel": lambda rest: self.bench.cancel(self.jobs[rest]),
            "now": lambda rest: self.bench.cancel(self.jobs[rest], now=True),
            "drain": self.drain,
            "until": self.until,
            "expect": self.expect,
            "events": self.tell,
            "|": self.event,
        }

    def workers(self, rest: str) -> None:
        cores = dict(word.split("=") for word in rest.split())
        self.bench = Bench(**{node: int(count) for node, count in cores.items()})
        self.bench.run(0.5)

    def job(self, rest: str) -> None:
        name, _, plans = rest.partition(" ")
        self.jobs[name] = self.bench.submit(*(self.plan(plan) for plan in plans.split(";")))

    def plan(self, text: str) -> WorkflowManifest:
        words = text.split()
        given = dict(word.split("=") for word in words if "=" in word)
        depends = [word for word in words[1:] if "=" not in word and word not in ("<", "always")]
        return workflow(
            words[0],
            *depends,
            vus=int(given.get("vus", "4")),
            duration_s=float(given.get("s", "10")),
            always="always" in words,
            is_test=given.get("kind") != "setup",
            priority=given.get("priority", "auto"),  # type: ignore[arg-type]
        )

    def drain(self, rest: str) -> None:
        self.bench.apply(DrainWorker(node=rest, draining=True))

    def until(self, rest: str) -> None:
        words = rest.split()
        self.bench.until(lambda: self.shown(words[0]).startswith(words[1]), 200)

    def expect(self, rest: str) -> None:
        for clause in rest.split(","):
            subject, *wanted = clause.split()
            shown = self.shown(subject).split()
            missing = [word for word in wanted if word not in shown]
            assert not missing, f"{subject} is {' '.join(shown)}, not {' '.join(missing)}"

    def shown(self, subject: str) -> str:
        if subject == "slots":
            return str(len(self.bench.machine.tables.slots))
        job, _, name = subject.partition(".")
        if not name:
            return self.bench.job(self.jobs[job]).state
        found = self.bench.wf(self.jobs[job], name)
        state = found.outcome or found.state.value
        counts = f"lost={found.lost} attempts={found.attempts} shares={found.shares}"
        return f"{state} {counts}"

    def tell(self, rest: str) -> None:
        events = self.bench.machine.tables.events.get(self.jobs[rest], ())
        self.told = [event.text for event in events]

    def event(self, rest: str) -> None:
        assert self.told, f"nothing more happened, not: {rest}"
        text = self.told.pop(0)
        assert text.startswith(rest), f"{text!r}, not {rest!r}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_goes_as_the_file_says(file: Path) -> None:
    play = Play()
    played = 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        try:
            play.events[word](rest.strip())
        except AssertionError as error:
            raise AssertionError(f"{file.name}:{number}  {line}: {error}") from None
        played += 1
    assert played, f"{file.name} plays nothing"
    assert not play.told, f"more happened: {play.told}"


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 8
