"""Mutants of gates and datacenters as whole nodes: known bugs, each switched on by its name.

They concern what the nodes do with a part that was handed over; the mutants of the handover itself
are in `handover`. They patch the real functions for one run; the product contains no switch for
them.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any
from unittest.mock import patch

import msgspec

from squall.cluster.gate import job_parts
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions import answers
from squall.cluster.protocol.gates.job_split import PartWeights, part_of
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import Preparation
from squall.cluster.protocol.submission import Submission
from squall.cluster.worker.effects import SessionEffect, SetLease
from squall.cluster.worker.session import WorkerSession

replace = msgspec.structs.replace

MUTANTS = {
    "accept_opens_users": "a worker opens the users of a held part, as it does of any other",
    "held_job_granted": "an attempt of a held job gets a lease",
    "both_parts_all_users": "every datacenter gets the whole load of the job",
    "rows_not_striped": "a part does not know its place among the others",
    "dc_judges_thresholds": "a part keeps the thresholds of its job",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    with ExitStack() as stack:
        if name == "accept_opens_users":
            stack.enter_context(patch.object(WorkerSession, "_prepare", _leases_at_once))
        if name == "held_job_granted":
            stack.enter_context(patch.object(answers, "_live_attempt", _grants_held))
        if name == "both_parts_all_users":
            stack.enter_context(patch.object(job_parts, "part_of", _whole_load))
        if name == "rows_not_striped":
            stack.enter_context(patch.object(job_parts, "part_of", _without_place))
        if name == "dc_judges_thresholds":
            stack.enter_context(patch.object(job_parts, "part_of", _with_thresholds))
        yield


_right_prepare = WorkerSession._prepare


def _leases_at_once(
    self: WorkerSession, preparation: Preparation, now: float
) -> list[SessionEffect]:
    effects = _right_prepare(self, preparation, now)
    if not preparation.held or not effects:
        return effects
    return [*effects, SetLease(preparation.key, now + 5.0, inf)]


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
