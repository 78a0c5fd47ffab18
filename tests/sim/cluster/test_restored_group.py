"""A datacenter whose only manager comes back from an older copy of its disk.

Its workers and clients live on and know jobs that the copy does not have.
"""

from __future__ import annotations

import asyncio
import copy

import pytest

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import DatacenterLab, SubmittedJob
from lab.sim.disk.disk import NodeDisk
from lab.sim.disk.files import FileTree
from lab.sim.node import SimRuntime
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.tables import Tables
from squall.cluster.ledger.recover import recover_alone
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.runtime.interfaces import Runtime
from squall.runtime.tasks import TaskRunner
from tests.sim.cluster.lab.group_jobs import asked_job, clean, closed

JOBS = 4
"""On each side of the copy, so that op numbers of creations come twice."""


class RenamingDisk(NodeDisk):
    """Renames directories too, which no running node does."""

    def __init__(self, disk: NodeDisk) -> None:
        self.__dict__ = disk.__dict__

    async def rename(self, source: str, target: str) -> None:
        tree: FileTree = self._disk.tree
        if source not in tree.names.directories:
            await super().rename(source, target)
            return
        folders = [name for name in tree.names.directories if f"{name}/".startswith(f"{source}/")]
        for folder in folders:
            await self.make_directory(target + folder.removeprefix(source))
        for path in [name for name in tree.names.files if name.startswith(f"{source}/")]:
            tree.rename(path, target + path.removeprefix(source))
        for folder in folders:
            del tree.names.directories[folder]


async def restored(runtime: Runtime, lab: DatacenterLab) -> None:
    assert isinstance(runtime, SimRuntime) and isinstance(runtime.disk, NodeDisk)
    runtime.disk = RenamingDisk(runtime.disk)
    tasks = TaskRunner(runtime.clock, runtime.random)
    await recover_alone(runtime, tasks, Datacenter())
    await tasks.shutdown(1.0)
    await datacenter.manager(runtime, lab)


class Restored:
    """One manager and two workers; jobs before the copy, lost jobs after it, jobs of the copy."""

    def __init__(self, world: World) -> None:
        world.parameters["managers"] = "1"
        self.world = world
        self.lab = datacenter.make_lab(world)
        world.add("m1", lambda runtime: datacenter.manager(runtime, self.lab))
        for name in ("w1", "w2"):
            world.add(name, lambda runtime: datacenter.worker(runtime, self.lab))

    async def play(self) -> None:
        world, lab = self.world, self.lab
        world.start()
        running = asyncio.ensure_future(lab.engine.run())
        kept = self.submit("kept", 2.0)
        await world.eventually(lambda: kept.result, within_s=60.0, what="a job ends")
        files = copy.deepcopy(world.nodes["m1"].disk.tree)
        lost = [self.submit(f"lost{number}", 6.0) for number in range(JOBS)]
        await world.eventually(
            lambda: all(asked.job for asked in lost) and self.sends(lost),
            within_s=60.0,
            what="the jobs that will be lost are accepted, and one makes load",
        )
        made = list[SubmittedJob]()
        world.nodes["m1"].program = lambda runtime: restored(runtime, lab)
        for turn in (1, 2):
            # The second group is made of the same copy: the workers have served another one.
            world.kill("m1")
            world.nodes["m1"].disk.tree = copy.deepcopy(files)
            world.start("m1")
            made += [self.submit(f"made{turn}{number}", 2.0) for number in range(JOBS)]
            await self.ended(running, made)
        if running.done():
            running.result()
        running.cancel()
        ids = [str(asked.job) for asked in (kept, *lost, *made)]
        assert len(set(ids)) == len(ids), ids
        assert len({name.partition("-")[2] for name in ids}) < len(ids), "numbers come twice"
        for asked in (kept, *made):
            assert asked.state == "completed" and asked.result is not None
            assert asked.result.losses == []
            datacenter.judge(lab, asked)

    async def ended(self, running: asyncio.Future[None], asked: list[SubmittedJob]) -> None:
        await self.world.eventually(
            lambda: running.done() or all(each.result for each in asked),
            within_s=200.0,
            what="the jobs of the restored group end",
        )

    def submit(self, name: str, seconds: float) -> SubmittedJob:
        asked = asked_job(name, closed("load", seconds))
        self.world.add(name, lambda runtime: datacenter.client(runtime, self.lab, asked, None))
        self.world.start(name)
        return asked

    def sends(self, asked: list[SubmittedJob]) -> bool:
        jobs = {each.job for each in asked}
        return any(key.job in jobs for key in self.lab.target.by_attempt)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_jobs_of_a_restored_group_share_no_id_with_jobs_that_were_lost(seed: int) -> None:
    async def scenario(world: World) -> None:
        await Restored(world).play()

    clean(run_seed(Scenario("test", "", scenario), seed))


class RestoredRunning(Restored):
    """A job runs when the copy is made. Its share is refilled after that, by a worker that the
    restored manager cannot reach at first: it must not run the same share, or the same attempt, a
    second time while that worker may still run it."""

    async def play(self) -> None:
        world, lab = self.world, self.lab
        world.start("m1", "w1")
        running = asyncio.ensure_future(lab.engine.run())
        asked = self.submit("job", 60.0)
        await world.eventually(lambda: self.sends([asked]), within_s=60.0, what="the load begins")
        files = copy.deepcopy(world.nodes["m1"].disk.tree)
        # The worker dies, its machine lives: the next boot proves it, and another refills.
        world.kill("w1")
        world.start("w2")
        await asyncio.sleep(3.0)
        world.start("w1")
        await world.eventually(
            lambda: any(key.attempt == 2 for key in lab.target.by_attempt),
            within_s=60.0,
            what="a second attempt sends",
        )
        second = next(key for key in lab.target.by_attempt if key.attempt == 2)
        taker = next(name for name, host in lab.engine.hosts.items() if second in host.cores)
        sent = lab.target.by_attempt[second]
        world.kill("m1")
        mend = world.partition([taker], ["m1"])
        world.nodes["m1"].disk.tree = copy.deepcopy(files)
        world.nodes["m1"].program = lambda runtime: restored(runtime, lab)
        world.start("m1")
        await asyncio.sleep(15.0)
        mend()
        await self.ended(running, [asked])
        if running.done():
            running.result()
        running.cancel()
        assert lab.target.by_attempt[second] > sent, "the old attempt went on for its lease"
        assert asked.state in ("completed", "partial")
        later = [key for key in lab.target.by_attempt if key.attempt > 2]
        assert later, "the restored group refills the share"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_attempts_of_a_restored_group_are_none_that_a_worker_of_the_old_one_runs(
    seed: int,
) -> None:
    async def scenario(world: World) -> None:
        await RestoredRunning(world).play()

    clean(run_seed(Scenario("test", "", scenario), seed))


@pytest.mark.parametrize(
    ("owner", "name", "answer"), [(Tables, "is_copied", False), (VolatileState, "may_place", True)]
)
def test_a_restored_group_that_repeats_attempts_or_does_not_wait_is_found_out(
    owner: type, name: str, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, lambda self, job: answer)

    async def scenario(world: World) -> None:
        await RestoredRunning(world).play()

    assert not run_seed(Scenario("test", "", scenario), 1).clean
