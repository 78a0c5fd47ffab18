"""The faults, the moments at which they strike, and how one case is played.

A case is one datacenter, one job, one fault, one moment. `play` returns a row of the
table: what happened, and every problem that the judge found.
"""

from __future__ import annotations

import math
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from squall.cluster.protocol.timers import timers
from tests.cluster.lab.chaos_rows import CLOSED, OPEN, Row, left_behind, row_of
from tests.cluster.lab.judge import Load, holes, problems
from tests.cluster.lab.nodes import Cluster, Command
from tests.lab.machine import factor
from tests.lab.target import TargetHandle

USERS = 4
RATE_PER_S = 100
Act = Callable[["Stage"], None]

LAYERS = """
class First(Workflow):
    vus = {users}
    duration = "2s"

    @step()
    async def get(self, url: URL = "/first?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)

@depends("First")
class Second(Workflow):
    vus = {users}
    duration = "{seconds}s"

    @step()
    async def get(self, url: URL = "/second?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


@dataclass
class Stage:
    """What a fault can reach."""

    cluster: Cluster
    stop_s: float
    job: str = ""

    def outlast_lease(self) -> None:
        """Waits until a worker that hears no manager is lost by the fast timers."""
        lost_s = timers("fast", len(self.cluster.managers())).lost_after_s
        time.sleep(lost_s * factor() + 0.5)


@dataclass(frozen=True)
class Fault:
    name: str
    act: Act
    worker_lost: bool = False
    """Something of a worker's last moments may be unknown."""
    seconds: int = 8
    """How long the job must be for the fault to be over before it ends."""
    fatal: bool = False
    """No node is left to finish the job: the client must report that, with exit code 3."""
    proxied: bool = False
    managers: int = 1
    meshed: bool = False
    small_disk: str = ""
    """A manager with little room."""

    @property
    def lasts_s(self) -> int:
        """On a busy machine a loss takes longer to be known."""
        return math.ceil(self.seconds * factor())


def _after(seconds: float, then: Callable[[], None]) -> None:
    time.sleep(seconds)
    then()


def kill_worker(stage: Stage) -> None:
    stage.cluster.kill("w1")


def kill_worker_restart(stage: Stage) -> None:
    stage.cluster.kill("w1")
    _after(1.0, lambda: stage.cluster.start("w1"))


def kill_core(stage: Stage) -> None:
    for pid in stage.cluster.busy_cores("w1")[:1]:
        os.kill(pid, signal.SIGKILL)


def kill_manager(wait_s: float) -> Act:
    def act(stage: Stage) -> None:
        stage.cluster.kill("m1")
        _after(wait_s, lambda: stage.cluster.start("m1"))

    return act


def kill_manager_for_good(stage: Stage) -> None:
    stage.cluster.kill("m1")


def kill_both(stage: Stage) -> None:
    stage.cluster.kill("m1")
    stage.cluster.kill("w1")
    time.sleep(1.0)
    stage.cluster.start("m1")
    stage.cluster.start("w1")


def pause(name: str) -> Act:
    def act(stage: Stage) -> None:
        stage.cluster.pause(name)
        _after(stage.stop_s, lambda: stage.cluster.resume(name))

    return act


def pause_core(stage: Stage) -> None:
    pids = stage.cluster.busy_cores("w1")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(stage.stop_s)
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)


def cut_link(seconds: float, how: str) -> Act:
    def act(stage: Stage) -> None:
        proxy = stage.cluster.proxy
        assert proxy is not None
        if how == "cut":
            proxy.cut()
        elif how == "hold":
            proxy.hold()
        else:
            proxy.delay(0.3)
        _after(seconds, proxy.heal)

    return act


def cut_link_past_lease(stage: Stage) -> None:
    proxy = stage.cluster.proxy
    assert proxy is not None
    proxy.hold()
    stage.outlast_lease()
    proxy.heal()


