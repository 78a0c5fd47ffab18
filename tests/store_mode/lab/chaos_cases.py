"""The faults of store mode, the moments at which they strike, and how one case is played.

A case is one store, three agents, one job, one fault, one moment. `play` returns a row of
the table: what happened, and every problem that the judge of the datacenter's cases found.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from squall.cluster.protocol.timers import Timers
from squall.store_mode.timers import Profile, agent_timers
from tests.cluster.lab.chaos_rows import (
    CLOSED,
    FOLDED_S,
    MACHINE,
    MACHINE_RATIO,
    OPEN,
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
from tests.cluster.lab.judge import Load
from tests.cluster.lab.nodes import Ended
from tests.lab.arrivals import ArrivalsTarget
from tests.lab.machine import factor, measure
from tests.store_mode.lab.agents import Moto, Place, RedisPlace, StoreLab, place_of

USERS = 6
RATE_PER_S = 200
AGENTS = 3
CORES = 1
ENDS_WITHIN_S = 240.0
STAYS_QUIET_S = 1.5
RESULT_MARGIN_S = 10.0
MOMENTS = ("start", "mid", "last")
LAST_LOAD_S = 8
MID_S = 3.0
S3_MORE_S = 15.0
"""On S3 a message is up to two polls under way, and a share starts 5 s after its placement."""


@dataclass
class Stage:
    """What a fault can reach."""

    lab: StoreLab
    place: Place
    lost_after_s: float

    def outlast_lease(self) -> None:
        """Waits until an agent that is not heard is lost."""
        time.sleep(self.lost_after_s + 0.5)


Act = Callable[[Stage], None]


@dataclass(frozen=True)
class Fault:
    name: str
    act: Act
    expected: Expected = UNNOTICED
    seconds: int = 12
    """How long the job must be for the fault to be over before it ends."""
    leases: int = 0
    """How many times longer than that it is by the time after which a silent agent is lost."""
    worker_lost: bool = False
    """Something of an agent's last moments may be unknown, although the load does not notice."""
    forgets: bool = False
    """The job is gone: its submitter must hear that, with exit code 3."""
    may_lose_all: bool = False
    """When nobody is back in time no share comes to its end: failed then, with exit code 98."""
    abandons: bool = False
    """No agent is left: the submitter must report that, with exit code 3."""
    words: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("redis", "sqlite", "s3")
    refills: bool = True
    """Lost shares go on elsewhere."""

    @property
    def loses_agent(self) -> bool:
        return self.worker_lost or self.expected is not UNNOTICED

    def expected_on(self, kind: str) -> Expected:
        if kind != "s3" or not self.expected.full_within_s:
            return self.expected
        return replace(self.expected, full_within_s=self.expected.full_within_s + S3_MORE_S)

    def lasts_s(self, kind: str, silent_s: float) -> int:
        more_s = S3_MORE_S if kind == "s3" else 0.0
        return math.ceil(self.seconds * factor() + self.leases * silent_s + more_s)


def kill_main_of_coordinator(stage: Stage) -> None:
    stage.lab.kill_main(stage.lab.leader())


def kill_main_of_another(stage: Stage) -> None:
    stage.lab.kill_main(stage.lab.others()[0])


def kill_coordinator(stage: Stage) -> None:
    stage.lab.kill(stage.lab.leader())


def kill_agent(stage: Stage) -> None:
    stage.lab.kill(stage.lab.others()[0])


def kill_agent_restart(stage: Stage) -> None:
    name = stage.lab.others()[0]
    stage.lab.kill(name)
    time.sleep(1.0)
    stage.lab.start(name)


def kill_two(stage: Stage) -> None:
    leader = stage.lab.leader()
    other = next(name for name in stage.lab.running() if name != leader)
    stage.lab.kill(leader)
    stage.lab.kill(other)


def kill_all(stage: Stage) -> None:
    for name in stage.lab.running():
        stage.lab.kill(name)


def kill_all_mains(stage: Stage) -> None:
    for name in stage.lab.running():
        stage.lab.kill_main(name)


def freeze_agent(stage: Stage) -> None:
    name = stage.lab.others()[0]
    stage.lab.freeze(name)
    stage.outlast_lease()
    stage.lab.thaw(name)


