"""The limits of a submission: one line that names the field, the value and the limit."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from squall.cluster.protocol.submission import Submission
from squall.cluster.protocol.submission_limits import adjustment_fault, submission_fault
from squall.stats.manifest import Profile, Stage, StepManifest
from tests.fakes.datacenter import submission, workflow


def with_profile(**fields: Any) -> Submission:
    profile = Profile(**{"vus": 8, "max_vus": 8, "duration_s": 10.0, **fields})
    return submission(workflow("Load", profile=profile))


def test_a_usual_submission_is_within_the_limits() -> None:
    assert submission_fault(submission(workflow("A"), workflow("B", "A"))) == ""


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"duration_s": math.inf},
            "workflow Load: profile.duration_s is inf; it must be above 0 and at most 2,592,000",
        ),
        ({"duration_s": math.nan}, "profile.duration_s is nan"),
        ({"duration_s": 0.0}, "profile.duration_s is 0.0; it must be above 0"),
        ({"vus": 0}, "profile.vus is 0; it must be at least 1 and at most 1,000,000"),
        ({"vus": 2**40}, "profile.vus is 1099511627776"),
        ({"max_vus": -1}, "profile.max_vus is -1; it must be at least 0"),
        ({"grace_s": math.inf}, "profile.grace_s is inf"),
        ({"model": "open", "rate_per_s": 0.0}, "profile.rate_per_s is 0.0; it must be above 0"),
        ({"model": "open", "rate_per_s": math.inf}, "profile.rate_per_s is inf"),
        ({"model": "iterations", "iterations": 0}, "profile.iterations is 0"),
        ({"think_s": (2.0, 1.0)}, "profile.think_s is 2.0; it must be at least 0 and at most 1"),
        ({"pacing_s": math.nan}, "profile.pacing_s is nan"),
        ({"model": "ramp", "vus": 0}, "profile.stages take 0 s"),
        (
            {"model": "ramp", "vus": 0, "stages": (Stage(10.0, math.nan),)},
            "profile.stages.target is nan",
        ),
        (
            {"model": "open-ramp", "stages": (Stage(20.0, 5.0),)},
            "profile.stages take 20 s; they must take duration_s, which is 10",
        ),
    ],
)
def test_a_profile_out_of_range_is_named(fields: dict[str, Any], line: str) -> None:
    assert line in submission_fault(with_profile(**fields))


def test_only_a_ramp_begins_without_a_user() -> None:
    stages = (Stage(10.0, 5.0),)
    assert submission_fault(with_profile(model="ramp", vus=0, max_vus=5, stages=stages)) == ""


def test_names_are_short_and_of_one_line() -> None:
    fault = submission_fault(submission(workflow("x" * 5_000)))
    assert "has 5,000 characters" in fault and "1 to 200" in fault and len(fault) < 200
    assert "without control characters" in submission_fault(submission(workflow("a\nb")))
    assert "without control characters" in submission_fault(submission(workflow("a\x1b[2J")))
    assert "has 0 characters" in submission_fault(submission(workflow("")))
    steps = [StepManifest(name="\u202eevil")]
    bad = msgspec.structs.replace(workflow("A"), steps=steps)
    assert "steps.name" in submission_fault(submission(bad))


def test_counts_are_limited() -> None:
    many = submission(*(workflow(f"W{n}") for n in range(501)))
    assert submission_fault(many) == "manifest.workflows has 501 entries; at most 500 are allowed"
    assert submission_fault(submission()) == "the file holds no workflow to run"


def test_what_surrounds_the_manifest_is_checked() -> None:
    good = submission(workflow("A"))
    replace = msgspec.structs.replace
    assert "timeout_s is nan" in submission_fault(replace(good, timeout_s=math.nan))
    assert "SHA-256" in submission_fault(replace(good, bundle="../../etc"))
    assert "on_control_loss is 'maybe'" in submission_fault(replace(good, on_control_loss="maybe"))
    # It becomes a lease, and an attempt with an endless lease is never lost.
    options = replace(good.options, outage_tolerance_s=math.inf)
    assert "outage_tolerance_s is inf" in submission_fault(replace(good, options=options))


def test_a_secret_is_not_in_the_line() -> None:
    good = submission(workflow("A"))
    options = msgspec.structs.replace(good.options, secrets={"TOKEN": "hush" * 20_000})
    fault = submission_fault(msgspec.structs.replace(good, options=options))
    assert "TOKEN" in fault and "hush" not in fault


def test_a_load_is_adjusted_within_the_limits() -> None:
    assert adjustment_fault(100.0, None) == "" and adjustment_fault(None, 0) == ""
    assert "rate_per_s is nan" in adjustment_fault(math.nan, None)
    assert "vus is -1" in adjustment_fault(None, -1)
