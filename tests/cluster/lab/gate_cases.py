"""The faults of gates and datacenters, when they strike, and how one case is played.

A case is three gates, two datacenters, one job over both, one fault, one moment. The judge is that
of a single datacenter, with the sums over both: one result, no request that it does not account
for, never more than the plan of the whole job in any second, and nothing reserved afterwards.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from squall.cluster.protocol.timers import timers
from tests.cluster.lab.chaos_rows import (
    UNNOTICED,
    Evidence,
    Expected,
    Row,
    Watch,
    left_behind,
    row_of,
)
from tests.cluster.lab.gate_judge import overlapping_tries, parts_of, whole_plan
from tests.cluster.lab.gates import DATACENTERS, GatedDatacenters, wait_for
from tests.cluster.lab.judge import Load, holes
from tests.lab.arrivals import ArrivalsTarget
from tests.lab.machine import factor, measure, start_s

RATE_PER_S = 100
SPLIT = ("--dc", "eu=60%,us=40%")
ROUTED = ("--dc-fallback",)
"""The gates choose one datacenter, and another one if that fails before the start."""
KEY = "the-key-of-this-job"
LOADING_S = 2.0
"""The file takes so long to load: between Accept and Started there is time to strike."""
OPEN = """
time.sleep({loading_s})

class Load(Workflow):
    rate = {rate}
    max_vus = 50
    duration = "{seconds}s"

    @step()
    async def get(self) -> HTTPResponse:
        return await self.client.http.get("/?delay=20ms", headers=SENDER)
"""
FAST_LEASE = timers("fast", 1).execution_lease_s / timers("lan", 1).execution_lease_s
STARTS = 2.0
"""A start of a manager, and as much again until it leads."""
FAST_PART = 0.75
"""With the fast timers a job may be shorter; the gate of the tests runs them."""
MID_S = 3.0
LAST_S = 0.7
ENDS_WITHIN_S = 240.0
FREE_WITHIN_S = 30.0
STOP_S = 20.0
FINAL = {"completed", "partial", "failed", "cancelled", "timeout"}
Act = Callable[["GateStage"], None]


@dataclass
class GateStage:
    """What a fault can reach."""

    lab: GatedDatacenters
    client: int = 0
    """The process id of the command that follows the job."""

    @property
    def lease_part(self) -> float:
        """How long the lease of a datacenter's workers is, compared with the one of people."""
        return FAST_LEASE if self.lab.timers == "fast" else 1.0

    @property
    def primary(self) -> str:
        return self.lab.leader()

    @property
    def job_leader(self) -> str:
        """The gate that merges the telemetry of the job."""
        found = [job["leader"] for job in self.lab.jobs() if job["leader"] in self.lab.nodes]
        return found[0] if found else self.primary

    @property
    def busy(self) -> str:
        """A datacenter that has a part of the job."""
        for dc in DATACENTERS:
            if self.lab.datacenter_jobs(dc):
                return dc
        raise AssertionError("no datacenter has a part of the job")


@dataclass(frozen=True)
class GateFault:
    name: str
    act: Act
    seconds: int = 14
    """How long the job is: the fault is over before it ends."""
    also: tuple[str, ...] = ()
    """At which moments it strikes in the published matrix, beside the middle of a test."""
    gates: int = 3
    managers: int = 1
    meshed: bool = False
    words: tuple[str, ...] = SPLIT
    lost: bool = False
    """A datacenter never comes back after its part has started: that part is cut, and the result
    says how much is unknown."""
    fatal: bool = False
    """No gate is left: the command must report that with exit code 3. The gates then start again,
    and the same key gives the result."""
    only: tuple[str, ...] = ()
    """The only moments at which it makes sense; empty: all."""
    launcher: bool = False
    """Processes are killed which their launchers start again."""

    def lasts_s(self, profile: str) -> int:
        return math.ceil(self.seconds * FAST_PART) if profile == "fast" else self.seconds


def main_of(which: Callable[[GateStage], str]) -> Act:
    return lambda stage: stage.lab.kill_main(which(stage))


def machine_of(which: Callable[[GateStage], str], back_after_s: float | None = None) -> Act:
    def act(stage: GateStage) -> None:
        name = which(stage)
        stage.lab.kill(name)
        if back_after_s is not None:
            # Its start takes a while too, which the fast timers do not shorten.
            time.sleep(max(back_after_s * stage.lease_part - STARTS * start_s(), 0.0))
            stage.lab.start(name)

    return act


def primary(stage: GateStage) -> str:
    return stage.primary


def job_leader(stage: GateStage) -> str:
    return stage.job_leader


def another(stage: GateStage) -> str:
    leader = stage.primary
    return next(name for name in stage.lab.gates() if name != leader)


def only_manager(stage: GateStage) -> str:
    return stage.lab.managers_of("eu")[0]


def primary_manager(stage: GateStage) -> str:
    return stage.lab.leader_of("eu")


