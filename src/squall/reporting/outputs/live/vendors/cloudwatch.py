"""AWS CloudWatch: `cloudwatch=NAMESPACE,region=eu-west-1`, credentials as the AWS command has them.

CloudWatch charges for each metric, so this output sends only the numbers of workflows and steps,
without run and tags unless `run=true`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import msgspec

from squall.api.reporting import LiveRun
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.live.metric_output import MetricOutput, MetricSender
from squall.reporting.outputs.live.metrics import (
    Deltas,
    Points,
    Value,
    common_labels,
    gauges,
)

DATA_MAX = 1000
"""Values in one request, by CloudWatch's limit."""
_VALUE_MAX_CHARS = 1024
_UNITS = {"seconds": "Seconds", "bytes": "Bytes"}


class CloudWatchConfig(msgspec.Struct, frozen=True):
    namespace: str
    region: str | None = None
    endpoint: str | None = None
    run: bool = False
    """Send the run and the tags as dimensions: each run makes metrics of its own then."""


def cloudwatch(config: CloudWatchConfig) -> MetricOutput:
    return MetricOutput(CloudWatch(config))


class CloudWatch(MetricSender):
    """Sends the growth of each counter, so that CloudWatch's `Sum` is the total."""

    wants_histograms = False

    def __init__(self, config: CloudWatchConfig) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._left_out = 0
        self._deltas = Deltas()

    async def open(self, run: LiveRun) -> None:
        # Untyped, so it is `Any` here.
        session: Any = library("aiobotocore.session").get_session()
        limits: Any = library("botocore.config").Config
        config = limits(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 2})
        opened = session.create_client(
            "cloudwatch",
            region_name=self._config.region,
            endpoint_url=self._config.endpoint,
            config=config,
        )
        self._left_out = 0 if self._config.run else len(common_labels(run))
        self._client = await self._stack.enter_async_context(opened)

    async def close(self) -> None:
        await self._stack.aclose()

    async def send(self, points: Points) -> None:
        now = datetime.now(UTC)
        values = [*self._deltas.of(points), *gauges(points)]
        data = [_datum(each, self._left_out, now) for each in values]
        for at in range(0, len(data), DATA_MAX):
            await self._client.put_metric_data(
                Namespace=self._config.namespace, MetricData=data[at : at + DATA_MAX]
            )
        self._deltas.delivered()


def _datum(each: Value, left_out: int, now: datetime) -> dict[str, Any]:
    return {
        "MetricName": each.metric.name,
        "Dimensions": [
            {"Name": name, "Value": value[:_VALUE_MAX_CHARS]}
            for name, value in each.labels[left_out:]
            if value.strip()
        ],
        "Timestamp": now,
        "Value": each.value,
        "Unit": _UNITS.get(each.metric.unit, "Count" if each.metric.type == "counter" else "None"),
    }
