"""Words of the lease model: the replicated fact, the messages, the timers, the mutants."""

from __future__ import annotations

import msgspec

from squall.scenarios.replica import Message

MANAGER_PORT = 7100
WORKER_PORT = 7200
SESSION_S = 0.2
LEASES_S = (0.8, 2.0)
"""Lease lengths that are put in force while it runs."""
LOST_FACTOR = 1.1
LOST_MARGIN_S = 0.2
HEARD_S = 1.0
"""A worker heard within so long may get an attempt; a guess, which decides nothing."""

MUTANTS = {
    "any_manager_renews": "every manager in touch with a majority renews, without a round",
    "no_round": "the primary grants at once, without a round",
    "no_wait": "a new primary does not wait for the leases of the former one",
    "from_receipt": "the worker counts the lease from the arrival of the grant",
    "grant_after_lost": "a request is granted though its attempt is being declared lost",
    "lease_flag": "the lease length is a flag of each manager, not a fact of the log",
    "monotonic_only": "the worker does not see the time that its machine slept",
}


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What the managers replicate: one share, its present attempt, the lease in force."""

    attempt: int
    worker: str
    boot: str
    lost: bool
    lease_s: float
    longest_s: float
    """Longest lease in force since the attempt was created."""

    @property
    def lost_after_s(self) -> float:
        return LOST_FACTOR * self.longest_s + LOST_MARGIN_S


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """A worker's session request, to all managers."""

    worker: str
    boot: str
    request: int


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """Run this attempt until `lease_s` after you sent that request."""

    term: int
    boot: str
    request: int
    attempt: int
    lease_s: float


ToManager = Message | Renew