def freeze_primary(stage: GateStage) -> None:
    name = stage.primary
    stage.lab.freeze(name)
    time.sleep(STOP_S)
    stage.lab.thaw(name)


def wipe(stage: GateStage) -> None:
    name = another(stage)
    stage.lab.kill(name)
    stage.lab.wipe(name)
    stage.lab.start(name)


def kill_all(stage: GateStage) -> None:
    for name in stage.lab.gates():
        stage.lab.kill_main(name)


def lose_all(stage: GateStage) -> None:
    for name in stage.lab.gates():
        stage.lab.kill(name)


def lose_two(stage: GateStage) -> None:
    leader = stage.primary
    stage.lab.kill(next(name for name in stage.lab.gates() if name != leader))
    stage.lab.kill(leader)


def lose_datacenter(stage: GateStage) -> None:
    stage.lab.lose_datacenter(stage.busy)


def cut_datacenter(seconds: float) -> Act:
    def act(stage: GateStage) -> None:
        stage.lab.cut_datacenter("eu")
        time.sleep(seconds)
        stage.lab.mend()

    return act


def cut_client(stage: GateStage) -> None:
    """From the gate that leads; the other gates answer it."""
    stage.lab.cut_client(stage.client, [stage.primary])


def kill_gate_and_manager(stage: GateStage) -> None:
    gate = stage.primary
    stage.lab.kill_main(only_manager(stage))
    stage.lab.kill_main(gate)


BEFORE = "before"
"""Before the job is submitted."""
ACCEPT = "accept"
"""A datacenter has accepted its part, and no part has started."""
MOMENTS = ("start", ACCEPT, "mid", "last", "cancel", "submit")
GATES = (
    GateFault("primary gate: main process killed", main_of(primary), also=("submit", ACCEPT),
              launcher=True),
    GateFault("primary gate: machine gone", machine_of(primary), also=("last", "cancel")),
    GateFault("gate that leads the job: machine gone", machine_of(job_leader), also=("start",)),
    GateFault("two of five gates: machines gone", lose_two, gates=5),
    GateFault("gates: all main processes killed", kill_all, also=(ACCEPT, "cancel", "last"),
              launcher=True),
    GateFault("gates: all gone for good", lose_all, fatal=True, only=("mid",)),
    GateFault("primary gate: machine stopped for 20 s", freeze_primary, 32, also=(ACCEPT,)),
    GateFault("another gate: disk wiped", wipe, also=("start",)),
    GateFault("only manager of a datacenter: main process killed", main_of(only_manager),
              also=("start", ACCEPT, "cancel", "last"), launcher=True),
    GateFault("only manager of a datacenter: gone for 10 s", machine_of(only_manager, 10.0), 20),
    GateFault("primary manager of three: machine gone", machine_of(primary_manager), managers=3),
    GateFault("datacenter: gone before a part is accepted",
              lambda stage: stage.lab.lose_datacenter("eu"), words=ROUTED, only=(BEFORE,)),
    GateFault("datacenter: gone after it accepted", lose_datacenter, words=ROUTED, only=(ACCEPT,)),
    GateFault("datacenter: gone after the start",
              lambda stage: stage.lab.lose_datacenter("eu"), lost=True, only=("mid",)),
    GateFault("datacenter: cut off from all gates for 5 s", cut_datacenter(5.0), meshed=True,
              also=(ACCEPT, "cancel", "last")),
    GateFault("datacenter: cut off from all gates for 60 s", cut_datacenter(60.0), 75,
              meshed=True, only=("mid", "cancel")),
    GateFault("client: cut off from its gate", cut_client, meshed=True, also=("start",)),
    GateFault("primary gate and manager: main processes killed", kill_gate_and_manager,
              also=(ACCEPT, "cancel"), launcher=True),
)  # fmt: skip
CANCEL_S = 15


def moments_of(fault: GateFault, *, every: bool = True) -> tuple[str, ...]:
    """`every`: not only those of the published matrix."""
    if fault.only:
        return fault.only
    return MOMENTS if every else ("mid", *fault.also)


def play(fault: GateFault, moment: str, target: ArrivalsTarget, *, profile: str = "lan") -> Row:
    """One case from an empty folder to an empty machine."""
    target.reset()
    began = time.monotonic()
    measure()
    with tempfile.TemporaryDirectory(prefix="squall-gates-") as folder:
        lab = GatedDatacenters(
            Path(folder),
            target,
            gates=fault.gates,
            managers=fault.managers,
            meshed=fault.meshed,
            timers=profile,
            launcher=fault.launcher,
        )
        with lab:
            stage = GateStage(lab)
            if moment == BEFORE:
                fault.act(stage)
            watch = _begin(lab, fault, moment)
            stage.client = watch.command.process.pid
            if moment == BEFORE:
                watch.strike()
            else:
                _wait_for(moment, stage, watch.seconds)
                if moment == "cancel":
                    lab.ask("cancel", lab.jobs()[0]["job"])
                watch.strike()
                fault.act(stage)
            row = _judge(lab, watch, fault, moment, target, began)
        return replace(row, found=(*row.found, *left_behind(lab)))