ONE_MANAGER = (
    Fault("kill -9 worker, stays dead", kill_worker, worker_lost=True, seconds=14),
    Fault("kill -9 worker, restarted after 1 s", kill_worker_restart, worker_lost=True),
    Fault("kill -9 core process", kill_core, worker_lost=True),
    Fault("kill -9 manager, restarted after 1 s", kill_manager(1.0)),
    Fault("kill -9 manager, restarted after 10 s", kill_manager(10.0), seconds=18),
    Fault("kill -9 manager for good", kill_manager_for_good, fatal=True, seconds=10),
    Fault("kill -9 manager and worker, restarted", kill_both, worker_lost=True, seconds=10),
    Fault("SIGSTOP worker", pause("w1"), worker_lost=True, seconds=18),
    Fault("SIGSTOP core process", pause_core, worker_lost=True, seconds=18),
    Fault("SIGSTOP manager", pause("m1"), seconds=18),
    Fault("worker cut off for 3 s", cut_link(3.0, "cut"), proxied=True),
    Fault(
        "worker cut off longer than the lease",
        cut_link_past_lease,
        True,
        18,
        proxied=True,
    ),
    Fault("worker delayed by 0.3 s", cut_link(4.0, "delay"), proxied=True),
)


def _others(stage: Stage) -> list[str]:
    leader = stage.cluster.leader()
    return [name for name in stage.cluster.managers() if name != leader]


def _another(stage: Stage) -> str:
    """Not the primary; the one that merges the job's telemetry, where there is one."""
    others = _others(stage)
    merging = [job["leader"] for job in stage.cluster.jobs() if job["leader"] in others]
    return (merging or others)[0]


def kill_primary(stage: Stage) -> None:
    name = stage.cluster.leader()
    stage.cluster.kill(name)
    _after(3.0, lambda: stage.cluster.start(name))


def kill_primary_for_good(stage: Stage) -> None:
    stage.cluster.kill(stage.cluster.leader())


def kill_follower(stage: Stage) -> None:
    stage.cluster.kill(_another(stage))


def kill_two(stage: Stage) -> None:
    leader = stage.cluster.leader()
    stage.cluster.kill(_others(stage)[0])
    stage.cluster.kill(leader)


def kill_primary_and_worker(stage: Stage) -> None:
    stage.cluster.kill(stage.cluster.leader())
    stage.cluster.kill("w1")
    _after(1.0, lambda: stage.cluster.start("w1"))


def restart_one_by_one(stage: Stage) -> None:
    for name in stage.cluster.managers():
        stage.cluster.kill(name)
        time.sleep(0.3)
        stage.cluster.start(name)
        time.sleep(1.2)


def restart_all(stage: Stage) -> None:
    for name in stage.cluster.managers():
        stage.cluster.kill(name)
    time.sleep(0.5)
    for name in stage.cluster.managers():
        stage.cluster.start(name)


def pause_primary(stage: Stage) -> None:
    name = stage.cluster.leader()
    stage.cluster.pause(name)
    _after(stage.stop_s, lambda: stage.cluster.resume(name))


def wipe_follower(stage: Stage) -> None:
    name = _another(stage)
    stage.cluster.kill(name)
    stage.cluster.wipe(name)
    stage.cluster.start(name)


def part_primary(stage: Stage) -> None:
    """From its followers: workers and clients reach all of them."""
    stage.cluster.part(stage.cluster.leader(), _others(stage))
    _after(6.0, stage.cluster.mend)


def part_worker(how: str) -> Act:
    """From the primary only: the other managers relay."""

    def act(stage: Stage) -> None:
        stage.cluster.part(stage.cluster.leader(), ["w1"], how)
        _after(6.0, stage.cluster.mend)

    return act


def part_worker_from_all(stage: Stage) -> None:
    """Until its share has gone on elsewhere; what it did meanwhile must not count twice."""
    for manager in stage.cluster.managers():
        stage.cluster.part(manager, ["w1"])
    stage.outlast_lease()
    stage.cluster.mend()


def pause_worker(stage: Stage) -> None:
    stage.cluster.pause("w1")
    stage.outlast_lease()
    stage.cluster.resume("w1")