def freeze_coordinator(stage: Stage) -> None:
    name = stage.lab.leader()
    stage.lab.freeze(name)
    stage.outlast_lease()
    stage.lab.thaw(name)


def store_away(stage: Stage) -> None:
    stage.place.leave()
    stage.outlast_lease()
    stage.place.come_back()


def store_away_briefly(stage: Stage) -> None:
    stage.place.leave()
    time.sleep(3.0)
    stage.place.come_back()


def restart_empty(stage: Stage) -> None:
    assert isinstance(stage.place, RedisPlace)
    stage.place.restart_empty()


GO_ON = ("--on-agent-loss", "continue")
PROCESS = Expected(5.0, PROCESS_RATIO, FOLDED_S)
COORDINATOR = Expected(12.0, PROCESS_RATIO, FOLDED_S)
"""Its successor is elected first: 5.2 s at most, S3 8 s."""
BACK = Expected(6.0, MACHINE_RATIO, REAPED_S)
FAULTS = (
    Fault("nothing happens", lambda stage: None, seconds=6),
    Fault("agent: main process killed", kill_main_of_another, PROCESS, 14),
    Fault("coordinator: main process killed", kill_main_of_coordinator, COORDINATOR, 20),
    Fault("all agents: main processes killed", kill_all_mains, COORDINATOR, 24, may_lose_all=True),
    Fault("agent: machine killed, back after 1 s", kill_agent_restart, BACK, 16),
    Fault("agent: machine gone", kill_agent, MACHINE, leases=1),
    Fault("coordinator: machine gone", kill_coordinator, Expected(31.0, MACHINE_RATIO), 18, 1),
    Fault("two of three agents: machines gone", kill_two, Expected(31.0, MACHINE_RATIO), 18, 1),
    Fault(
        "all agents: machines gone", kill_all, seconds=8, abandons=True, words=("--patience", "5s")
    ),
    Fault("agent: machine stopped past its lease", freeze_agent, MACHINE, leases=1),
    Fault(
        "coordinator: machine stopped past its lease", freeze_coordinator,
        Expected(31.0, MACHINE_RATIO), 18, 1,
    ),
    Fault("store away for 3 s", store_away_briefly, seconds=12),
    Fault("store away longer than the lease", store_away, Expected(31.0, MACHINE_RATIO), 18, 1),
    Fault("Redis restarted empty", restart_empty, seconds=40, forgets=True, kinds=("redis",)),
    Fault(
        "continue: agent's machine gone", kill_agent, Expected(60.0, MACHINE_RATIO), 8,
        words=GO_ON, refills=False,
    ),
    Fault("continue: store away", store_away, seconds=14, leases=1, words=GO_ON),
)  # fmt: skip


def fault_named(name: str) -> Fault:
    return next(each for each in FAULTS if each.name == name)


def play(
    kind: str,
    fault: Fault,
    moment: str,
    target: ArrivalsTarget,
    moto: Moto | None,
    *,
    timers: Profile = "normal",
) -> Row:
    """One case from an empty store to an empty machine."""
    target.reset()
    began = time.monotonic()
    measure()
    with tempfile.TemporaryDirectory(prefix="squall-store-") as folder:
        place = place_of(kind, Path(folder), moto)
        profile = "fast" if timers == "fast" else "lan"
        lab = StoreLab(
            Path(folder), target, place, agents=AGENTS, cores=CORES, timers=profile, launcher=True
        )
        lost_after_s = agent_timers(place.url, timers).work.lost_after_s
        with lab:
            seconds = LAST_LOAD_S if moment == "last" else fault.lasts_s(kind, lost_after_s)
            text = OPEN if moment == "mid" else CLOSED
            file = lab.write(text.format(users=USERS, rate=RATE_PER_S, seconds=seconds))
            watch = Watch(lab.run(file, *fault.words), seconds)
            _wait_for(moment, lab, seconds)
            watch.strike()
            fault.act(Stage(lab, place, lost_after_s))
            row = _judged(lab, watch, fault, kind, moment, target, began, timers)
        return replace(row, found=(*row.found, *left_behind(lab)))