def _begin(lab: GatedDatacenters, fault: GateFault, moment: str) -> Watch:
    seconds = fault.lasts_s(lab.timers) + (CANCEL_S if moment == "cancel" else 0)
    loading_s = LOADING_S * factor() if moment == ACCEPT else 0.0
    file = lab.write(OPEN.format(rate=RATE_PER_S, seconds=seconds, loading_s=loading_s))
    patience = ("--patience", "5s") if fault.fatal else ()
    return Watch(lab.run(file, "--key", KEY, *fault.words, *patience), seconds)


def _wait_for(moment: str, stage: GateStage, seconds: int) -> None:
    lab = stage.lab
    if moment == "submit":
        time.sleep(0.5)
    elif moment == "start":
        wait_for(lambda: bool(lab.jobs()), "the job never appeared", 30.0)
    elif moment == ACCEPT:
        wait_for(
            lambda: any(lab.datacenter_jobs(dc) for dc in DATACENTERS), "no part was accepted", 30.0
        )
    else:
        lab.wait_load()
        time.sleep(seconds - LAST_S if moment == "last" else MID_S)


def _judge(
    lab: GatedDatacenters,
    watch: Watch,
    fault: GateFault,
    moment: str,
    target: ArrivalsTarget,
    began: float,
) -> Row:
    ended = watch.end(ENDS_WITHIN_S)
    found: list[str] = []
    if fault.fatal:
        found += _without_gates(lab, ended.code, ended.err, target)
    if ended.code == 3 and (fault.fatal or moment == "submit"):
        # No gate answered in time; with the key it is safe to ask for the job again.
        again = lab.run("flow.py", "--key", KEY, *fault.words)
        watch = Watch(again, watch.seconds, watch.struck_s)
        ended = watch.end(ENDS_WITHIN_S)
    evidence = Evidence(
        ended=ended,
        watch=watch,
        counts=target.seen(),
        logs="\n".join(node.said() for node in lab.nodes.values()),
        load=Load(rate_per_s=RATE_PER_S),
        expected=UNNOTICED if not fault.lost else Expected(float(fault.seconds)),
        shares=len(DATACENTERS),
    )
    if not ended.results.exists():
        found.append(f"no results document; exit code {ended.code}: {ended.err.strip()[-300:]}")
    else:
        found += evidence.problems(
            worker_lost=fault.lost, in_time=False, result_within_s=0.0, lease_s=0.0
        )
        found += _one_result(lab, moment, fault, evidence.document)
        found += parts_of(evidence.document, DATACENTERS if fault.words == SPLIT else ())
        if moment != "cancel" and not fault.lost:
            found += whole_plan(evidence.document, RATE_PER_S * watch.seconds)
        found += overlapping_tries(evidence.counts, is_split=fault.words == SPLIT)
        found += _held_cores(lab)
        if not fault.lost and moment != "cancel":
            found += holes(evidence.document, evidence.counts)
    return row_of(fault.name, moment, evidence, began, found)


def _without_gates(
    lab: GatedDatacenters, code: int, said: str, target: ArrivalsTarget
) -> Iterator[str]:
    """The datacenters finish their parts by themselves; then the gates come back."""
    if code != 3:
        yield f"exit code {code} although no gate is left: {said.strip()[-300:]}"
    lab.wait_quiet(quiet_s=3.0, within_s=120.0)
    total = target.counts()["total"]
    if not total:
        yield "no load arrived"
    for gate in lab.gates():
        lab.start(gate)
    lab.leader()
    if target.counts()["total"] != total:
        yield "gates that came back made load again"


def _one_result(
    lab: GatedDatacenters, moment: str, fault: GateFault, document: dict[str, Any]
) -> Iterator[str]:
    jobs = lab.jobs()
    if len(jobs) != 1:
        yield f"{len(jobs)} jobs instead of one"
    for job in jobs:
        if job["state"] not in FINAL:
            yield f"the job is {job['state']}"
    allowed = {"interrupted"} if moment == "cancel" else {"completed"}
    if not fault.lost and document["status"] not in allowed:
        yield f"status {document['status']}, expected {' or '.join(allowed)}"


def _held_cores(lab: GatedDatacenters) -> Iterator[str]:
    """A worker that is there holds nothing of a job that is over."""
    for dc in DATACENTERS:
        if not any(lab.is_up(name) for name in lab.managers_of(dc)):
            continue
        until = time.monotonic() + FREE_WITHIN_S * factor()
        while True:
            nodes = [each for each in lab.datacenter_nodes(dc) if each.role == "worker"]
            present = [each for each in nodes if each.state in ("idle", "busy")]
            held = [each.name for each in present if each.free != each.cores]
            if not held or time.monotonic() > until:
                break
            time.sleep(0.1)
        yield from (f"{name} still holds cores of the job" for name in held)
