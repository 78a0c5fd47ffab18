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
from tests.cluster.lab.chaos_rows import (
    CLOSED,
    FOLDED_S,
    MACHINE,
    MACHINE_RATIO,
    OPEN,
    PROCESS,
    PROCESS_RATIO,
    REAPED_S,
    UNNOTICED,
    Evidence,
    Expected,
    Row,
    Watch,
    left_behind,
    row_of,
)
from tests.cluster.lab.judge import Load, holes
from tests.cluster.lab.nodes import Cluster
from tests.lab.arrivals import ArrivalsTarget
from tests.lab.machine import factor, measure

USERS = 4
RATE_PER_S = 200
WORKERS = 2
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
    job: str = ""

    def outlast_lease(self) -> None:
        """Waits until a worker that hears no manager is lost."""
        time.sleep(self.lost_after_s + 0.5)

    @property
    def lost_after_s(self) -> float:
        return lost_after_s(self.cluster.timers, len(self.cluster.managers()))


def lost_after_s(profile: str, managers: int) -> float:
    """On a busy machine the fast timers are slower."""
    if profile == "fast":
        return timers("fast", managers).lost_after_s * factor()
    return timers("lan", managers).lost_after_s


@dataclass(frozen=True)
class Fault:
    name: str
    act: Act
    expected: Expected = UNNOTICED
    seconds: int = 12
    """How long the job must be for the fault to be over before it ends."""
    leases: int = 0
    """How many times longer than that it is by the time after which a silent worker is lost."""
    also: tuple[str, ...] = ()
    """At which moments it strikes in the published matrix, beside the middle of a test."""
    worker_lost: bool = False
    """Something of a worker's last moments may be unknown, although the load does not notice."""
    fatal: bool = False
    """No node is left to finish the job: the client must report that, with exit code 3."""
    proxied: bool = False
    managers: int = 1
    meshed: bool = False
    small_disk: str = ""
    """A manager with little room."""

    @property
    def loses_worker(self) -> bool:
        return self.worker_lost or self.expected is not UNNOTICED

    def lasts_s(self, profile: str) -> int:
        """On a busy machine a recovery takes longer."""
        silent_s = self.leases * lost_after_s(profile, self.managers)
        part = FAST_PART if profile == "fast" else 1.0
        return math.ceil(self.seconds * part * factor() + silent_s)


def _after(seconds: float, then: Callable[[], None]) -> None:
    time.sleep(seconds)
    then()


def main_of(name: str) -> Act:
    return lambda stage: stage.cluster.kill_main(name)


def launcher_of(name: str) -> Act:
    return lambda stage: stage.cluster.kill_launcher(name)


def machine_of(name: str, back_after_s: float | None = None) -> Act:
    def act(stage: Stage) -> None:
        stage.cluster.kill(name)
        if back_after_s is not None:
            _after(back_after_s, lambda: stage.cluster.start(name))

    return act


def kill_core(stage: Stage) -> None:
    for pid in stage.cluster.busy_cores("w1")[:1]:
        os.kill(pid, signal.SIGKILL)


def kill_both(stage: Stage) -> None:
    stage.cluster.kill_main("m1")
    stage.cluster.kill_main("w1")


def freeze(name: str, seconds: float | None = None) -> Act:
    """For longer than a lease, if no time is given."""

    def act(stage: Stage) -> None:
        stage.cluster.freeze(name)
        time.sleep(seconds) if seconds else stage.outlast_lease()
        stage.cluster.thaw(name)

    return act


def pause_main(stage: Stage) -> None:
    """Its core processes go on until their lease ends."""
    pid = stage.cluster.main_pid("w1")
    os.kill(pid, signal.SIGSTOP)
    stage.outlast_lease()
    os.kill(pid, signal.SIGCONT)


def pause_core(stage: Stage) -> None:
    pids = stage.cluster.busy_cores("w1")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STOP_S)
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


