"""Leader election, fenced epochs, heartbeats, signals and work queues for the members of a
group, on a store that the team already runs.

    from squall.coordination import Coordinator

    async with Coordinator("redis://localhost:6379/0", secret=secret) as coordinator:
        async with coordinator.lead() as term:
            ...

Everything that the documents import stands here or in `events`. A name is loaded on its first
use, so that importing the package costs nothing. Start reading with `coordinator`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squall.coordination.coordinator import Coordinator
    from squall.coordination.election.term import Term, Work
    from squall.coordination.errors import (
        BlockingTimeoutError,
        ConfigurationError,
        CoordinationError,
        DeadCoordinatorError,
        DuplicateMemberError,
        LeadershipLost,
        MemberFencedError,
        SignalDeliveryError,
        StaleClaimError,
        StaleEpochError,
        StateLostError,
        StoreUnavailableError,
        VersionConflict,
    )
    from squall.coordination.events import Event
    from squall.coordination.expiry.plugin import Ttl
    from squall.coordination.expiry.records import SweepFinished
    from squall.coordination.options import OptionValues
    from squall.coordination.plugin import CoordinatorPlugin
    from squall.coordination.queue.claims import ClaimedTicket
    from squall.coordination.queue.plugin import Queue
    from squall.coordination.records.schemas import Signal
    from squall.coordination.scheduler.plugin import Scheduler
    from squall.coordination.scheduler.records import JobRecord, RunRecord
    from squall.coordination.signals.member_signals import Delivery
    from squall.coordination.stores.interface import (
        ABSENT,
        ANY,
        Append,
        Changed,
        Check,
        Delete,
        Fence,
        Put,
    )
    from squall.coordination.stores.memory.store import MemoryStore
    from squall.coordination.stores.open import open_store
    from squall.coordination.timing import PROFILES, Timing
    from squall.runtime.real.runtime import RealClock

# The module that defines each name. Modules of this package are named from here.
_HOMES = {
    "coordinator": "Coordinator",
    "errors": (
        "BlockingTimeoutError ConfigurationError CoordinationError DeadCoordinatorError"
        " DuplicateMemberError LeadershipLost MemberFencedError SignalDeliveryError"
        " StaleClaimError StaleEpochError StateLostError StoreUnavailableError VersionConflict"
    ),
    "events": "Event",
    "options": "OptionValues",
    "plugin": "CoordinatorPlugin",
    "queue.claims": "ClaimedTicket",
    "queue.plugin": "Queue",
    "records.schemas": "Signal",
    "scheduler.plugin": "Scheduler",
    "scheduler.records": "JobRecord RunRecord",
    "stores.interface": "ABSENT ANY Append Changed Check Delete Fence Put",
    "stores.memory.store": "MemoryStore",
    "election.term": "Term Work",
    "timing": "PROFILES Timing",
    "expiry.plugin": "Ttl",
    "expiry.records": "SweepFinished",
    "signals.member_signals": "Delivery",
    "stores.open": "open_store",
    "squall.runtime.real.runtime": "RealClock",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ABSENT",
    "ANY",
    "PROFILES",
    "Append",
    "BlockingTimeoutError",
    "Changed",
    "Check",
    "ClaimedTicket",
    "ConfigurationError",
    "CoordinationError",
    "Coordinator",
    "CoordinatorPlugin",
    "DeadCoordinatorError",
    "Delete",
    "Delivery",
    "DuplicateMemberError",
    "Event",
    "Fence",
    "JobRecord",
    "LeadershipLost",
    "MemberFencedError",
    "MemoryStore",
    "OptionValues",
    "Put",
    "Queue",
    "RealClock",
    "RunRecord",
    "Scheduler",
    "Signal",
    "SignalDeliveryError",
    "StaleClaimError",
    "StaleEpochError",
    "StateLostError",
    "StoreUnavailableError",
    "SweepFinished",
    "Term",
    "Timing",
    "Ttl",
    "VersionConflict",
    "Work",
    "open_store",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'squall.coordination' has no attribute {name!r}")
    module = home if home.startswith("squall.") else f"squall.coordination.{home}"
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