def _wait_for(moment: str, lab: StoreLab, seconds: int) -> None:
    lab.wait_load(within_s=180.0)
    time.sleep({"start": 0.0, "mid": MID_S, "last": seconds - 0.7}[moment])


def _judged(
    lab: StoreLab,
    watch: Watch,
    fault: Fault,
    kind: str,
    moment: str,
    target: ArrivalsTarget,
    began: float,
    timers: Profile,
) -> Row:
    ended = watch.end(ENDS_WITHIN_S)
    work = agent_timers(lab.place.url, timers).work
    found: list[str] = []
    if fault.forgets:
        found += _told(ended, "is lost", target, work.execution_lease_s)
        # The agents work again without an operator's help.
        lab.wait_ready()
    elif fault.abandons:
        found += _told(ended, "ends when the leases expire", target, work.execution_lease_s)
    elif not ended.results.exists():
        found.append(f"no results document; exit code {ended.code}: {ended.err.strip()[-400:]}")
    evidence = Evidence(
        ended=ended,
        watch=watch,
        counts=target.seen(),
        logs="\n".join(node.said() for node in lab.nodes.values()),
        load=Load(rate_per_s=RATE_PER_S) if moment == "mid" else Load(users=USERS),
        expected=fault.expected_on(kind),
        shares=AGENTS,
    )
    if ended.results.exists():
        found += evidence.problems(
            worker_lost=fault.loses_agent,
            in_time=timers != "fast",
            result_within_s=work.last_loss_s + work.settle_s + RESULT_MARGIN_S,
            lease_s=_silent_s(fault, watch, work),
        )
        found += _one_result(lab, fault, evidence.document, ended.code)
    found += [f"{name} said Traceback" for name, node in lab.nodes.items() if _broke(node.said())]
    return row_of(fault.name, moment, evidence, began, found)


def _silent_s(fault: Fault, watch: Watch, work: Timers) -> float:
    """For how long an agent that is lost may have gone on. A coordinator that takes over does not
    know when its predecessor last granted, and on S3 the last report is seconds old."""
    lease_s = work.execution_lease_s + work.failover_bound_s + work.telemetry_interval_min_s
    # With `continue` an agent that lost the store goes on to the end of the plan.
    return lease_s if fault.refills else max(lease_s, watch.seconds)


def _broke(said: str) -> bool:
    return "Traceback" in said


def _one_result(lab: StoreLab, fault: Fault, document: dict[str, Any], code: int) -> list[str]:
    jobs = lab.jobs()
    found: list[str] = []
    if len(jobs) != 1:
        found.append(f"{len(jobs)} jobs instead of one")
    if any(job["state"] not in {"completed", "partial", "failed"} for job in jobs):
        found.append(f"the job is {jobs[0]['state']}")
    all_lost = fault.may_lose_all and (document["status"], code) == ("failed", 98)
    if document["status"] != "completed" and not all_lost:
        found.append(f"status {document['status']}, expected completed")
    losses = document["losses"]
    if not fault.refills:
        if not losses:
            found.append("no loss is reported although an agent was lost for good")
        if any(loss.get("refilled_by") for loss in losses):
            found.append("a share was refilled although its load was to be done without")
    return found


def _stays_quiet(target: ArrivalsTarget) -> bool:
    before = target.counts()["total"]
    time.sleep(STAYS_QUIET_S)
    return target.counts()["total"] == before


def _told(ended: Ended, words: str, target: ArrivalsTarget, lease_s: float) -> list[str]:
    """The submitter hears plainly what was lost, and nobody goes on with it for longer than
    an execution lease, which is how long an agent that hears nothing may go on."""
    found: list[str] = []
    if ended.code != 3:
        found.append(f"exit code {ended.code} for a job that is gone: {ended.err[-300:]}")
    if words not in ended.err:
        found.append(f"the submitter does not hear {words!r}: {ended.err[-300:]}")
    until = time.monotonic() + lease_s * factor()
    while not (quiet := _stays_quiet(target)) and time.monotonic() < until:
        pass
    if not quiet:
        found.append("load goes on although its job is gone")
    return found
