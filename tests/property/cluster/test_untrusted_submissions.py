"""Whatever a client submits: nothing raises, the job ends, and a plain job beside it completes."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squall.api.errors import SquallError
from squall.cluster.datacenter import job_rules
from squall.cluster.datacenter.commands import Accepted, CreateJob, encode
from squall.cluster.protocol.submission import (
    BundleFile,
    BundleManifest,
    Submission,
    SubmissionPart,
)
from squall.cluster.protocol.submission_limits import submission_fault
from squall.engine.run_options import ProfileFlags, RunOptions
from squall.stats.manifest import (
    FileManifest,
    MetricManifest,
    Profile,
    Stage,
    StepManifest,
    UseManifest,
    WorkflowManifest,
    WorkflowPart,
)
from tests.fakes.datacenter import Bench, creation, submission, workflow

MANY = 2**63 - 1
FEW = 5_000
"""Users that a test can hold in memory when no limit protects it."""


def floats(usual: float) -> st.SearchStrategy[float]:
    odd = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-300, 1e18, 1e300])
    return st.one_of(st.just(usual), st.just(usual), odd, st.floats())


def ints(usual: int, most: int) -> st.SearchStrategy[int]:
    odd = st.sampled_from([0, -1, 1, most, -most])
    return st.one_of(st.just(usual), st.just(usual), odd, st.integers(-most, most))


def texts(usual: str) -> st.SearchStrategy[str]:
    odd = st.sampled_from(["", " ", "a b", "a:b", "a\nb", "\x1b[2J", "\x00", "ü", "x" * 300])
    long = st.just("y" * 100_000)
    return st.one_of(st.just(usual), st.just(usual), odd, st.text(max_size=8), long)


def lists(usual: str) -> st.SearchStrategy[list[str]]:
    return st.one_of(st.just([]), st.lists(texts(usual), max_size=3))


def profiles(most: int) -> st.SearchStrategy[Profile]:
    stages = st.lists(st.builds(Stage, floats(2.0), floats(5.0)), max_size=3)
    return st.builds(
        Profile,
        model=st.sampled_from(["closed", "iterations", "ramp", "open", "open-ramp", "once"]),
        vus=ints(4, most),
        max_vus=ints(4, most),
        duration_s=floats(2.0),
        iterations=ints(3, most),
        rate_per_s=floats(5.0),
        stages=stages.map(tuple),
        think_s=st.one_of(st.none(), st.tuples(floats(0.1), floats(0.2))),
        pacing_s=st.one_of(st.none(), floats(0.5)),
        grace_s=floats(1.0),
    )


def steps(most: int) -> st.SearchStrategy[StepManifest]:
    return st.builds(
        StepManifest,
        name=texts("get"),
        after=lists("get"),
        layer=ints(0, most),
        protocol=texts("http"),
        weight=st.one_of(st.none(), ints(1, most)),
        line=ints(3, most),
        expect=st.lists(st.tuples(ints(200, most), ints(399, most)), max_size=2),
        timeout_s=st.one_of(st.none(), floats(3.0)),
    )


def workflows(most: int) -> st.SearchStrategy[WorkflowManifest]:
    return st.builds(
        WorkflowManifest,
        name=st.one_of(st.sampled_from(["A", "B", "C"]), texts("A")),
        line=ints(1, most),
        depends=st.one_of(st.just([]), st.lists(st.sampled_from(["A", "B", "", "?"]), max_size=2)),
        always=st.booleans(),
        is_test=st.booleans(),
        priority=st.sampled_from(["low", "normal", "high", "exclusive", "auto"]),
        profile=profiles(most),
        steps=st.lists(steps(most), max_size=2),
        shape=texts("get"),
        connections_per_vu=ints(1, most),
        checks=lists("ok"),
        metrics=st.lists(
            st.builds(MetricManifest, name=texts("m"), kind=st.just("rate")), max_size=1
        ),
        thresholds=lists("get.p95 < 300 ms"),
        host=texts("http://h"),
        provides=st.dictionaries(texts("token"), lists("B"), max_size=1),
        uses=st.lists(
            st.builds(UseManifest, hook=texts("h"), sources=lists("A"), arguments=lists("a")),
            max_size=1,
        ),
        wants=lists("token"),
        feeds=lists("users.csv"),
        data_files=lists("users.csv"),
        warnings=lists("a warning"),
    )


def options(most: int) -> st.SearchStrategy[RunOptions]:
    flags = st.builds(
        ProfileFlags,
        vus=st.one_of(st.none(), ints(1, most), texts("3")),
        duration=st.one_of(st.none(), floats(1.0), texts("3s")),
    )
    return st.builds(
        RunOptions,
        file=texts("file.py"),
        workers=st.one_of(st.none(), ints(1, most)),
        env=st.dictionaries(texts("NAME"), texts("value"), max_size=2),
        secrets=st.dictionaries(texts("TOKEN"), texts("hush"), max_size=1),
        profiles=st.dictionaries(texts("A"), flags, max_size=1),
        thresholds=lists("p95 < 300 ms").map(tuple),
        seed=ints(0, most),
        warmup_s=floats(0.0),
        timeout_s=st.one_of(st.none(), floats(10.0)),
        on_agent_loss=st.one_of(st.just("replan"), st.just("continue"), texts("replan")),
        outage_tolerance_s=floats(300.0),
    )


def submissions(most: int) -> st.SearchStrategy[Submission]:
    files = st.builds(BundleFile, texts("file.py"), texts("0" * 64), ints(10, most))
    return st.builds(
        Submission,
        bundle=st.one_of(st.just("b" * 64), st.just(""), texts("b" * 64)),
        bundle_size=ints(10, most),
        contents=st.builds(
            BundleManifest,
            entry=texts("file.py"),
            python=texts("3.11"),
            files=st.lists(files, max_size=1).map(tuple),
            requirements=lists("numpy").map(tuple),
        ),
        manifest=st.builds(
            FileManifest,
            path=texts("file.py"),
            workflows=st.lists(workflows(most), max_size=4),
            warnings=lists("w"),
        ),
        options=options(most),
        timeout_s=st.one_of(st.none(), floats(20.0)),
        on_control_loss=st.one_of(st.just("stop"), texts("continue")),
        part=st.one_of(st.just(msgspec.UNSET), st.just(msgspec.UNSET), datacenter_parts(most)),
    )


def datacenter_parts(most: int) -> st.SearchStrategy[SubmissionPart]:
    weights = st.lists(ints(3, most), max_size=3).map(tuple)
    places = st.builds(
        WorkflowPart,
        index=ints(0, most),
        weights=weights,
        users_before=ints(4, most),
        users_in_all=ints(8, most),
        iterations_before=ints(4, most),
    )
    return st.builds(
        SubmissionPart,
        datacenter=texts("eu"),
        index=ints(0, most),
        weights=weights,
        workflows=st.dictionaries(st.sampled_from(["A", "B"]), places, max_size=2),
    )


def proposed(sub: Submission) -> CreateJob | None:
    """The command that a manager would propose; None if the submission cannot even be sent."""
    timeout_s = sub.timeout_s if sub.timeout_s and math.isfinite(sub.timeout_s) else 0.0
    bare = msgspec.structs.replace(sub, timeout_s=None)
    try:
        command = creation(bare, key="odd")
    except SquallError:
        names = tuple(w.name for w in sub.manifest.workflows)
        command = msgspec.structs.replace(creation(submission(workflow("A"))), layers=(names,))
    command = msgspec.structs.replace(
        command, submission=sub, timeout_ms=int(min(max(timeout_s, 0.0), 1e15) * 1000)
    )
    try:
        encode(command)
    except SquallError:
        return None
    return command


def others_go_on(command: CreateJob) -> bool:
    """Returns whether the odd job was accepted."""
    bench = Bench(w1=2, w2=2)
    for worker in bench.workers.values():
        worker.descriptors = 1_000
    outcome = bench.apply(command)
    bench.settle()
    plain = bench.submit(workflow("Plain", duration_s=1.0), key="plain")
    bench.run(2.0)
    answered = {worker.node: worker.sequence for worker in bench.workers.values()}
    if isinstance(outcome, Accepted):
        # It may rightly ask for all cores for a month.
        bench.cancel(outcome.job, now=True)
        bench.finish(outcome.job, 120.0)
    assert bench.finish(plain, 120.0).state == "completed"
    bench.run(1.0)
    assert all(w.sequence > answered[w.node] for w in bench.workers.values())
    assert not bench.machine.tables.slots
    return isinstance(outcome, Accepted)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@given(submissions(MANY))
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_a_submission_is_a_job_within_the_limits_or_refused_in_one_line(sub: Submission) -> None:
    fault = submission_fault(sub)
    command = proposed(sub)
    if command is None:
        return
    accepted = others_go_on(command)
    assert not (fault and accepted)
    assert "\n" not in fault and len(fault) < 1_000


@given(submissions(FEW))
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_rules_that_raise_fail_their_job_alone(sub: Submission) -> None:
    command = proposed(sub)
    if command is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        # As if a limit had been forgotten.
        patch.setattr(job_rules, "submission_fault", lambda submission: "")
        others_go_on(command)
