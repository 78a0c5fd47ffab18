"""StatsD and its dialects over UDP, TCP or a Unix socket.

| kind | tags |
|---|---|
| `statsd`, `netdata` | none: they are parts of the name |
| `dogstatsd` | `name:1|c|#workflow:Shop,step:home` |
| `telegraf-statsd` | `name,workflow=Shop,step=home:1|c` |

A counter line has the growth since the last one. Growth that could not be sent is part of the next
line. At the end the results document adds what is still missing, so a receiver that lost no
datagram has the exact totals.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from squall.reporting.outputs.live.lines.sockets import LineSocket
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import (
    Deltas,
    Labels,
    Points,
    Value,
    gauges,
)

Spell = Callable[[str, Labels, str], str]
"""A line from the metric's name, its labels, and `value|type`."""


class StatsDConfig(msgspec.Struct, frozen=True):
    address: str
    prefix: str = "squall"


class StatsD(MetricSender):
    """Sends counters as what they grew by, and gauges as they are."""

    wants_histograms = False

    def __init__(self, config: StatsDConfig, spell: Spell) -> None:
        self._prefix = config.prefix
        self._spell = spell
        self._socket = LineSocket(config.address, scheme="udp", port=8125)
        self._deltas = Deltas()

    async def close(self) -> None:
        self._socket.close()

    async def send(self, points: Points) -> None:
        counters = [self._line(each, "c") for each in self._deltas.of(points)]
        self._socket.send([*counters, *(self._line(each, "g") for each in gauges(points))])
        self._deltas.delivered()

    def _line(self, each: Value, kind: str) -> str:
        value = f"{each.value:.15g}|{kind}"
        return self._spell(f"{self._prefix}.{each.metric.name}", each.labels, value)


def statsd(config: StatsDConfig) -> MetricOutput:
    return MetricOutput(StatsD(config, in_name))


def dogstatsd(config: StatsDConfig) -> MetricOutput:
    return MetricOutput(StatsD(config, with_hash))


def telegraf_statsd(config: StatsDConfig) -> MetricOutput:
    return MetricOutput(StatsD(config, with_commas))


def in_name(name: str, labels: Labels, value: str) -> str:
    """`squall.executions.01J9Z4.Shop.home.ok:3|c`: values of labels follow the name."""
    parts = [name, *(path_part(text) for _, text in labels)]
    return f"{'.'.join(parts)}:{value}"


def with_hash(name: str, labels: Labels, value: str) -> str:
    tags = ",".join(f"{key}:{_tag(text)}" for key, text in labels)
    return f"{name}:{value}|#{tags}"


def with_commas(name: str, labels: Labels, value: str) -> str:
    tags = "".join(f",{key}={_tag(text)}" for key, text in labels)
    return f"{name}{tags}:{value}"


def path_part(text: str) -> str:
    """A part of a name that dots separate."""
    return re.sub(r"[^\w-]+", "_", text, flags=re.ASCII) or "_"


def _tag(text: str) -> str:
    return re.sub(r"[,|#=:@\s]+", "_", text) or "_"
