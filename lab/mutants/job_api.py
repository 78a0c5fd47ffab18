"""Mutants of the job API: known bugs, each switched on by name.

They patch the real classes for one run; the product contains no switch for them.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from squall.cluster.datacenter import commands, job_rules, state_machine
from squall.cluster.datacenter.commands import CommandOutcome, CreateJob
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.tables import Tables
from squall.cluster.group.committer import Committer

MUTANTS = {
    "key_makes_two_jobs": "a repeated submission creates a second job under its key",
    "late_try_adjusts": "every try of an adjustment takes effect, also a late one",
    "stale_status": "any member answers a read from what it has applied",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    rules = state_machine._RULES  # pyright: ignore[reportPrivateUsage]
    with ExitStack() as stack:
        if name == "key_makes_two_jobs":
            stack.enter_context(patch.dict(rules, {commands.CreateJob: _create_job}))
        if name == "late_try_adjusts":
            stack.enter_context(patch.object(JobRecord, "adjusted_by", _adjusted_by))
        if name == "stale_status":
            stack.enter_context(patch.object(Committer, "read", _read))
        yield


def _create_job(tables: Tables, command: CreateJob) -> CommandOutcome:
    tables.keys.pop((command.principal, command.key), None)
    return job_rules.create_job(tables, command)


def _adjusted_by(self: JobRecord, request_id: str) -> int:
    return 0


async def _read(self: Committer[Any]) -> None: ...
