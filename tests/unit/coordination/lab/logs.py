"""The log of one member of a laboratory, and the warnings in it."""

from __future__ import annotations

from typing import Any

from lab.scenarios.coordination.store import WorldClock
from squall.runtime.log import Level, Log, MemorySink
from tests.unit.coordination.lab.world import Lab


def warnings_of(sink: MemorySink, event: str) -> list[dict[str, Any]]:
    return [
        dict(each.fields)
        for each in sink.records
        if each.event == event and each.level == Level.WARNING
    ]


def log_of(lab: Lab, sink: MemorySink) -> Log:
    return Log(sink, WorldClock(lab.world, 1.0))
