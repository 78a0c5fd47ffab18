"""The limits of a submission: one line that names the field, the value and the limit."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from squall.api.errors import ConfigError
from squall.cluster.protocol import submission_limits as limits
from squall.cluster.protocol.bundle import PATH_MAX_BYTES, make_bundle
from squall.cluster.protocol.job_rules import COMMAND_MAX_BYTES
from squall.cluster.protocol.submission import BUNDLE_MAX_BYTES, Submission
from squall.cluster.protocol.submission_limits import (
    adjustment_fault,
    description_fault,
    key_fault,
    submission_fault,
)
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


def test_every_refusal_names_the_limit_and_what_was_given() -> None:
    replace = msgspec.structs.replace
    step = StepManifest(name="home")
    steps = replace(workflow("A"), steps=[step] * (limits.STEPS_MAX + 1))
    for fault, given, limit in (
        (submission_fault(submission(steps)), "1,001", "1,000"),
        (submission_fault(replace(submission(steps), bundle_size=2**40)), str(2**40), "67,108,864"),
        (description_fault(300_000), "300,000", "262,144"),
        (key_fault("x" * 201), "201", "200"),
        (key_fault(""), "0", "1 to 200"),
    ):
        assert given in fault and limit in fault and "\n" not in fault, fault
    assert key_fault("x" * 200) == "" and description_fault(COMMAND_MAX_BYTES) == ""


@pytest.mark.parametrize(
    ("files", "given", "limit"),
    [
        ({f"{n}.py": b"" for n in range(10_001)}, "10,001 files", "10,000"),
        ({f"{'x' * 512}.py": b""}, "515 bytes", "512"),
        ({"data.csv": b"1234567890"}, "10 bytes", "4 bytes"),
    ],
)
def test_a_bundle_beyond_a_limit_is_refused_with_both_numbers(
    files: dict[str, bytes], given: str, limit: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_bundle(files, entry="", python="3.11", max_bytes=4)
    text = str(refused.value)
    assert given in text and limit in text and "\n" not in text


def test_the_page_lists_every_limit() -> None:
    page = Path(__file__).parents[4] / "docs" / "jobs.md"
    section = page.read_text(encoding="utf-8").partition("## Limits of a submission")[2]
    listed = set(re.findall(r"[0-9][0-9,]*", section.partition("\n\nA rule of")[0]))
    numbers = {
        name: value
        for name, value in vars(limits).items()
        if name.endswith(("_MAX", "_MAX_BYTES", "_MAX_CHARACTERS", "_PER_S"))
        # Internal to the log: a person never gives such a number.
        and name != "INTEGER_MAX"
    }
    numbers |= {"BUNDLE_MAX_BYTES": BUNDLE_MAX_BYTES, "PATH_MAX_BYTES": PATH_MAX_BYTES}
    numbers |= {
        name: value / limits.DAY_S for name, value in vars(limits).items() if name.endswith("MAX_S")
    }
    assert len(numbers) >= 18
    missing = [name for name, value in numbers.items() if f"{value:,.0f}" not in listed]
    assert missing == []
