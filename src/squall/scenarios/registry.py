"""Which scenarios exist. A scenario's module is imported only when it is asked for.

Each module has a `SCENARIO`.
"""

from __future__ import annotations

from importlib import import_module

from squall.api.errors import UsageError
from squall.sim.run import Scenario

_MODULES = {
    "ping": "squall.scenarios.ping",
    "election": "squall.scenarios.toy_election",
    "lease": "squall.scenarios.lease",
    "coordination": "squall.scenarios.coordination",
    "group": "squall.scenarios.group",
    "wal": "squall.scenarios.wal",
    "datacenter": "squall.scenarios.datacenter",
    "store-log": "squall.scenarios.store_log",
    "agents": "squall.scenarios.agents",
}


def names() -> tuple[str, ...]:
    return tuple(_MODULES)


def find(name: str) -> Scenario:
    if name not in _MODULES:
        known = ", ".join(_MODULES)
        raise UsageError(f"there is no scenario {name!r}; there are: {known}")
    scenario: Scenario = import_module(_MODULES[name]).SCENARIO
    return scenario
