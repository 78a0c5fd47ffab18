"""One submission becomes the parts of its datacenters."""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.datacenter.commands import CreateJob, decode, encode
from squall.cluster.protocol.gates.job_split import part_of, part_of_change
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import AdjustJob
from squall.cluster.protocol.submission import Submission, Targets, fingerprint
from squall.cluster.protocol.submission_limits import submission_fault
from tests.fakes.datacenter import creation, submission, workflow

WEIGHTS = (("eu", 0.6), ("us", 0.4))


def whole() -> Submission:
    shop = workflow("Shop", "Setup", vus=10)
    shop.thresholds = ["errors < 1%"]
    made = submission(workflow("Setup", is_test=False, vus=1), shop)
    options = msgspec.structs.replace(made.options, thresholds=("eu: errors < 1%",))
    return msgspec.structs.replace(made, options=options, targets=Targets(weights=WEIGHTS))


def test_the_parts_have_the_load_and_judge_nothing() -> None:
    eu, us = (part_of(whole(), index, WEIGHTS) for index in (0, 1))
    assert [each.profile.vus for each in eu.manifest.workflows] == [1, 6]
    assert [each.profile.vus for each in us.manifest.workflows] == [1, 4]
    for part in (eu, us):
        assert not part.targets and part.options.thresholds == ()
        assert all(not each.thresholds for each in part.manifest.workflows)
        assert submission_fault(part) == ""
    assert us.split is not None
    assert (us.split.datacenter, us.split.index, us.split.weights) == ("us", 1, (3, 2))
    assert us.split.workflows["Shop"].users_before == 6


def test_each_part_has_a_fingerprint_of_its_own() -> None:
    plain = msgspec.structs.replace(whole(), targets=msgspec.UNSET)
    other = (("eu", 0.5), ("us", 0.5))
    found = [
        fingerprint(plain),
        fingerprint(whole()),
        fingerprint(part_of(whole(), 0, WEIGHTS)),
        fingerprint(part_of(whole(), 1, WEIGHTS)),
        fingerprint(part_of(whole(), 0, other)),
    ]
    assert len(set(found)) == len(found)


def test_a_job_without_datacenters_is_encoded_as_before() -> None:
    made = creation(submission(workflow("Shop")))
    plain = msgspec.to_builtins(made.submission)
    assert "targets" not in plain and "part" not in plain
    assert decode(encode(made)) == made


def test_a_part_survives_the_log() -> None:
    part = part_of(whole(), 1, WEIGHTS)
    made = msgspec.structs.replace(creation(submission(workflow("Shop"))), submission=part)
    found = decode(encode(made))
    assert isinstance(found, CreateJob) and found.submission == part


def test_a_change_of_the_load_is_split_like_the_load() -> None:
    change = AdjustJob(job=JobId("j"), rate_per_s=100.0, reason="more")
    assert [part_of_change(change, index, WEIGHTS).rate_per_s for index in (0, 1)] == [60.0, 40.0]
    users = AdjustJob(job=JobId("j"), vus=11)
    assert [part_of_change(users, index, WEIGHTS).vus for index in (0, 1)] == [7, 4]
    pause = AdjustJob(job=JobId("j"), paused=True)
    assert part_of_change(pause, 1, WEIGHTS) == pause


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (Targets(weights=(("eu", 0.6), ("us", 0.3))), "add up to 0.9; they must add up to 1"),
        (Targets(weights=(("eu", 0.5), ("eu", 0.5))), "name a datacenter twice"),
        (Targets(weights=(("eu", float("nan")), ("us", 1.0))), "it must be above 0"),
        (Targets(weights=(("eu", 1.0),), count=2), "weights and a count"),
        (Targets(count=-1), "targets.count is -1"),
        (Targets(weights=(("a\nb", 1.0),)), "one line without control characters"),
    ],
)
def test_targets_are_not_trusted(targets: Targets, said: str) -> None:
    assert said in submission_fault(msgspec.structs.replace(whole(), targets=targets))


def test_a_part_is_not_trusted() -> None:
    part = part_of(whole(), 1, WEIGHTS)
    assert part.split is not None
    for broken, said in (
        (msgspec.structs.replace(part.split, index=2), "part.index is 2"),
        (msgspec.structs.replace(part.split, weights=(3, 0)), "part.weights is 0"),
        (msgspec.structs.replace(part.split, weights=()), "part.index is 1"),
        (msgspec.structs.replace(part.split, weights=(9_999, 9_999)), "part.weights in all"),
    ):
        assert said in submission_fault(msgspec.structs.replace(part, part=broken))