def fill_disk(stage: Stage) -> None:
    """Fills the disk of a manager, mostly the primary: the next blob that it must store ends its
    process. A supervisor starts it again when there is room."""
    lab = stage.cluster
    assert lab.disk is not None
    lab.disk.fill()
    until = time.monotonic() + FULL_S
    while lab.is_up(FULL):
        if stage.job and time.monotonic() > until - FULL_S / 2:
            # What a stopped job leaves may fit into the room that the log has taken before.
            lab.disk.empty()
            return
        assert time.monotonic() < until, f"{FULL} does not notice that its disk is full"
        time.sleep(0.1)
    assert "No space left" in lab.nodes[FULL].said()
    time.sleep(1.0)
    lab.disk.empty()
    lab.start(FULL)


FULL = "m1"
FULL_S = 40.0
FREE_WITHIN_S = 15.0
GROUP = (
    Fault("kill -9 primary, restarted after 3 s", kill_primary, managers=3),
    Fault("kill -9 primary for good", kill_primary_for_good, managers=3),
    Fault("kill -9 another manager for good", kill_follower, managers=3),
    Fault("kill -9 two of five managers", kill_two, managers=5, seconds=10),
    Fault("kill -9 primary and worker", kill_primary_and_worker, True, 10, managers=3),
    Fault("managers restarted one by one", restart_one_by_one, managers=3, seconds=12),
    Fault("all managers killed and restarted", restart_all, managers=3, seconds=12),
    Fault("SIGSTOP primary", pause_primary, managers=3, seconds=18),
    Fault("a disk wiped", wipe_follower, managers=3),
    Fault("primary cut off from its followers", part_primary, False, 10, managers=3, meshed=True),
    Fault(
        "worker cut off from the primary", part_worker("cut"), False, 10, managers=3, meshed=True
    ),
    Fault(
        "worker hears the primary no more", part_worker("hold"), True, 14, managers=3, meshed=True
    ),
    Fault("worker killed under a group", kill_worker, True, 10, managers=3),
    Fault("worker stopped under a group", pause_worker, True, 12, managers=3),
    Fault(
        "worker cut off from all managers", part_worker_from_all, True, 12, managers=3, meshed=True
    ),
    Fault("a disk full", fill_disk, False, 10, managers=3, small_disk=FULL),
)
"""Managers alone die here, unless a worker is named: the load must not notice."""
MOMENTS = ("start", "mid", "last", "layers", "cancel")
SUBMIT = "submit"
"""While a job is being submitted with a key: only managers are struck then."""
KEY = "the-key-of-this-job"
CANCEL_S = 15
"""So much longer is a job that will be cancelled."""
SUBMITS_AFTER_S = (0.25, 0.45, 0.65)
"""A command needs so long until it talks to the managers."""
STRIKES_MANAGERS = (
    "kill -9 manager, restarted after 1 s",
    *(fault.name for fault in GROUP if not fault.worker_lost),
)


def moments_of(fault: Fault) -> tuple[str, ...]:
    return (*MOMENTS, SUBMIT) if fault.name in STRIKES_MANAGERS else MOMENTS


def play(
    fault: Fault, moment: str, target: TargetHandle, *, stop_s: float, timers: str = "fast"
) -> Row:
    """One case from an empty folder to an empty machine."""
    target.reset()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="squall-chaos-") as folder:
        lab = Cluster(
            Path(folder),
            target,
            proxied=fault.proxied,
            managers=fault.managers,
            meshed=fault.meshed,
            small_disk=fault.small_disk,
            timers=timers,
        )
        with lab:
            stage = Stage(lab, stop_s)
            command = _begin(lab, fault, moment)
            _wait_for(moment, lab, fault)
            if moment == "cancel":
                stage.job = lab.jobs()[0]["job"]
                cancelled = lab.squall("cancel", stage.job, "--to", lab.addresses)
                assert cancelled.code == 0, cancelled.err
            fault.act(stage)
            row = _judge(lab, command, fault, moment, target, began)
        return replace(row, found=(*row.found, *left_behind(lab)))