FAST_PART = 0.75
"""With the fast timers a job may be shorter; the gate runs them."""
STOP_S = 6.0
"""A stop that is shorter than every lease, and much longer than what a load does not notice."""
STOPPED = Expected(STOP_S + 3.0, PROCESS_RATIO, FOLDED_S)
ONE_MANAGER = (
    Fault("worker: main process killed", main_of("w1"), PROCESS, also=("last", "layers")),
    Fault("worker: core process killed", kill_core, PROCESS, also=("last",)),
    Fault("worker: launcher killed", launcher_of("w1"), PROCESS, also=("cancel",)),
    Fault(
        "worker: machine killed, back after 1 s", machine_of("w1", 1.0),
        Expected(4.0, MACHINE_RATIO, REAPED_S), also=("layers",),
    ),
    Fault("worker: machine gone", machine_of("w1"), MACHINE, 10, leases=1, also=("last",)),
    Fault("worker: machine stopped past its lease", freeze("w1"), MACHINE, 12, leases=1),
    Fault(
        "worker: main process stopped past its lease", pause_main, MACHINE, 12, leases=1,
        also=("start",),
    ),
    Fault("worker: core process stopped for 6 s", pause_core, STOPPED, 16),
    Fault("worker: cut off for 3 s", cut_link(3.0, "cut"), proxied=True, also=("last",)),
    Fault(
        "worker: cut off past its lease", cut_link_past_lease, MACHINE, 12, leases=1,
        proxied=True, also=("cancel",),
    ),
    Fault("worker: delayed by 0.3 s", cut_link(4.0, "delay"), proxied=True, also=("start",)),
    Fault("manager: main process killed", main_of("m1"), also=("start", "cancel", "submit")),
    Fault(
        "manager: machine gone for 10 s", machine_of("m1", 10.0), seconds=18, also=("last",)
    ),
    Fault("manager: machine stopped for 6 s", freeze("m1", STOP_S), seconds=14, also=("layers",)),
    Fault("manager: gone for good", machine_of("m1"), fatal=True, seconds=10),
    Fault("manager and worker: main processes killed", kill_both, PROCESS, 14, also=("cancel",)),
)  # fmt: skip


def _others(stage: Stage) -> list[str]:
    leader = stage.cluster.leader()
    return [name for name in stage.cluster.managers() if name != leader]


def _another(stage: Stage) -> str:
    """Not the primary; the one that merges the job's telemetry, where there is one."""
    others = _others(stage)
    merging = [job["leader"] for job in stage.cluster.jobs() if job["leader"] in others]
    return (merging or others)[0]


def primary(act_of: Callable[[str], Act]) -> Act:
    """A fault of the manager that leads now."""
    return lambda stage: act_of(stage.cluster.leader())(stage)


def another(act_of: Callable[[str], Act]) -> Act:
    """A fault of a follower."""
    return lambda stage: act_of(_another(stage))(stage)


def kill_two(stage: Stage) -> None:
    leader = stage.cluster.leader()
    stage.cluster.kill(_others(stage)[0])
    stage.cluster.kill(leader)


def kill_primary_and_worker(stage: Stage) -> None:
    stage.cluster.kill(stage.cluster.leader())
    stage.cluster.kill_main("w1")


def restart_one_by_one(stage: Stage) -> None:
    for name in stage.cluster.managers():
        stage.cluster.kill_main(name)
        time.sleep(1.5)


def restart_all(stage: Stage) -> None:
    for name in stage.cluster.managers():
        stage.cluster.kill_main(name)


def wipe(name: str) -> Act:
    def act(stage: Stage) -> None:
        stage.cluster.kill(name)
        stage.cluster.wipe(name)
        stage.cluster.start(name)

    return act


def part_primary(stage: Stage) -> None:
    """From its followers: workers and clients reach all of them."""
    stage.cluster.part(stage.cluster.leader(), _others(stage))
    _after(STOP_S, stage.cluster.mend)


def part_worker(how: str) -> Act:
    """From the primary only: the other managers relay."""

    def act(stage: Stage) -> None:
        stage.cluster.part(stage.cluster.leader(), ["w1"], how)
        _after(STOP_S, stage.cluster.mend)

    return act


def part_worker_from_all(stage: Stage) -> None:
    """Until its share has gone on elsewhere; what it did meanwhile must not count twice."""
    for manager in stage.cluster.managers():
        stage.cluster.part(manager, ["w1"])
    stage.outlast_lease()
    stage.cluster.mend()


