"""Plays the text files in `director/`: what happens to a datacenter, and what follows.

workers w1=2 w2=1                          models of workers, with their cores
job j Load vus=4 s=20 ; After < Load s=2   a job named j: workflows, what they wait for
job j timeout=20 Load s=60                 the same with a limit on its whole time
run 3                                      time passes, in seconds
kill w1 | restart w1 | cut w1 | join w1 | add w3=2
drain w1 | drain w1 30 | resume w1         it gets no new work; its shares may go on for 30 s
idle w1 | busy w1 | notes w1 TEXT          its users execute nothing, or go on; what it says
finish w1 2                                so many of its shares are done before their time
refuse w1 TEXT                             it takes no share, another worker may
fail Load TEXT                             the code of a workflow raises TEXT
manager                                    the primary restarts
away | back                                the manager is gone; it is there again
silent                                     from here on no push arrives
cancel j | now j | extend j 15
until j.Load running [within=3]            time passes until a workflow or job is so
expect j running position=2, j.Load running lost=1 attempts=3, slots 2, w1 holds=0
reason j TEXT | error j.Load TEXT          why it ended, a prefix is enough
events j                                   the events of its log are the lines below | text of an
event, a prefix is enough
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from squall.cluster.datacenter.commands import DrainWorker, ExtendJob
from squall.cluster.group.job_deadlines import extension_cap_ms
from squall.cluster.manager.director.core_pool import position
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import AttemptStatus
from squall.stats.manifest import WorkflowManifest
from tests.fakes.datacenter import Bench, ModelWorker, workflow

FILES = sorted((Path(__file__).parent / "director").glob("*.txt"))
LONGEST_S = 300.0


class Play:
    def __init__(self) -> None:
        self.bench = Bench()
        self.jobs: dict[str, JobId] = {}
        self.unread_events: list[str] = []
        self.events: dict[str, Callable[[str], None]] = {
            "workers": self.workers,
            "job": self.job,
            "run": lambda rest: self.bench.run(float(rest)),
            "kill": lambda rest: self.worker(rest).kill(),
            "restart": lambda rest: self.worker(rest).restart(),
            "cut": lambda rest: setattr(self.worker(rest), "connected", False),
            "join": lambda rest: setattr(self.worker(rest), "connected", True),
            "drain": self.drain,
            "resume": lambda rest: self.change(DrainWorker(node=rest, draining=False)),
            "add": self.add,
            "idle": lambda rest: setattr(self.worker(rest), "idle", True),
            "busy": lambda rest: setattr(self.worker(rest), "idle", False),
            "notes": self.note,
            "finish": self.finish,
            "refuse": self.refuse,
            "fail": self.fail,
            "manager": lambda rest: self.bench.restart_manager(),
            "away": lambda rest: setattr(self.bench, "manager_up", False),
            "back": self.back,
            "silent": lambda rest: setattr(self.bench, "pushes_arrive", False),
            "cancel": lambda rest: self.bench.cancel(self.jobs[rest]),
            "now": lambda rest: self.bench.cancel(self.jobs[rest], now=True),
            "extend": self.extend,
            "until": self.until,
            "expect": self.expect,
            "reason": self.reason,
            "error": self.error,
            "events": self.read_events,
            "|": self.event,
        }

    def worker(self, name: str) -> ModelWorker:
        return self.bench.workers[name]

    def workers(self, rest: str) -> None:
        cores = dict(word.split("=") for word in rest.split())
        self.bench = Bench(**{node: int(count) for node, count in cores.items()})
        self.bench.run(0.5)

    def job(self, rest: str) -> None:
        name, _, plans = rest.partition(" ")
        timeout_s = None
        if plans.startswith("timeout="):
            limit, _, plans = plans.partition(" ")
            timeout_s = float(limit.removeprefix("timeout="))
        made = [self.plan(plan) for plan in plans.split(";")]
        self.jobs[name] = self.bench.submit(*made, timeout_s=timeout_s)

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

    # What happens.

    def drain(self, rest: str) -> None:
        node, _, seconds = rest.partition(" ")
        within_ms = round(float(seconds) * 1000) if seconds else None
        self.change(DrainWorker(node=node, draining=True, within_ms=within_ms))

    def change(self, command: DrainWorker) -> None:
        self.bench.apply(command)
        self.bench.settle()

    def add(self, rest: str) -> None:
        node, _, cores = rest.partition("=")
        self.bench.add(node, int(cores))

    def note(self, rest: str) -> None:
        node, _, text = rest.partition(" ")
        self.worker(node).note = text

    def finish(self, rest: str) -> None:
        node, _, count = rest.partition(" ")
        self.worker(node).finish(int(count))

    def refuse(self, rest: str) -> None:
        node, _, text = rest.partition(" ")

        def refused(key: AttemptKey) -> AttemptStatus:
            return AttemptStatus(key=key, phase="refused", text=text, exit_code=1, retryable=True)

        self.worker(node).refuse = refused

    def fail(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        self.bench.errors[name] = text

    def back(self, rest: str) -> None:
        self.bench.manager_up = True
        self.bench.restart_manager()

    def extend(self, rest: str) -> None:
        name, _, seconds = rest.partition(" ")
        cap_ms = extension_cap_ms(self.bench.job(self.jobs[name]))
        by_ms = round(float(seconds) * 1000)
        self.bench.apply(ExtendJob(job=self.jobs[name], by_ms=by_ms, cap_ms=cap_ms))
        self.bench.settle()

    # What follows.

    def until(self, rest: str) -> None:
        subject, state, *within = rest.split()
        limit_s = float(within[0].removeprefix("within=")) if within else LONGEST_S
        try:
            self.bench.until(lambda: self.shown(subject).split()[0] == state, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{subject} is {self.shown(subject)}; {error}") from None

    def expect(self, rest: str) -> None:
        for clause in rest.split(","):
            subject, *wanted = clause.split()
            shown = self.shown(subject).split()
            missing = [word for word in wanted if word not in shown]
            assert not missing, f"{subject} is {' '.join(shown)}, not {' '.join(missing)}"

    def shown(self, subject: str) -> str:
        if subject == "slots":
            return str(len(self.bench.machine.tables.slots))
        if subject in self.bench.workers:
            worker = self.worker(subject)
            return f"holds={len(worker.held)}" + (" drained" if worker.drained else "")
        name, _, workflow_name = subject.partition(".")
        job = self.bench.job(self.jobs[name])
        if not workflow_name:
            return f"{job.state} position={position(self.bench.director.state, job)}"
        found = self.bench.wf(job.job, workflow_name)
        state = found.outcome or found.state.value
        counts = f"lost={found.lost} attempts={found.attempts} shares={found.shares}"
        return f"{state} {counts} users={self.users(job.job, workflow_name)}"

    def users(self, job: JobId, name: str) -> int:
        """The users of the shares that workers have at this moment."""
        return sum(
            model.preparation.spec.users
            for worker in self.bench.workers.values()
            for key, model in worker.held.items()
            if (key.job, key.workflow) == (job, name)
        )

    def reason(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        found = self.bench.job(self.jobs[name]).reason
        assert found.startswith(text), f"{found!r}, not {text!r}"

    def error(self, rest: str) -> None:
        subject, _, text = rest.partition(" ")
        name, _, workflow_name = subject.partition(".")
        found = self.bench.wf(self.jobs[name], workflow_name).error
        assert found.startswith(text), f"{found!r}, not {text!r}"

    def read_events(self, rest: str) -> None:
        events = self.bench.machine.tables.events.get(self.jobs[rest], ())
        self.unread_events = [event.text for event in events]

    def event(self, rest: str) -> None:
        assert self.unread_events, f"nothing more happened, not: {rest}"
        text = self.unread_events.pop(0)
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
    assert not play.unread_events, f"more happened: {play.unread_events}"


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 30
