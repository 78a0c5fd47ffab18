"""Random jobs and random faults on models of workers: whatever happens, every job ends
once, nothing is left behind, and no share makes load twice at a moment (the bench checks
that, and the state, at every step).
"""

from __future__ import annotations

from random import Random

import pytest

from squall.cluster.datacenter.commands import AdjustLoad, DrainWorker
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.manager.primary.effects import DirectorEffect
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import AttemptStatus, JobState
from squall.stats.manifest import Profile, WorkflowManifest
from tests.fakes.datacenter import Bench, ModelWorker, Push, Submit, workflow

ITERATIONS = Profile(model="iterations", vus=4, max_vus=4, iterations=100, duration_s=20, grace_s=1)
OPEN = Profile(model="open", vus=2, max_vus=6, rate_per_s=20, duration_s=8, grace_s=1)


class Play:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        cores = {f"w{i}": random.randint(1, 3) for i in range(random.randint(1, 4))}
        self.bench = Bench(**cores)
        self.jobs: list[JobId] = []
        self.ended: dict[JobId, JobState] = {}
        self.flaky = random.random() < 0.5
        if self.flaky:
            self.bench.hold = self.holds

    def holds(self, effect: DirectorEffect) -> bool:
        return not isinstance(effect, Push) and self.random.random() < 0.1

    def step(self) -> None:
        random, bench = self.random, self.bench
        worker = random.choice(list(bench.workers.values()))
        weights = {
            self.submit: 20,
            self.crash: 10,
            self.return_: 15,
            self.cut: 10,
            self.restart: 10,
            self.cancel: 5,
            self.absence: 4,
            self.adjust: 4,
            self.drain: 2,
            self.refuse: 4,
            self.fail: 3,
            self.forget: 3,
            self.lose_an_errand: 5,
            self.usurp: 4,
        }
        random.choices(list(weights), list(weights.values()))[0](worker)
        bench.run(random.choice([0.05, 0.3, 1, 3]))
        self.check()

    def check(self) -> None:
        for job in self.jobs:
            record = self.bench.job(job)
            if record.over:
                assert self.ended.setdefault(job, record.state) == record.state

    def heal(self) -> None:
        bench = self.bench
        bench.hold = lambda _: False
        for effect in bench.held_effects:
            assert not isinstance(effect, Push)
            bench.director.failed(effect.tag, bench.now)
        for worker in bench.workers.values():
            worker.connected, worker.error, worker.refuse = True, "", lambda _: None
            if not worker.alive and self.has_its_name(worker):
                worker.restart(proven=True)
            bench.apply(DrainWorker(node=worker.node, draining=False))

    # What may happen.

    def submit(self, _: ModelWorker) -> None:
        plans: list[WorkflowManifest] = []
        for index in range(self.random.randint(1, 3)):
            depends = [f"W{k}" for k in range(index) if self.random.random() < 0.4]
            always = bool(depends) and self.random.random() < 0.2
            plans.append(self.plan(f"W{index}", depends, always))
        timeout_s = self.random.choice([None, None, 10.0, 60.0])
        self.jobs.append(self.bench.submit(*plans, timeout_s=timeout_s))

    def plan(self, name: str, depends: list[str], always: bool) -> WorkflowManifest:
        kind, length_s = self.random.randrange(10), float(self.random.choice([1, 4, 15]))
        if kind < 2:
            return workflow(
                name, *depends, always=always, is_test=False, vus=1, duration_s=length_s
            )
        if kind < 4:
            return workflow(name, *depends, always=always, profile=(ITERATIONS, OPEN)[kind - 2])
        priority = {4: "exclusive", 5: "exclusive", 6: "high"}.get(kind, "auto")
        return workflow(name, *depends, always=always, priority=priority, duration_s=length_s)

    def crash(self, worker: ModelWorker) -> None:
        if worker.alive:
            worker.kill()

    def return_(self, worker: ModelWorker) -> None:
        if not worker.alive and self.has_its_name(worker):
            worker.restart(proven=self.random.random() < 0.7)

    def usurp(self, worker: ModelWorker) -> None:
        """A worker with an empty directory takes the name of one that may live on."""
        if self.has_its_name(worker):
            self.bench.usurp(worker.node, connected=self.random.random() < 0.3)

    def has_its_name(self, worker: ModelWorker) -> bool:
        return self.bench.workers[worker.node] is worker

    def cut(self, worker: ModelWorker) -> None:
        worker.connected = not worker.connected

    def restart(self, _: ModelWorker) -> None:
        self.bench.restart_manager()

    def absence(self, _: ModelWorker) -> None:
        self.bench.manager_up = False
        self.bench.run(self.random.choice([0.5, 3, 8]))
        self.bench.manager_up = True
        self.bench.restart_manager()

    def cancel(self, _: ModelWorker) -> None:
        running = [job for job in self.jobs if not self.bench.job(job).over]
        if running:
            self.bench.cancel(self.random.choice(running), now=self.random.random() < 0.4)

    def adjust(self, _: ModelWorker) -> None:
        if self.jobs:
            paused = self.random.random() < 0.5
            job = self.random.choice(self.jobs)
            self.bench.apply(AdjustLoad(job=job, workflows=("W0",), paused=paused))

    def drain(self, worker: ModelWorker) -> None:
        within_ms = self.random.choice([None, 0, 1_000, 5_000])
        draining = self.random.random() < 0.5
        self.bench.apply(DrainWorker(node=worker.node, draining=draining, within_ms=within_ms))

    def refuse(self, worker: ModelWorker) -> None:
        retryable = self.random.random() < 0.6

        def refuses(key: AttemptKey) -> AttemptStatus:
            return AttemptStatus(
                key=key, phase="refused", text="no", exit_code=104, retryable=retryable
            )

        worker.refuse = refuses if self.random.random() < 0.5 else lambda _: None

    def fail(self, worker: ModelWorker) -> None:
        worker.error = "" if worker.error else "boom"

    def forget(self, worker: ModelWorker) -> None:
        if worker.held:
            worker.held.pop(self.random.choice(list(worker.held)))

    def lose_an_errand(self, _: ModelWorker) -> None:
        bench = self.bench
        if not bench.held_effects:
            return
        effect = bench.held_effects.pop(0)
        if isinstance(effect, Submit):
            # Its outcome is unknown: it may be in the log.
            if self.random.random() < 0.5:
                bench.apply(effect.command)
            bench.director.submitted(effect.tag, None, bench.now)
        elif not isinstance(effect, Push):
            bench.director.failed(effect.tag, bench.now)


@pytest.mark.parametrize("seed", range(50))
def test_every_job_ends_once_whatever_happens(seed: int) -> None:
    play = Play(seed)
    bench = play.bench
    for _ in range(play.random.randint(5, 40)):
        play.step()
    play.heal()
    bench.until(lambda: all(bench.job(job).over for job in play.jobs), 900)
    play.check()
    bench.run(6)
    tables = bench.machine.tables
    assert not tables.slots and not tables.attempts and not tables.alarms
    # A worker whose name another one took ends when it is refused, whatever it holds.
    assert not any(worker.held for worker in bench.workers.values() if play.has_its_name(worker))
    state = bench.director.state
    assert not (state.jobs or state.records or state.due)
    again = Datacenter()
    for entry in bench.bodies:
        again.apply(entry)
    assert again.digest() == bench.machine.digest()
