from __future__ import annotations

import msgspec
import pytest

from squall.cluster.assignments.records import GateJobRecord, PartRecord, PartTry, TryState
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.gate.router import DatacenterRouter, cores_needed, cores_taken
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import BundleManifest, Submission, Targets
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from tests.unit.cluster.gate.lab import report, status

RTT_MS = {"eu": 8.0, "us": 90.0, "ap": 200.0}


class ManualClock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    def boot_time(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


class RoutedGate:
    """A gate that knows three healthy datacenters, with the gates' committed state."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tables = AssignmentTables()
        self.known = KnownDatacenters({name: [f"{name}:7400"] for name in RTT_MS}, SETTINGS)
        self.events: list[tuple[str, str]] = []
        self.router = self.new_router()
        self.report()

    def new_router(self) -> DatacenterRouter:
        return DatacenterRouter(
            self.known,
            self.clock,
            lambda: self.tables,
            on_event=lambda what, name: self.events.append((what, name)),
        )

    def report(self) -> None:
        for _ in range(10):
            for name, rtt_ms in RTT_MS.items():
                now = self.clock.at
                self.known[name].answered(report(datacenter=name), rtt_ms, now, now)
            self.clock.at += 1.0

    def put(self, job: GateJobRecord) -> GateJobRecord:
        self.tables.op += 1
        self.tables.put_job(job)
        return job

    def route(
        self, job: GateJobRecord, *parts: int, refused: dict[str, str] | None = None
    ) -> RouteAnswer:
        others = {
            part.current.datacenter
            for part in job.parts
            if part.current is not None and part.index not in parts
        }
        return self.router.route(
            RouteQuestion(job=job, parts=parts, refused=refused or {}, taken=frozenset(others))
        )


SETTINGS = RoutingSettings()


def flow(name: str = "a", vus: int = 8, **changed: object) -> WorkflowManifest:
    return msgspec.structs.replace(
        WorkflowManifest(
            name=name,
            profile=Profile(model="closed", vus=vus, max_vus=vus, duration_s=10.0),
            steps=[StepManifest(name="get", protocol="http")],
        ),
        **changed,
    )


def job(
    number: int = 1,
    targets: Targets | None = None,
    weights: tuple[float, ...] = (1.0,),
    *workflows: WorkflowManifest,
) -> GateJobRecord:
    submission = Submission(
        bundle="",
        bundle_size=0,
        contents=BundleManifest(entry="", python="3.11"),
        manifest=FileManifest(path="shop.py", workflows=list(workflows or (flow(),))),
        options=RunOptions(url="http://target/"),
        targets=targets,
    )
    return GateJobRecord(
        job=JobId(f"g1-{number}"),
        op=number,
        principal="ann",
        key=f"k{number}",
        fingerprint="",
        submission=submission,
        created_ms=0,
        parts=tuple(PartRecord(index=i, weight=weight) for i, weight in enumerate(weights)),
    )


def tried(
    record: GateJobRecord, datacenter: str, state: TryState, handover: int = 1, reason: str = ""
) -> GateJobRecord:
    """The job with one more try of its first part."""
    attempt = PartTry(
        datacenter=datacenter,
        handover=HandoverNumber(handover),
        state=state,
        assigned_ms=0,
        reason=reason,
    )
    first = record.parts[0]
    kept = tuple(each for each in first.tries if each.handover != handover)
    changed = msgspec.structs.replace(first, tries=(*kept, attempt))
    return msgspec.structs.replace(record, parts=(changed, *record.parts[1:]))


def test_a_job_without_targets_goes_to_the_best_datacenter_and_says_why() -> None:
    gate = RoutedGate()
    answer = gate.route(gate.put(job()), 0)
    ((datacenter, why),) = answer.datacenters
    assert datacenter == "eu"
    lines = why.splitlines()
    assert lines[0] == "chosen of ap, eu, us"
    assert lines[1].startswith("  eu  healthy  score ")
    assert lines[1].endswith("   chosen")


def test_named_parts_go_where_they_are_named_also_one_alone() -> None:
    gate = RoutedGate()
    targets = Targets(weights=(("us", 0.6), ("ap", 0.4)))
    record = gate.put(job(1, targets, (0.6, 0.4)))
    assert [name for name, _ in gate.route(record, 0, 1).datacenters] == ["us", "ap"]
    ((datacenter, why),) = gate.route(record, 1).datacenters
    assert datacenter == "ap"
    assert why.startswith("chosen of ap for 40 % (named by the job)")


def test_any_two_are_different_and_a_moved_one_avoids_the_other() -> None:
    gate = RoutedGate()
    record = gate.put(job(1, Targets(count=2), (0.5, 0.5)))
    assert [name for name, _ in gate.route(record, 0, 1).datacenters] == ["eu", "us"]
    first = tried(record, "eu", "accepted")
    ((datacenter, why),) = gate.route(first, 1).datacenters
    assert datacenter == "us"
    assert "for 50 %" in why


def test_a_job_that_nothing_can_run_gets_the_reason() -> None:
    gate = RoutedGate()
    record = gate.put(job(1, Targets(count=4), (0.25,) * 4))
    answer = gate.route(record, 0, 1, 2, 3)
    assert answer.datacenters == ()
    assert answer.reason.startswith("4 datacenters wanted, 3 can run it")


def test_assigned_parts_take_cores_until_reports_count_them() -> None:
    gate = RoutedGate()
    sent: list[str] = []
    for number in range(1, 4):
        record = gate.put(job(number, None, (1.0,), flow(vus=100)))
        ((datacenter, _),) = gate.route(record, 0).datacenters
        sent.append(datacenter)
        gate.put(tried(record, datacenter, "assigned"))
    assert sorted(sent) == ["ap", "eu", "us"]
    gate.put(tried(job(1), sent[0], "accepted"))
    gate.router.sync()
    gate.report()
    gate.report()
    assert gate.known[sent[0]].unreported.cores == 0
    assert gate.known[sent[1]].unreported.cores > 0


def test_a_refusal_cools_down_once_and_not_again_for_a_new_primary() -> None:
    gate = RoutedGate()
    gate.put(tried(job(), "eu", "assigned"))
    gate.router.sync()
    gate.put(tried(job(), "eu", "refused", reason="needs 8 cores, 0 are free"))
    gate.router.sync()
    gate.router.sync()
    assert gate.events == [("assigned", "eu"), ("refused", "eu")]
    factor = gate.known["eu"].cool_down.factor(gate.clock.at)
    assert factor == SETTINGS.cool_down_factor
    gate.clock.at += SETTINGS.cool_down_s
    gate.new_router().sync()
    assert gate.known["eu"].cool_down.factor(gate.clock.at) == 1.0


def test_a_job_that_is_over_takes_no_cores() -> None:
    gate = RoutedGate()
    gate.put(tried(job(), "eu", "assigned"))
    gate.router.sync()
    assert gate.known["eu"].unreported.cores == 8
    gate.put(msgspec.structs.replace(tried(job(), "eu", "assigned"), state="cancelled"))
    gate.router.sync()
    assert gate.known["eu"].unreported.cores == 0


def test_unknown_datacenters_are_named_with_those_that_exist() -> None:
    gate = RoutedGate()
    assert gate.router.unknown(None) == ""
    assert gate.router.unknown(Targets(weights=(("eu", 1.0),))) == ""
    text = gate.router.unknown(Targets(weights=(("eu", 0.5), ("mars", 0.5))))
    assert text == "no datacenter mars; there are ap, eu, us"
    assert gate.router.unknown(Targets(fallback=("moon",))).startswith("no datacenter moon")


def test_a_datacenter_that_nobody_hears_is_unreachable() -> None:
    gate = RoutedGate()
    assert not gate.router.is_unreachable("eu")
    assert gate.router.is_unreachable("mars")


@pytest.mark.parametrize(
    ("workflow", "needed", "taken"),
    [
        (flow(vus=100), 1, 32),
        (flow(vus=4), 1, 4),
        (flow(vus=100, priority="normal"), 8, 24),
        (flow(vus=100, priority="exclusive"), 32, 32),
        (flow(vus=100, depends=["other"]), 1, 1),
    ],
)
def test_the_cores_of_a_job_follow_its_first_workflows(
    workflow: WorkflowManifest, needed: int, taken: int
) -> None:
    manifest = FileManifest(path="shop.py", workflows=[workflow])
    assert cores_needed(manifest, [status("eu")]) == {"eu": needed}
    assert cores_taken(manifest, 32) == taken


def test_a_part_for_a_degraded_datacenter_is_counted_apart() -> None:
    gate = RoutedGate()
    gate.router.sync()
    later = gate.clock.at
    gate.known["eu"].answered(report(datacenter="eu", healthy=2, committed=101), 8.0, later, later)
    gate.put(tried(job(), "eu", "assigned"))
    gate.router.sync()
    assert gate.events == [("assigned", "eu"), ("assigned_degraded", "eu")]
