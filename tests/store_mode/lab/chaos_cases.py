"""The faults of store mode, the moments at which they strike, and how one case is played.

A case is one store, three agents, one job, one fault, one moment. `play` returns a row of
the table: what happened, and every problem that the judge of the datacenter's cases found.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from squall.store_mode.timers import agent_timers
from tests.cluster.lab.chaos_rows import CLOSED, OPEN, Row, left_behind, row_of
from tests.cluster.lab.judge import Load, problems
from tests.cluster.lab.nodes import Command, Ended
from tests.lab.machine import factor
from tests.lab.target import TargetHandle
from tests.store_mode.lab.agents import Moto, Place, RedisPlace, StoreLab, place_of

USERS = 6
RATE_PER_S = 90
AGENTS = 3
CORES = 1
ENDS_WITHIN_S = 240.0
STAYS_QUIET_S = 1.5
LEASE_S = agent_timers("redis://", "fast").work.execution_lease_s
MOMENTS = ("start", "mid", "last")


@dataclass
class Stage:
    """What a fault can reach."""

    lab: StoreLab
    place: Place
    stop_s: float


Act = Callable[[Stage], None]


@dataclass(frozen=True)
class Fault:
    name: str
    act: Act
    worker_lost: bool = False
    """Something of an agent's last moments may be unknown, or a share was cut."""
    seconds: int = 10
    """How long the job must be for the fault to be over before it ends."""
    stops: int = 0
    """How many times `stop_s` the job is longer."""
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


def kill_coordinator(stage: Stage) -> None:
    stage.lab.kill(stage.lab.leader())


def kill_coordinator_restart(stage: Stage) -> None:
    name = stage.lab.leader()
    stage.lab.kill(name)
    time.sleep(1.0)
    stage.lab.start(name)


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


def kill_all_restart_one(stage: Stage) -> None:
    name = stage.lab.others()[0]
    kill_all(stage)
    time.sleep(1.0)
    stage.lab.start(name)


def pause_agent(stage: Stage) -> None:
    name = stage.lab.others()[0]
    stage.lab.pause(name)
    time.sleep(stage.stop_s)
    stage.lab.resume(name)


def pause_coordinator(stage: Stage) -> None:
    name = stage.lab.leader()
    stage.lab.pause(name)
    time.sleep(stage.stop_s)
    stage.lab.resume(name)


def store_away(stage: Stage) -> None:
    stage.place.leave()
    time.sleep(stage.stop_s)
    stage.place.come_back()


def store_away_briefly(stage: Stage) -> None:
    stage.place.leave()
    time.sleep(1.0)
    stage.place.come_back()


def restart_empty(stage: Stage) -> None:
    assert isinstance(stage.place, RedisPlace)
    stage.place.restart_empty()


GO_ON = ("--on-agent-loss", "continue")
FAULTS = (
    Fault("nothing happens", lambda stage: None, seconds=4),
    Fault("kill -9 coordinator", kill_coordinator, worker_lost=True, seconds=18),
    Fault("kill -9 coordinator, restarted", kill_coordinator_restart, worker_lost=True, seconds=14),
    Fault("kill -9 another agent", kill_agent, worker_lost=True, seconds=14),
    Fault("kill -9 another agent, restarted", kill_agent_restart, worker_lost=True, seconds=12),
    Fault("kill -9 two of three agents", kill_two, worker_lost=True, seconds=15),
    Fault(
        "kill -9 all agents", kill_all, seconds=8, abandons=True, words=("--patience", "5s")
    ),
    Fault(
        "kill -9 all agents, one restarted", kill_all_restart_one, worker_lost=True, seconds=30,
        may_lose_all=True,
    ),
    Fault("SIGSTOP agent", pause_agent, worker_lost=True, seconds=8, stops=1),
    Fault("SIGSTOP coordinator", pause_coordinator, worker_lost=True, seconds=10, stops=1),
    Fault("store away for 1 s", store_away_briefly, seconds=8),
    Fault("store away", store_away, worker_lost=True, seconds=10, stops=1),
    Fault("Redis restarted empty", restart_empty, seconds=40, forgets=True, kinds=("redis",)),
    Fault(
        "continue: kill -9 another agent", kill_agent, worker_lost=True, seconds=8, words=GO_ON,
        refills=False,
    ),
    Fault("continue: store away", store_away, seconds=14, stops=1, words=GO_ON),
)  # fmt: skip