def _begin(lab: Cluster, fault: Fault, moment: str) -> Command:
    text = LAYERS if moment == "layers" else OPEN if moment == "start" else CLOSED
    # On a busy machine the commands that find a job and cancel it take seconds.
    seconds = fault.lasts_s + (CANCEL_S if moment == "cancel" else 0)
    file = lab.write(text.format(users=USERS, rate=RATE_PER_S, seconds=seconds))
    words = ("--key", KEY) if moment == SUBMIT else ()
    # Longer than the lease of the workers, which must have stopped when the client gives up.
    patience = ("--patience", f"{12.0 * factor():g}s") if fault.fatal else ()
    return lab.run(file, *words, *patience)


def _wait_for(moment: str, lab: Cluster, fault: Fault) -> None:
    if moment == SUBMIT:
        time.sleep(random.choice(SUBMITS_AFTER_S))
        return
    if moment == "start":
        until = time.monotonic() + 20.0
        while not lab.jobs():
            assert time.monotonic() < until, "the job never appeared"
        return
    lab.wait_load()
    if moment == "last":
        time.sleep(fault.lasts_s - 0.7)
    elif moment == "layers":
        time.sleep(1.9)
    else:
        time.sleep(1.5)


def _judge(
    lab: Cluster, command: Command, fault: Fault, moment: str, target: TargetHandle, began: float
) -> Row:
    ended = command.end(120.0)
    if moment == SUBMIT and ended.code == 3:
        # The client reported that no manager answers; with the key it is safe to submit again.
        ended = lab.run("flow.py", "--key", KEY).end(120.0)
    load = Load(rate_per_s=RATE_PER_S) if moment == "start" else Load(users=USERS)
    found: list[str] = []
    document = None
    if fault.fatal and ended.code == 3:
        # The workers must have stopped by their lease: the target hears nothing more.
        before = target.counts()["total"]
        time.sleep(1.0)
        if target.counts()["total"] != before:
            found.append("load goes on although no manager leads")
    elif not ended.results.exists():
        found.append(f"no results document; exit code {ended.code}: {ended.err.strip()[-300:]}")
    else:
        document = ended.document
        found += problems(document, target.counts(), load, worker_lost=fault.worker_lost)
        found += [] if fault.fatal else [*_one_result(lab, moment, document), *_held_cores(lab)]
        if fault.managers > 1 and not fault.worker_lost:
            found += holes(document, target.counts(), layered=moment == "layers")
        if moment == SUBMIT:
            found += _same_job_again(lab, ended.code)
    return row_of(fault.name, moment, ended, document, target, began, found)


def _held_cores(lab: Cluster) -> list[str]:
    """A worker that is there holds nothing of a job that is over, wherever it was meanwhile."""
    until = time.monotonic() + FREE_WITHIN_S * factor()
    while True:
        nodes = [each for each in lab.ask("nodes")["nodes"] if each["role"] == "worker"]
        present = [each for each in nodes if each["state"] in ("idle", "busy")]
        held = [each["name"] for each in present if each["free"] != each["cores"]]
        if not held or time.monotonic() > until:
            return [f"{name} still holds cores of the job" for name in held]
        time.sleep(0.1)


def _same_job_again(lab: Cluster, first: int) -> list[str]:
    """A later submission with the same key gets the same job and its result."""
    before = lab.target.counts()["total"]
    code = lab.run("flow.py", "--key", KEY).end(60.0).code
    found = [] if code == first else [f"the same key again: exit code {code}, first {first}"]
    if len(lab.jobs()) != 1:
        found.append("the same key again made another job")
    if lab.target.counts()["total"] != before:
        found.append("the same key again made load")
    return found


def _one_result(lab: Cluster, moment: str, document: dict[str, object]) -> list[str]:
    jobs = lab.jobs()
    found: list[str] = []
    if len(jobs) != 1:
        found.append(f"{len(jobs)} jobs instead of one")
    final = {"completed", "partial", "failed", "cancelled", "timeout"}
    if any(job["state"] not in final for job in jobs):
        found.append(f"the job is {jobs[0]['state']}")
    expected = {"interrupted"} if moment == "cancel" else {"completed"}
    if document["status"] not in expected:
        found.append(f"status {document['status']}, expected {' or '.join(expected)}")
    return found
