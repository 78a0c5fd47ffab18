"""A datacenter without network, disk or processes: the state machine, the director, and
models of workers, on one virtual clock.

Effects are done at once; a test may hold them back. After every command the invariants of
the state are checked, and at every step that no share makes load twice at a moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import (
    Accepted,
    Command,
    CommandOutcome,
    CreateJob,
    StopJob,
    decode_outcome,
    encode,
)
from squall.cluster.datacenter.records import JobRecord, RecordFacts, WorkflowRecord
from squall.cluster.datacenter.state_machine import Datacenter, jobs_of
from squall.cluster.group.primary.job_end import JobEndFacts
from squall.cluster.ledger.interface import Entry, Fence, GroupMs, OpNumber
from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.primary.effects import (
    AssembleResult,
    CollectContext,
    DirectorEffect,
    Push,
    StoreCut,
    StoreValues,
    Submit,
    TakeRecord,
)
from squall.cluster.protocol.job_keys import AttemptKey, JobId, ShareKey
from squall.cluster.protocol.messages import (
    AttemptStatus,
    Counters,
    HeldRecord,
    Phase,
    Preparation,
    RegisterWorker,
    SessionAnswer,
    SessionRequest,
    WorkerLoad,
)
from squall.cluster.protocol.submission import BundleManifest, Submission
from squall.cluster.protocol.timers import Timers, timers
from squall.engine.plan.layers import topological_layers
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, Priority, Profile, StepManifest, WorkflowManifest
from tests.fakes.datacenter_checks import check_state

FAST = timers("fast", 1)


def workflow(
    name: str,
    *depends: str,
    vus: int = 8,
    duration_s: float = 10.0,
    always: bool = False,
    is_test: bool = True,
    priority: Priority = "auto",
    profile: Profile | None = None,
    wants: list[str] | None = None,
) -> WorkflowManifest:
    if profile is None:
        model = "closed" if is_test else "once"
        profile = Profile(model=model, vus=vus, max_vus=vus, duration_s=duration_s, grace_s=1.0)
    return WorkflowManifest(
        name=name,
        depends=list(depends),
        always=always,
        is_test=is_test,
        priority=priority,
        profile=profile,
        steps=[StepManifest(name="get", protocol="http" if is_test else "")],
        wants=wants or [],
    )


def submission(*workflows: WorkflowManifest, timeout_s: float | None = None) -> Submission:
    return Submission(
        bundle="b" * 64,
        bundle_size=10,
        contents=BundleManifest(entry="file.py", python="3.11"),
        manifest=FileManifest(path="file.py", workflows=list(workflows)),
        options=RunOptions(file="file.py"),
        timeout_s=timeout_s,
    )


def creation(sub: Submission, key: str = "k", principal: str = "ann") -> CreateJob:
    names = {w.name: w.depends for w in sub.manifest.workflows}
    layers = topological_layers(names, "workflow")
    return CreateJob(
        principal=principal,
        key=key,
        fingerprint=repr(sub),
        submission=sub,
        layers=tuple(tuple(layer) for layer in layers),
        timeout_ms=int((sub.timeout_s or 0) * 1000),
    )


class Log:
    """Entries one after the other, on a clock that a test moves."""

    def __init__(self) -> None:
        self.machine = Datacenter()
        self.op = 0
        self.group_ms: int = 1000
        self.bodies: list[Entry] = []

    def apply(self, command: Command) -> CommandOutcome:
        self.op += 1
        body = encode(command)
        entry = Entry(OpNumber(self.op), GroupMs(self.group_ms), 1, body)
        self.bodies.append(entry)
        outcome = decode_outcome(self.machine.apply(entry))
        check_state(self.machine)
        return outcome


@dataclass
class Model:
    """One attempt in the model of a worker."""

    preparation: Preparation
    phase: Phase = "preparing"
    ready_at: float = math.inf
    loaded: bool = False
    lease_until: float = -math.inf
    began: float = 0.0
    joined_s: float = 0.0
    actions: int = 0
    stop_at: float = math.inf
    done: bool = False
    cut: str = ""
    record: RecordFacts | None = None
    reported_s: float = 0.0
    refusal: AttemptStatus | None = None


@dataclass
class ModelWorker:
    node: str
    cores: int
    boot: str = "b1"
    alive: bool = True
    """The process runs."""
    connected: bool = True
    registered: bool = False
    dead_boots: tuple[str, ...] = ()
    """Former boots that its directory names and whose processes it has reaped."""
    died_at: float | None = None
    """When the last of them died, if its launcher saw it."""
    refuse: Callable[[AttemptKey], AttemptStatus | None] = lambda _: None
    prepare_s: float = 0.05
    idle: bool = False
    """Its users execute nothing."""
    note: str = ""
    """What it says of its running attempts beside their numbers."""
    error: str = ""
    next_at: float = 0.0
    sequence: int = 0
    held: dict[AttemptKey, Model] = field(default_factory=dict)
    unknown: dict[AttemptKey, None] = field(default_factory=dict)
    left: dict[AttemptKey, Model] = field(default_factory=dict)
    """What a dead boot left behind."""
    descriptors: int = 0
    draining: bool = False
    drain_left_s: float = 0.0
    load: WorkerLoad | None = None
    round_trip_s: float = 0.0
    """How long its requests and their answers take together, half of it each way."""
    drained: bool = False

    def kill(self) -> None:
        self.alive = False
        self.left.update(self.held)
        self.held, self.unknown = {}, {}

    def restart(self, *, proven: bool = True) -> None:
        self.alive, self.registered = True, False
        if proven:
            self.dead_boots = (self.boot, *self.dead_boots)
        self.boot = next_boot(self.boot)

    def finish(self, count: int) -> None:
        """So many of its running shares have done all that was planned for them."""
        running = [model for model in self.held.values() if model.phase == "running"]
        for model in running[:count]:
            model.done = True


def next_boot(boot: str) -> str:
    return f"b{int(boot[1:]) + 1}"


class Bench(Log):
    def __init__(self, times: Timers = FAST, **workers: int) -> None:
        super().__init__()
        self.times = times
        self.now = 100.0
        self.workers = {node: ModelWorker(node, cores) for node, cores in workers.items()}
        self.director = self._lead()
        self.hold: Callable[[DirectorEffect], bool] = lambda _: False
        self.held_effects: list[DirectorEffect] = []
        self.log: list[str] = []
        self.pushes: list[str] = []
        self.loads: dict[ShareKey, list[tuple[float, float, AttemptKey]]] = {}
        self.assembled: list[JobId] = []
        self.manager_up = True
        self.quorum = True
        self.pushes_arrive = True
        # What arrives later, and when.
        self.on_the_way: list[tuple[float, Callable[[], None]]] = []
        self.errors: dict[str, str] = {}
        """Workflows whose code raises as soon as it runs, with what it says."""
        for worker in self.workers.values():
            self.register(worker)

    def _lead(self) -> Director:
        return Director(self.machine, self.times, group="g", now=self.now, group_ms=self.group_ms)

    # What people do.

    def submit(
        self, *workflows: WorkflowManifest, key: str = "", timeout_s: float | None = None
    ) -> JobId:
        command = creation(submission(*workflows, timeout_s=timeout_s), key or f"k{self.op}")
        self.settle()
        outcome = self.apply(command)
        assert isinstance(outcome, Accepted), outcome
        self.settle()
        return outcome.job

    def cancel(self, job: JobId, *, now: bool = False) -> None:
        self.apply(StopJob(job=job, kind="cancelled", reason="cancelled by ann", now=now))
        self.settle()

    def job(self, job: JobId) -> JobRecord:
        return self.machine.tables.jobs[job]

    def wf(self, job: JobId, name: str) -> WorkflowRecord:
        found = self.job(job).workflow(name)
        assert found is not None
        return found

    def restart_manager(self) -> None:
        """A new primary knows the log and nothing else."""
        slices = list(self.machine.capture().slices())
        before = self.machine.digest()
        self.machine = Datacenter()
        self.machine.load(slices)
        assert self.machine.digest() == before
        self.director = self._lead()
        self.held_effects = []
        self.settle()

    # Time.

    def run(self, seconds: float, step_s: float = 0.05) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += step_s
            self.group_ms += round(step_s * 1000)
            for worker in self.workers.values():
                self._live(worker, step_s)
            due = [arrive for at, arrive in self.on_the_way if at <= self.now + 1e-9]
            self.on_the_way = [each for each in self.on_the_way if each[0] > self.now + 1e-9]
            for arrive in due:
                arrive()
            if self.manager_up:
                for worker in self.workers.values():
                    if worker.alive and worker.connected and self.now >= worker.next_at:
                        self.session(worker)
                self.settle()

    def until(self, done: Callable[[], bool], limit_s: float = 300.0) -> float:
        began = self.now
        while not done():
            assert self.now - began < limit_s, "it does not happen: " + "; ".join(self.log[-5:])
            self.run(0.05)
        return self.now - began

    def finish(self, job: JobId, limit_s: float = 300.0) -> JobRecord:
        self.until(lambda: self.job(job).over, limit_s)
        return self.job(job)

    # The driver.

    def settle(self) -> None:
        for _ in range(200):
            effects = self.director.tick(self.now, self.group_ms)
            if not effects:
                return
            for effect in effects:
                if self.hold(effect):
                    self.held_effects.append(effect)
                else:
                    self.do(effect)
        raise AssertionError(f"the director never rests: {effects}")

    def do(self, effect: DirectorEffect) -> None:
        director = self.director
        match effect:
            case Submit():
                try:
                    encode(effect.command)
                except (SquallError, OverflowError) as error:
                    # As the effect runner does: the same command would fail again.
                    director.failed(effect.tag, self.now)
                    director.fail_job(jobs_of(effect.command, self.machine.tables)[0], error)
                    return
                outcome = self.apply(effect.command)
                self.log.append(f"{type(effect.command).__name__} {outcome}")
                director.submitted(effect.tag, outcome, self.now)
            case StoreCut():
                director.cut_stored(effect.tag, effect.key, self.cut(effect.key))
            case TakeRecord():
                # Not by its name: a worker may have lost its name to another one.
                models = [w.held[effect.key] for w in self.workers.values() if effect.key in w.held]
                model = models[0]
                assert model.record is not None
                director.record_arrived(effect.tag, model.record)
            case CollectContext():
                director.context_collected(effect.tag, effect.job, effect.workflow)
            case StoreValues():
                director.values_stored(effect.tag, effect.job, effect.workflow, "v" * 64, 5)
            case AssembleResult():
                self.assembled.append(effect.job)
                result = JobEndFacts(result="r" * 64, size=7, history="h" * 64, history_size=3)
                director.result_assembled(effect.tag, effect.job, result)
            case Push():
                self.pushes.append(effect.node)
                worker = self.workers.get(effect.node)
                if worker is not None and self.pushes_arrive:
                    worker.next_at = self.now + worker.round_trip_s / 2

    def cut(self, key: AttemptKey) -> RecordFacts | None:
        """What telemetry brought of an attempt: up to its last whole second."""
        for worker in self.workers.values():
            model = worker.held.get(key) or worker.left.get(key)
            if model is not None and model.reported_s > 0:
                return facts_of(key, model, model.reported_s, complete=False)
        return None

    # Workers.

    def usurp(self, node: str, *, connected: bool) -> ModelWorker:
        """Another worker with an empty directory takes the name of one that lives on, cut off
        from the managers or not. Returns the one that lives on."""
        former = self.workers[node]
        former.connected = connected
        self.workers[f"{node} {former.boot}"] = former
        self.workers[node] = ModelWorker(node, former.cores, boot=next_boot(former.boot))
        return former

    def add(self, node: str, cores: int) -> None:
        """A worker that nobody knew comes."""
        self.workers[node] = ModelWorker(node, cores)
        self.register(self.workers[node])

    def register(self, worker: ModelWorker) -> None:
        held = [
            facts_of(key, model, model.reported_s, complete=model.record is not None)
            for key, model in sorted(worker.left.items())
            if model.phase in ("running", "ended")
        ]
        request = RegisterWorker(
            node=worker.node,
            boot=worker.boot,
            datacenter="dc",
            cores=worker.cores,
            pid=1,
            host="h",
            dead_boots=worker.dead_boots,
            former_ended_ago_s=None if worker.died_at is None else self.now - worker.died_at,
            descriptors=worker.descriptors,
            held=[HeldRecord(f.key, f.digest, f.size, f.complete) for f in held],
        )
        command = self.director.name_in_use(request, self.now)
        command = command or self.director.register(request, held, self.group_ms)
        if isinstance(command, str):
            self.log.append(command)
            return
        outcome = self.apply(command)
        worker.registered = isinstance(outcome, Accepted)
        worker.left = {}
        worker.next_at = self.now
        self.settle()

    def session(self, worker: ModelWorker) -> SessionAnswer | None:
        if not self.quorum:
            return None
        worker.sequence += 1
        statuses = [status_of(key, model, worker.note) for key, model in worker.held.items()]
        statuses += [AttemptStatus(key=key, phase="unknown") for key in worker.unknown]
        worker.unknown = {}
        request = SessionRequest(
            node=worker.node,
            boot=worker.boot,
            sequence=worker.sequence,
            attempts=statuses,
            draining=worker.draining,
            drain_left_s=worker.drain_left_s,
            load=worker.load,
            round_trip_s=worker.round_trip_s,
        )
        if worker.round_trip_s:
            worker.next_at = math.inf
            arrives = self.now + worker.round_trip_s / 2
            self.on_the_way.append((arrives, lambda: self._far_session(worker, request)))
            return None
        answer = self._session_answer(request)
        worker.next_at = self.now + answer.interval_s
        if answer.register:
            self.register(worker)
            return answer
        self._obey(worker, answer)
        return answer

    def _far_session(self, worker: ModelWorker, request: SessionRequest) -> None:
        answer = self._session_answer(request)

        def arrive() -> None:
            worker.next_at = min(worker.next_at, self.now + answer.interval_s)
            self._obey(worker, answer)

        self.settle()
        self.on_the_way.append((self.now + worker.round_trip_s / 2, arrive))

    def _session_answer(self, request: SessionRequest) -> SessionAnswer:
        return self.director.session(
            request,
            arrived=self.now,
            now=self.now,
            group_ms=self.group_ms,
            fence=Fence(0, 1),
            committed=self.op,
        )

    def _obey(self, worker: ModelWorker, answer: SessionAnswer) -> None:
        worker.drained = answer.drained
        for order in answer.prepare:
            if order.key not in worker.held:
                worker.held[order.key] = Model(order, ready_at=self.now + worker.prepare_s)
                worker.next_at = min(worker.next_at, self.now + worker.prepare_s)
        for key in answer.granted:
            model = worker.held.get(key)
            if model is not None:
                model.lease_until = max(model.lease_until, self.now + answer.lease_s)
        for go in answer.go:
            model = worker.held.get(go.key)
            if model is not None and model.phase == "ready" and model.lease_until > self.now:
                elapsed_s = go.elapsed_s + worker.round_trip_s / 2
                model.phase, model.began, model.joined_s = "running", self.now, elapsed_s
                model.reported_s = elapsed_s
        for stop in answer.stop:
            model = worker.held.get(stop.key)
            if model is None:
                worker.unknown[stop.key] = None
                worker.next_at = self.now
            elif model.phase in ("preparing", "ready", "running"):
                grace_s = 0.0 if stop.now else 0.3
                if stop.drop:
                    del worker.held[stop.key]
                elif model.stop_at == math.inf:
                    model.stop_at, model.cut = self.now + grace_s, stop.why or "stopped"
        for key in answer.free:
            worker.held.pop(key, None)

    def _live(self, worker: ModelWorker, step_s: float) -> None:
        if not worker.alive:
            return
        for key, model in worker.held.items():
            if model.phase == "preparing" and self.now >= model.ready_at:
                if not model.loaded:
                    model.loaded = True
                    model.refusal = worker.refuse(key)
                    worker.next_at = self.now
                if model.refusal is not None:
                    model.phase = "refused"
                elif not model.preparation.held or self.now <= model.lease_until:
                    # Its users open only under a lease, which a held job does not get.
                    model.phase = "ready"
                    worker.next_at = self.now
            if model.phase in ("preparing", "ready") and self.now <= model.lease_until:
                # Its users are opened, and their start actions may send requests.
                self._load(key, self.now - step_s, self.now)
            if model.phase in ("preparing", "ready") and self.now >= model.stop_at:
                self._end(worker, key, model, model.cut)
            if model.phase == "running":
                self._running(worker, key, model, step_s)

    def _running(self, worker: ModelWorker, key: AttemptKey, model: Model, step_s: float) -> None:
        profile = model.preparation.spec.profile
        elapsed_s = model.joined_s + self.now - model.began
        if self.now > model.lease_until:
            self._end(worker, key, model, "lease ended")
            return
        self._load(key, self.now - step_s, self.now)
        if not worker.idle:
            model.actions += model.preparation.spec.users
        if elapsed_s - model.reported_s >= 1.0:
            model.reported_s = elapsed_s
        error = worker.error or self.errors.get(key.workflow, "")
        if self.now >= model.stop_at:
            self._end(worker, key, model, model.cut)
        elif elapsed_s >= profile.duration_s - 1e-9 or model.done:
            self._end(worker, key, model, "")
        elif error:
            self._end(worker, key, model, "", error)

    def _end(
        self, worker: ModelWorker, key: AttemptKey, model: Model, cut: str, error: str = ""
    ) -> None:
        elapsed_s = model.joined_s + self.now - model.began if model.began else 0.0
        model.phase = "ended"
        model.reported_s = elapsed_s
        facts = facts_of(key, model, elapsed_s, complete=True)
        model.record = msgspec.structs.replace(facts, cut=cut, error=error)
        worker.next_at = self.now

    def _load(self, key: AttemptKey, begin: float, end: float) -> None:
        spans = self.loads.setdefault(key.of, [])
        if spans and spans[-1][2] == key and begin <= spans[-1][1] + 1e-6:
            spans[-1] = (spans[-1][0], end, key)
        else:
            spans.append((begin, end, key))
        for other_begin, other_end, other in spans[:-1]:
            overlap = min(end, other_end) - max(begin, other_begin)
            assert other == key or overlap <= 1e-6, f"{key} and {other} make load at once"


def facts_of(key: AttemptKey, model: Model, upto_s: float, *, complete: bool) -> RecordFacts:
    length_s = max(upto_s - model.joined_s, 0.0)
    made = round(length_s * 10)
    return RecordFacts(
        key=key,
        digest=f"{key}".ljust(64, "."),
        size=100,
        complete=complete,
        counters=Counters(made=made, finished=made, actions=made),
        joined_s=model.joined_s,
        silent_from_s=upto_s,
        elapsed_s=upto_s,
        fastest_s=0.01,
    )


def status_of(key: AttemptKey, model: Model, note: str = "") -> AttemptStatus:
    record = model.record
    if model.phase == "refused" and model.refusal is not None:
        return model.refusal
    return AttemptStatus(
        key=key,
        phase=model.phase,
        loaded=model.loaded and model.phase == "preparing",
        counters=Counters(actions=model.actions),
        text=note if model.phase == "running" else "",
        record=record.digest if record is not None else "",
        record_size=record.size if record is not None else 0,
    )


def texts(bench: Bench, job: JobId) -> Iterable[str]:
    return [event.text for event in bench.machine.tables.events.get(job, ())]