def fault_named(name: str) -> Fault:
    return next(each for each in FAULTS if each.name == name)


def play(
    kind: str, fault: Fault, moment: str, target: TargetHandle, moto: Moto | None, *, stop_s: float
) -> Row:
    """One case from an empty store to an empty machine."""
    target.reset()
    began = time.monotonic()
    slow = 2 if kind == "s3" else 1
    seconds = slow * fault.seconds + round(fault.stops * stop_s)
    with tempfile.TemporaryDirectory(prefix="squall-store-") as folder:
        place = place_of(kind, Path(folder), moto)
        lab = StoreLab(Path(folder), target, place, agents=AGENTS, cores=CORES)
        with lab:
            text = OPEN if moment == "start" else CLOSED
            file = lab.write(text.format(users=USERS, rate=RATE_PER_S, seconds=seconds))
            command = lab.run(file, *fault.words)
            _wait_for(moment, lab, seconds)
            fault.act(Stage(lab, place, stop_s))
            row = _judged(lab, command, fault, moment, target, began)
        return replace(row, found=(*row.found, *left_behind(lab)))


def _wait_for(moment: str, lab: StoreLab, seconds: int) -> None:
    lab.wait_load(within_s=180.0)
    time.sleep({"start": 0.0, "mid": 2.0, "last": seconds - 0.7}[moment])


def _judged(
    lab: StoreLab, command: Command, fault: Fault, moment: str, target: TargetHandle, began: float
) -> Row:
    ended = command.end(ENDS_WITHIN_S)
    load = Load(rate_per_s=RATE_PER_S) if moment == "start" else Load(users=USERS)
    found: list[str] = []
    document = None
    if fault.forgets:
        found += _told(ended, "is lost", target)
        # The agents work again without an operator's help.
        lab.wait_ready()
    elif fault.abandons:
        found += _told(ended, "no agent coordinates at the moment", target)
    elif not ended.results.exists():
        found.append(f"no results document; exit code {ended.code}: {ended.err.strip()[-400:]}")
    else:
        document = ended.document
        found += problems(document, target.counts(), load, worker_lost=fault.worker_lost)
        found += _one_result(lab, fault, document, ended.code)
    found += [f"{name} said Traceback" for name, node in lab.nodes.items() if _broke(node.said())]
    return row_of(fault.name, moment, ended, document, target, began, found)


def _broke(said: str) -> bool:
    return "Traceback" in said


def _one_result(lab: StoreLab, fault: Fault, document: dict[str, object], code: int) -> list[str]:
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
    assert isinstance(losses, list)
    if not fault.refills:
        if not losses:
            found.append("no loss is reported although an agent was lost for good")
        if any(loss.get("refilled_by") for loss in losses):
            found.append("a share was refilled although its load was to be done without")
    return found


def _stays_quiet(target: TargetHandle) -> bool:
    before = target.counts()["total"]
    time.sleep(STAYS_QUIET_S)
    return target.counts()["total"] == before


def _told(ended: Ended, words: str, target: TargetHandle) -> list[str]:
    """The submitter hears plainly what was lost, and nobody goes on with it for longer than
    an execution lease, which is how long an agent that hears nothing may go on."""
    found: list[str] = []
    if ended.code != 3:
        found.append(f"exit code {ended.code} for a job that is gone: {ended.err[-300:]}")
    if words not in ended.err:
        found.append(f"the submitter does not hear {words!r}: {ended.err[-300:]}")
    until = time.monotonic() + LEASE_S * factor()
    while not (quiet := _stays_quiet(target)) and time.monotonic() < until:
        pass
    if not quiet:
        found.append("load goes on although its job is gone")
    return found
