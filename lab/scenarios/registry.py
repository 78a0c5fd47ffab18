"""The list of scenarios. A scenario's module is imported only when it is used.

Each module defines a `SCENARIO`.
"""

from __future__ import annotations

from importlib import import_module

from lab.sim.run import Scenario
from squall.api.errors import UsageError

_MODULES = {
    "ping": "lab.scenarios.ping",
    "coordination": "lab.scenarios.coordination.scenario",
    "group": "lab.scenarios.group.scenario",
    "wal": "lab.scenarios.wal",
    "datacenter": "lab.scenarios.datacenter.scenario",
    "job-api": "lab.scenarios.job_api",
    "store-log": "lab.scenarios.store_log.scenario",
    "agents": "lab.scenarios.agents",
    "handover": "lab.scenarios.handover.scenario",
    "gates": "lab.scenarios.gates.scenario",
    "membership": "lab.scenarios.membership.scenario",
}


def names() -> tuple[str, ...]:
    return tuple(_MODULES)


def find(name: str) -> Scenario:
    if name not in _MODULES:
        known = ", ".join(_MODULES)
        raise UsageError(f"there is no scenario {name!r}; there are: {known}")
    scenario: Scenario = import_module(_MODULES[name]).SCENARIO
    return scenario