def fill_disk(stage: Stage) -> None:
    """Fills the disk of a manager, mostly the primary: the next blob that it must store ends its
    process. Its launcher starts it again, in vain until there is room."""
    lab = stage.cluster
    assert lab.disk is not None
    lab.disk.fill()
    until = time.monotonic() + FULL_S
    while "No space left" not in lab.nodes[FULL].said():
        if stage.job and time.monotonic() > until - FULL_S / 2:
            # What a stopped job leaves may fit into the room that the log has taken before.
            lab.disk.empty()
            return
        assert time.monotonic() < until, f"{FULL} does not notice that its disk is full"
        time.sleep(0.1)
    _after(1.0, lab.disk.empty)


FULL = "m1"
FULL_S = 40.0
FREE_WITHIN_S = 15.0
GROUP = (
    Fault("primary: main process killed", primary(main_of), managers=3, also=("start", "submit")),
    Fault("primary: machine gone", primary(machine_of), managers=3, also=("last", "submit")),
    Fault("another manager: machine gone", another(machine_of), managers=3, also=("cancel",)),
    Fault("two of five managers: machines gone", kill_two, managers=5, seconds=14),
    Fault("managers: main processes killed one by one", restart_one_by_one,
          managers=3, seconds=14, also=("layers",)),
    Fault("managers: all main processes killed", restart_all, managers=3, also=("last",)),
    Fault("primary: machine stopped for 6 s", primary(lambda name: freeze(name, STOP_S)),
          managers=3, seconds=14, also=("submit",)),
    Fault("another manager: disk wiped", another(wipe), managers=3, also=("start",)),
    Fault("a manager: disk full", fill_disk, managers=3, small_disk=FULL),
    Fault("primary: cut off from its followers", part_primary, seconds=14, managers=3, meshed=True,
          also=("layers",)),
    Fault("worker: cut off from the primary", part_worker("cut"), seconds=14, managers=3,
          meshed=True),
    Fault("worker: hears the primary no more", part_worker("hold"), seconds=16, managers=3,
          meshed=True, worker_lost=True),
    Fault("primary gone and worker: main process killed", kill_primary_and_worker,
          Expected(6.9, MACHINE_RATIO, REAPED_S), 16, managers=3, also=("cancel",)),
    Fault("worker: machine gone, three managers", machine_of("w1"), MACHINE, 10, leases=1,
          managers=3),
    Fault("worker: machine stopped, three managers", freeze("w1"), MACHINE, 12, leases=1,
          managers=3, also=("layers",)),
    Fault("worker: cut off from all managers", part_worker_from_all, MACHINE, 12, leases=1,
          managers=3, meshed=True, also=("last",)),
)  # fmt: skip
"""Managers alone die here, unless a worker is named: the load must not notice."""
MOMENTS = ("start", "mid", "last", "layers", "cancel")
SUBMIT = "submit"
"""While a job is being submitted with a key: only managers are struck then."""
KEY = "the-key-of-this-job"
LAST_LOAD_S = 8
NOBODY = "no manager"
CANCEL_S = 15
"""So much longer is a job that will be cancelled."""
SUBMITS_AFTER_S = (0.25, 0.45, 0.65)
"""A command needs so long until it talks to the managers."""
MID_S = 3.0
STRIKES_MANAGERS = (
    "manager: main process killed",
    *(fault.name for fault in GROUP if not fault.loses_worker),
)
ENDS_WITHIN_S = 150.0
RESULT_MARGIN_S = 5.0


def moments_of(fault: Fault, *, every: bool = True) -> tuple[str, ...]:
    """`every`: not only those of the published matrix."""
    if not every:
        return ("mid", *fault.also)
    return (*MOMENTS, SUBMIT) if fault.name in STRIKES_MANAGERS else MOMENTS


