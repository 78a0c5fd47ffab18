"""Leader election, fenced epochs, heartbeats, signals and work sharing on a store that a
team already runs.

    from squall.coordination import Coordinator

    async with Coordinator("redis://localhost:6379/0", secret=secret) as coordinator:
        async with coordinator.lead() as term:
            ...

Names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squall.coordination.coordinator import Coordinator
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
    from squall.coordination.options import OptionValues
    from squall.coordination.plugin import CoordinatorPlugin
    from squall.coordination.queue.claims import ClaimedTicket
    from squall.coordination.queue.plugin import Queue
    from squall.coordination.records import Signal
    from squall.coordination.scheduler.plugin import Scheduler
    from squall.coordination.scheduler.records import JobRecord, RunRecord
    from squall.coordination.stores.interface import ABSENT, ANY, Append, Check, Delete, Fence, Put
    from squall.coordination.stores.memory import MemoryStore
    from squall.coordination.terms import Term, Work
    from squall.coordination.timing import PROFILES, Timing
    from squall.coordination.ttl.plugin import Ttl

_HOMES = {
    "coordinator": "Coordinator",
    "errors": (
        "BlockingTimeoutError ConfigurationError CoordinationError DeadCoordinatorError"
        " DuplicateMemberError LeadershipLost MemberFencedError SignalDeliveryError"
        " StaleClaimError StaleEpochError StateLostError StoreUnavailableError VersionConflict"
    ),
    "options": "OptionValues",
    "plugin": "CoordinatorPlugin",
    "queue.claims": "ClaimedTicket",
    "queue.plugin": "Queue",
    "records": "Signal",
    "scheduler.plugin": "Scheduler",
    "scheduler.records": "JobRecord RunRecord",
    "stores.interface": "ABSENT ANY Append Check Delete Fence Put",
    "stores.memory": "MemoryStore",
    "terms": "Term Work",
    "timing": "PROFILES Timing",
    "ttl.plugin": "Ttl",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ABSENT",
    "ANY",
    "PROFILES",
    "Append",
    "BlockingTimeoutError",
    "Check",
    "ClaimedTicket",
    "ConfigurationError",
    "CoordinationError",
    "Coordinator",
    "CoordinatorPlugin",
    "DeadCoordinatorError",
    "Delete",
    "DuplicateMemberError",
    "Fence",
    "JobRecord",
    "LeadershipLost",
    "MemberFencedError",
    "MemoryStore",
    "OptionValues",
    "Put",
    "Queue",
    "RunRecord",
    "Scheduler",
    "Signal",
    "SignalDeliveryError",
    "StaleClaimError",
    "StaleEpochError",
    "StateLostError",
    "StoreUnavailableError",
    "Term",
    "Timing",
    "Ttl",
    "VersionConflict",
    "Work",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'squall.coordination' has no attribute {name!r}")
    value = getattr(import_module(f"squall.coordination.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
