"""Mutants of gates and datacenters as whole nodes: known bugs, each switched on by its name.

They concern what the nodes do with a part that was handed over; the mutants of the handover itself
are in `handover`. They patch the real functions for one run, or switch on a bug of the model of the
engine; the product contains no switch for them.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from squall.cluster.gate import job_parts
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions import answers
from squall.cluster.protocol.gates.job_split import PartWeights, part_of
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.submission import Submission

replace = msgspec.structs.replace

MUTANTS = {
    "accept_opens_users": "a worker opens users without a lease",
    "held_job_granted": "an attempt of a held job gets a lease",
    "both_parts_all_users": "every datacenter gets the whole load of the job",
    "rows_not_striped": "a part does not know its place among the others",
    "dc_judges_thresholds": "a part keeps the thresholds of its job",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    with ExitStack() as stack:
        if name == "held_job_granted":
            stack.enter_context(patch.object(answers, "_live_attempt", _grants_held))
        if name == "both_parts_all_users":
            stack.enter_context(patch.object(job_parts, "part_of", _whole_load))
        if name == "rows_not_striped":
            stack.enter_context(patch.object(job_parts, "part_of", _without_place))
        if name == "dc_judges_thresholds":
            stack.enter_context(patch.object(job_parts, "part_of", _with_thresholds))
        yield


_right_attempt = answers._live_attempt


def _grants_held(state: VolatileState, key: AttemptKey, *rest: Any) -> None:
    job = state.tables.jobs[key.job]
    state.tables.jobs[key.job] = replace(job, held=False)
    try:
        _right_attempt(state, key, *rest)
    finally:
        state.tables.jobs[key.job] = job


def _whole_load(submission: Submission, index: int, weights: PartWeights) -> Submission:
    return replace(part_of(submission, index, weights), manifest=submission.manifest)


def _without_place(submission: Submission, index: int, weights: PartWeights) -> Submission:
    return replace(part_of(submission, index, weights), part=msgspec.UNSET)


def _with_thresholds(submission: Submission, index: int, weights: PartWeights) -> Submission:
    return replace(part_of(submission, index, weights), options=submission.options)