def play(fault: Fault, moment: str, target: ArrivalsTarget, *, timers: str = "lan") -> Row:
    """One case from an empty folder to an empty machine."""
    target.reset()
    began = time.monotonic()
    measure()
    with tempfile.TemporaryDirectory(prefix="squall-chaos-") as folder:
        lab = Cluster(
            Path(folder),
            target,
            proxied=fault.proxied,
            managers=fault.managers,
            meshed=fault.meshed,
            small_disk=fault.small_disk,
            timers=timers,
            launcher=True,
        )
        with lab:
            stage = Stage(lab)
            watch = _begin(lab, fault, moment)
            _wait_for(moment, lab, watch.seconds)
            if moment == "cancel":
                stage.job = lab.jobs()[0]["job"]
                lab.ask("cancel", stage.job)
            watch.strike()
            fault.act(stage)
            row = _judge(lab, watch, fault, moment, target, began)
        return replace(row, found=(*row.found, *left_behind(lab)))


def _begin(lab: Cluster, fault: Fault, moment: str) -> Watch:
    text = LAYERS if moment == "layers" else OPEN if moment == "mid" else CLOSED
    # On a busy machine the commands that find a job and cancel it take seconds.
    seconds = fault.lasts_s(lab.timers) + (CANCEL_S if moment == "cancel" else 0)
    if moment == "last":
        seconds = LAST_LOAD_S
    file = lab.write(text.format(users=USERS, rate=RATE_PER_S, seconds=seconds))
    words = ("--key", KEY) if moment == SUBMIT else ()
    # Longer than the lease of the workers, which must have stopped when the client gives up.
    patience_s = 1.1 * lost_after_s(lab.timers, 1)
    patience = ("--patience", f"{patience_s:g}s") if fault.fatal else ()
    return Watch(lab.run(file, *words, *patience), seconds)


def _wait_for(moment: str, lab: Cluster, seconds: int) -> None:
    if moment == SUBMIT:
        time.sleep(random.choice(SUBMITS_AFTER_S))
        return
    if moment == "start":
        until = time.monotonic() + 20.0
        while not lab.jobs():
            assert time.monotonic() < until, "the job never appeared"
            time.sleep(0.02)
        return
    lab.wait_load()
    if moment == "last":
        time.sleep(seconds - 0.7)
    elif moment == "layers":
        time.sleep(1.9)
    else:
        time.sleep(MID_S)


def _judge(
    lab: Cluster, watch: Watch, fault: Fault, moment: str, target: ArrivalsTarget, began: float
) -> Row:
    ended = watch.end(ENDS_WITHIN_S)
    if moment == SUBMIT and ended.code == 3:
        # The client reported that no manager answers; with the key it is safe to submit again.
        watch = Watch(lab.run("flow.py", "--key", KEY), watch.seconds)
        ended = watch.end(ENDS_WITHIN_S)
    evidence = Evidence(
        ended=ended,
        watch=watch,
        counts=target.seen(),
        logs="\n".join(lab.nodes[name].said() for name in lab.managers()),
        load=Load(rate_per_s=RATE_PER_S) if moment == "mid" else Load(users=USERS),
        expected=fault.expected,
        shares=WORKERS,
    )
    found: list[str] = []
    if fault.fatal and ended.code == 3:
        # The workers must have stopped by their lease: the target hears nothing more.
        before = target.counts()["total"]
        time.sleep(1.0)
        if target.counts()["total"] != before:
            found.append("load goes on although no manager leads")
        if NOBODY not in ended.err:
            found.append(f"the client does not say {NOBODY!r}: {ended.err[-300:]}")
    elif not ended.results.exists():
        found.append(f"no results document; exit code {ended.code}: {ended.err.strip()[-300:]}")
    else:
        found += evidence.problems(
            worker_lost=fault.loses_worker,
            in_time=lab.timers != "fast" and moment not in ("cancel", "layers", SUBMIT),
            result_within_s=lost_after_s(lab.timers, fault.managers) + RESULT_MARGIN_S,
            lease_s=lost_after_s(lab.timers, fault.managers),
        )
        if not fault.fatal:
            found += [*_one_result(lab, moment, evidence.document), *_held_cores(lab)]
        if fault.managers > 1 and not fault.loses_worker:
            found += holes(evidence.document, evidence.counts, layered=moment == "layers")
        if moment == SUBMIT:
            found += _same_job_again(lab, ended.code)
    return row_of(fault.name, moment, evidence, began, found)


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
