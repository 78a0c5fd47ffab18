"""Mutants of a datacenter: known bugs, each switched on by name.

Most of them change the timers or the model of the engine, see `make_lab` of the scenario. The
others patch the real classes for one run; the product contains no switch for them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import msgspec

from squall.cluster.datacenter.commands import AddWorker
from squall.cluster.datacenter.records import RecordFacts
from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.primary.volatile_state import VolatileAttempt
from squall.cluster.protocol.messages import RegisterWorker

MUTANTS = {
    "cores_ignore_lease": "core processes continue after their lease has ended",
    "empty_directory_is_proof": "a registration proves all former boots of its name dead",
    "grant_after_lost": "the primary grants a lease to an attempt that it is declaring lost",
    "lease_from_receipt": "a worker counts its lease from the arrival of the grant",
    "lost_at_once": "the primary declares attempts lost without waiting for their lease",
    "monotonic_only": "a core process does not count the time that its machine slept",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    with ExitStack() as stack:
        if name == "grant_after_lost":
            stack.enter_context(
                patch.object(VolatileAttempt, "is_given_up", property(_is_withheld))
            )
        if name == "empty_directory_is_proof":
            stack.enter_context(patch.object(Director, "register", _register_as_proof))
        yield


_right_register = Director.register


def _register_as_proof(
    self: Director, request: RegisterWorker, held: Sequence[RecordFacts], group_ms: int
) -> AddWorker | str:
    worker = self.state.tables.workers.get(request.node)
    if worker is not None:
        dead_boots = (worker.boot, *worker.former)
        request = msgspec.structs.replace(request, dead_boots=dead_boots)
    return _right_register(self, request, held, group_ms)


def _is_withheld(attempt: VolatileAttempt) -> bool:
    return attempt.withheld
