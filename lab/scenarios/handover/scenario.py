"""Clients submit jobs of one to three parts to gates and to datacenters. Primaries are replaced,
links are cut in one or both directions, messages are lost, repeated and late, jobs are cancelled,
adjusted, refused, and in some seeds the gates are recovered from an old copy by force.

Afterwards everything heals: every job must end, every datacenter must have settled and forgotten
every handover, and nothing may be reserved.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from lab.mutants.handover import MUTANTS, mutated
from lab.scenarios.handover.checks import HandoverChecks
from lab.scenarios.handover.group_model import GroupModel, Term
from lab.scenarios.handover.nodes import TIMERS, DatacenterPrimary, GatePrimary
from lab.scenarios.handover.timeline import LossyNetwork, Reply, Timeline
from lab.sim.checks import check
from lab.sim.errors import NotLive
from lab.sim.run import Scenario
from lab.sim.world import World
from squall.cluster.assignments import commands as gate_commands
from squall.cluster.assignments.commands import AdjustParts, CreateGateJob, PartLoad
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.datacenter import commands
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome
from squall.cluster.protocol.gates.gate_messages import PartReport
from squall.cluster.protocol.job_commands import ExtendJob, StopJob
from squall.cluster.protocol.submission import BundleManifest, Submission, Targets
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest

replace = msgspec.structs.replace
GATES = "the gates"
"""The answer to a submission that belongs to the gates."""
FAULTS_S = 30.0
HEALED_S = 240.0
PROFILE = Profile(model="closed", vus=1, max_vus=1, duration_s=5.0, grace_s=1.0)
MANIFEST = FileManifest(
    path="file.py",
    workflows=[
        WorkflowManifest(name="w", profile=PROFILE, steps=[StepManifest(name="s", protocol="http")])
    ],
)
PLAN = Submission(
    bundle="",
    bundle_size=0,
    contents=BundleManifest(entry="file.py", python="3.11"),
    manifest=MANIFEST,
    options=RunOptions(file="file.py"),
)
DROPS = Submission(
    bundle="",
    bundle_size=0,
    contents=BundleManifest(entry="file.py", python="3.11"),
    manifest=MANIFEST,
    options=RunOptions(file="file.py"),
    targets=Targets(count=1, on_loss="drop"),
)


class Handover:
    """One seed: the groups, the network between them, the clients and the faults."""

    def __init__(self, world: World) -> None:
        self.random: Random = world.random("handover")
        self.timeline = Timeline()
        self.network = LossyNetwork(self.timeline, self.random)
        self.checks = HandoverChecks(self.timeline, lambda: self.gates)
        self.route = self._route
        self._world = world
        self._shows = bool(world.parameter("trace", 0))
        waits = world.mutant == "barrier_hold_and_wait"
        self.timers = replace(TIMERS, hold_s=1e6) if waits else TIMERS
        self.run_ms = 10**9 if waits else 60_000
        draw = self.random
        self.network.loss = draw.choice((0.0, 0.05, 0.3))
        self.network.duplicate = draw.choice((0.0, 0.2))
        self.network.late = draw.choice((0.0, 0.05, 0.2))
        self.names = ["eu", "us", "ap"][: draw.randint(2, 3)]
        self._cores = draw.randint(1, 2)
        self._refuses = draw.choice((0.0, 0.1, 0.4))
        self._recovered = 0
        self.gates = GroupModel(
            self.timeline,
            draw,
            Assignments,
            gate_commands.encode,
            self._gates_committed,
        )
        self.groups: dict[str, GroupModel[Assignments]] = {}
        self.gate: dict[int, GatePrimary] = {}
        self.led_since: dict[int, float] = {}
        self.datacenters: dict[str, GroupModel[Datacenter]] = {}
        self.primary: dict[str, DatacenterPrimary] = {}
        for name in self.names:
            self.datacenters[name] = GroupModel(
                self.timeline,
                draw,
                Datacenter,
                commands.encode,
                lambda group, command, outcome, name=name: self._datacenter_committed(
                    name, group, command, outcome
                ),
            )
            self._lead_datacenter(name)
        self._lead_gates(self.gates)
        for group in (self.gates, *self.datacenters.values()):
            group.slow = draw.choice((0.0, 0.3))
        if draw.random() < 0.3:
            # Some datacenters hear of the gates only after clients have submitted there.
            for name in self.names:
                self.network.cut("gates", name, draw.uniform(0.0, 3.0))
        self.waiting: set[str] = set()

    # What is committed.

    def _gates_committed(
        self, group: GroupModel[Assignments], command: Any, outcome: CommandOutcome
    ) -> None:
        self._note(group.machine.tables.group or "gates", command, outcome)
        self.checks.gates_committed(group, command, outcome)

    def _datacenter_committed(
        self, name: str, group: GroupModel[Datacenter], command: Any, outcome: CommandOutcome
    ) -> None:
        self._note(name, command, outcome)
        self.checks.datacenter_committed(group, command, outcome, name)

    def _note(self, source: str, command: Any, outcome: CommandOutcome) -> None:
        """`--set trace=1` shows every command; it costs half of the speed."""
        if self._shows:
            text = f"{self.timeline.now:9.3f} {command}"[:400]
            self._world.trace.note(source, f"{text} -> {outcome}")

    # What the primaries need.

    def is_unreachable(self, datacenter: str) -> bool:
        return self.silent_s(datacenter) > 2.0

    def silent_s(self, datacenter: str) -> float:
        network = self.network
        return max(network.cut_s("gates", datacenter), network.cut_s(datacenter, "gates"))

    def hears_of_gates(self, datacenter: str) -> None:
        """A client submits at the very moment, and tries twice: one try may create a job before the
        gates are known, while the other is sent to the gates."""
        draw, key = self.random, f"at {datacenter}"
        if key in self.waiting or draw.random() < 0.5 or self.timeline.now > FAULTS_S:
            return
        for longest_s in (0.03, 0.6):
            self.timeline.after(
                draw.uniform(0.0, longest_s),
                lambda: self.submit_to_datacenter(datacenter, key, direct=False),
            )

    def handle_order(self, datacenter: str, message: Any, reply: Reply) -> None:
        self.primary[datacenter].handle_order(message, reply)

    def handle_report(self, address: str, report: PartReport, reply: Reply) -> None:
        group = self.groups.get(address)
        if group is not None and id(group) in self.gate:
            self.gate[id(group)].handle_report(report, reply)

    def _route(self, question: RouteQuestion) -> RouteAnswer:
        free = [name for name in self.names if name not in question.taken]
        willing = [name for name in free if name not in question.refused] or free
        if len(free) < len(question.parts):
            return RouteAnswer(reason="too few datacenters")
        if len(willing) < len(question.parts):
            willing = free
        chosen = self.random.sample(willing, len(question.parts))
        return RouteAnswer(datacenters=tuple((name, "drawn") for name in chosen))

    # Groups.

    def _lead_gates(self, group: GroupModel[Assignments]) -> None:
        term = group.lead()
        self.led_since[id(group)] = self.timeline.now
        self.gate[id(group)] = GatePrimary(self, term, "g1", self.names)

        def known() -> None:
            name = group.machine.tables.group
            if name:
                self.groups[name] = group
            else:
                self.timeline.after(0.05, known)

        known()

    def _lead_datacenter(self, name: str) -> None:
        term = self.datacenters[name].lead()
        self.primary[name] = DatacenterPrimary(self, name, term, self._cores, self._refuses)

    def replace_gate(self, group: GroupModel[Assignments]) -> None:
        self._world.count("gates replaced")
        self._zombie(group.term)
        group.depose()
        self.timeline.after(self.random.uniform(0.1, 3.0), lambda: self._lead_again(group))

    def _lead_again(self, group: GroupModel[Assignments]) -> None:
        if group.term is None:
            self._lead_gates(group)

    def replace_manager(self, name: str) -> None:
        self._world.count("managers replaced")
        self._zombie(self.datacenters[name].term)
        self.datacenters[name].depose()
        away_s = self.random.choice((0.3, 2.0, 10.0))

        def lead() -> None:
            if self.datacenters[name].term is None:
                self._lead_datacenter(name)

        self.timeline.after(self.random.uniform(0.1, away_s), lead)

    def _zombie(self, term: Term[Any] | None) -> None:
        """Lets a former primary act for some time before it learns that it was replaced."""

        def end() -> None:
            if term is not None:
                term.ended = True

        self.timeline.after(self.random.choice((0.0, 1.0, 6.0)), end)

    def recover_gates(self) -> None:
        """A forced recovery from a copy that lacks the last commands. The old group may live on for
        a while, as after a mistake of its operator."""
        self._world.count("gates recovered by force")
        old = self.gates
        lost = self.random.choice((0, 1, 3, 8))
        keep = max(len(old.entries) - lost, 2)
        self._recovered += 1
        name = f"g{self._recovered + 1}"
        self.gates = old.copy(keep, old.epoch + 1000, name)
        self.groups[name] = self.gates
        self.checks.recovered(self.gates)
        self._lead_gates(self.gates)

        def end() -> None:
            if old.term is not None:
                old.term.ended = True
                old.depose()

        self.timeline.after(self.random.choice((0.0, 4.0, 12.0)), end)

    # Clients.

    def submit_to_gates(self, key: str, create: CreateGateJob) -> None:
        """Tries until the key has a job, in one of the logs."""
        self.waiting.add(key)
        primary = self.gate.get(id(self.gates))

        def done(outcome: CommandOutcome | None) -> None:
            if isinstance(outcome, Accepted):
                self.waiting.discard(key)
            else:
                self.timeline.after(1.0, lambda: self.submit_to_gates(key, create))

        if primary is None or not primary.term.leads:
            self.timeline.after(1.0, lambda: self.submit_to_gates(key, create))
        else:
            primary.commit(create, done)

    def submit_to_datacenter(self, name: str, key: str, *, direct: bool) -> None:
        """Tries until the key has a job; the datacenter may send the client to the gates."""
        self.waiting.add(key)

        def answered(answer: str) -> None:
            if answer == GATES:
                self.submit_to_gates(key, self._creation(key, 1, 0))
                return
            self.waiting.discard(key)
            check("." not in answer, f"{key} at {name} finds the part {answer}")

        def failed() -> None:
            self.timeline.after(0.5, lambda: self.submit_to_datacenter(name, key, direct=direct))

        self.network.request(
            "client",
            name,
            lambda reply: self._handle_submission(name, key, direct, reply),
            answered,
            failed,
        )

    def _handle_submission(self, name: str, key: str, direct: bool, reply: Reply) -> None:
        """As `ClientApi.accept`: a known key finds its job, gates are named if they are known."""
        term = self.primary[name].term
        tables = term.machine.tables

        def gates_take_it() -> bool:
            return bool(tables.gates) and not direct and ("ann", key) not in tables.keys

        def done(outcome: CommandOutcome | None) -> None:
            if isinstance(outcome, Accepted):
                reply(str(outcome.job))
            else:
                reply(GATES if gates_take_it() else None)

        if not term.leads or not tables.group:
            reply(None)
        elif gates_take_it():
            reply(GATES)
        else:
            command = commands.CreateJob(
                principal="ann",
                key=key,
                fingerprint="f",
                submission=PLAN,
                layers=(("w",),),
                direct=direct,
            )
            term.submit(command, done)

    def _creation(self, key: str, parts: int, timeout_ms: int) -> CreateGateJob:
        drops = parts == 1 and self.random.random() < 0.3
        return CreateGateJob(
            principal="ann",
            key=key,
            fingerprint="f",
            submission=DROPS if drops else PLAN,
            weights=(1.0 / parts,) * parts,
            timeout_ms=timeout_ms,
        )

    def submit_some(self) -> None:
        draw = self.random
        for index in range(draw.randint(2, 5)):
            key = f"k{index}"
            parts = draw.randint(1, len(self.names))
            timeout_ms = draw.choice((0, 15_000, 40_000))
            create = self._creation(key, parts, timeout_ms)
            at_s = draw.uniform(0.5, FAULTS_S * 0.7)
            if draw.random() < 0.8:
                self.timeline.after(at_s, lambda k=key, c=create: self.submit_to_gates(k, c))
                if draw.random() < 0.3:
                    where = draw.choice(self.names)
                    self.timeline.after(
                        at_s + draw.uniform(0.0, 8.0),
                        lambda k=key, n=where: self.submit_to_datacenter(n, k, direct=True),
                    )
            else:
                where = draw.choice(self.names)
                # Around the moment at which the datacenter hears of the gates.
                self.timeline.after(
                    draw.uniform(0.0, draw.choice((0.5, 4.0))),
                    lambda k=key, n=where: self.submit_to_datacenter(n, k, direct=False),
                )

    def touch_a_job(self) -> None:
        """Cancels, extends or adjusts a job of the gates."""
        primary = self.gate.get(id(self.gates))
        if primary is None or not primary.term.leads:
            return
        tables = primary.term.machine.tables
        if not tables.active:
            return
        job = tables.jobs[self.random.choice(sorted(tables.active))]
        what = self.random.random()
        if what < 0.5:
            now = self.random.random() < 0.5
            primary.commit(
                StopJob(job=job.job, kind="cancelled", reason="cancelled by ann", now=now),
                lambda outcome: None,
            )
        elif what < 0.7:
            primary.commit(ExtendJob(job=job.job, by_ms=2000, cap_ms=4000), lambda outcome: None)
        else:
            loads = tuple(PartLoad(rate_per_s=1.0) for _ in job.parts)
            primary.commit(
                AdjustParts(job=job.job, workflows=("w",), rate_per_s=2.0, parts=loads),
                lambda outcome: None,
            )

    # Faults.

    def faults(self) -> None:
        draw = self.random
        for _ in range(draw.choice((0, 1, 3, 6))):
            at_s = draw.uniform(0.5, FAULTS_S - 1.0)
            self.timeline.after(at_s, lambda: self.replace_gate(self.gates))
        for _ in range(draw.choice((0, 1, 3, 6))):
            name = draw.choice(self.names)
            at_s = draw.uniform(0.5, FAULTS_S - 1.0)
            self.timeline.after(at_s, lambda n=name: self.replace_manager(n))
        for _ in range(draw.choice((0, 1, 4))):
            name = draw.choice(self.names)
            links = [("gates", name), (name, "gates")]
            cut = draw.sample(links, draw.randint(1, 2))
            at_s, for_s = draw.uniform(0.5, FAULTS_S), draw.choice((0.5, 3.0, 15.0))
            for source, target in cut:
                self.timeline.after(
                    at_s, lambda s=source, t=target, f=for_s: self.network.cut(s, t, f)
                )
        for _ in range(draw.choice((0, 1, 3))):
            self.timeline.after(draw.uniform(2.0, FAULTS_S), self.touch_a_job)
        if draw.random() < 0.2:
            self.timeline.after(draw.uniform(3.0, FAULTS_S - 2.0), self.recover_gates)

    def heal(self) -> None:
        self.network.heal()
        for group in (self.gates, *self.datacenters.values()):
            group.slow = 0.0
        if self.gates.term is None:
            self._lead_gates(self.gates)
        for name, group in self.datacenters.items():
            if group.term is None:
                self._lead_datacenter(name)
            self.primary[name].execution.trouble = False

    def watch_time(self) -> None:
        if self.gates.term is not None:
            self.checks.on_time(self.gates, self.led_since[id(self.gates)])
        self.timeline.after(1.0, self.watch_time)

    def left_over(self) -> list[str]:
        """Lists what is not over yet."""
        tables = self.gates.machine.tables
        found = [f"{key} has no job" for key in sorted(self.waiting)]
        found += [f"{name} is {tables.jobs[name].state}" for name in sorted(tables.active)]
        found += [f"{name} is not forgotten everywhere" for name in sorted(tables.open)]
        for name, group in self.datacenters.items():
            here = group.machine.tables
            found += [f"{job} is {here.jobs[job].state} in {name}" for job in sorted(here.active)]
            open_ = [job for job, record in here.gated.items() if not record.closed]
            found += [f"{job} is open in {name}" for job in sorted(open_)]
            found += [f"a core of {name} is taken" for _ in here.slots]
        return found


async def scenario(world: World) -> None:
    with mutated(world.mutant):
        handover = Handover(world)
        handover.submit_some()
        handover.faults()
        handover.watch_time()
        handover.timeline.run(FAULTS_S)
        handover.heal()
        timeline = handover.timeline
        until = timeline.now + HEALED_S
        if not timeline.run(until, lambda: not handover.left_over()):
            raise NotLive(f"after {HEALED_S:g} s without faults: {handover.left_over()[0]}")
        handover.checks.one_job_per_key()
        tables = handover.gates.machine.tables
        check(not tables.alarms, f"alarm: {tables.alarms}")
        for group in handover.datacenters.values():
            alarms = group.machine.tables.alarms
            check(not alarms, f"alarm: {alarms}")
        world.count("handovers")
        for _ in handover.checks.started:
            world.count("parts started")


SCENARIO = Scenario(
    "handover",
    "gates and datacenters hand over jobs; logs and network are models",
    scenario,
    MUTANTS,
)
