"""Outputs in Python: `Reporter(reporter_type=ReporterTypes.Postgres, config=PostgresConfig(...))`.

Every kind of `squall.reporting.outputs.registry` has a reporter and a configuration here. An
author's file is imported by all processes of a run, so creating a reporter only checks its
arguments: secrets are read, libraries imported and connections opened by the one process that
delivers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from squall.api.errors import ConfigError
from squall.api.reporting import LiveReporter, LiveRun, RunReporter
from squall.reporting.outputs.registry import KINDS, OutputKind
from squall.reporting.outputs.targets import resolved, secrets_in, wanted_config

if TYPE_CHECKING:
    from squall.reporting.outputs.cloud.aws_lambda import LambdaConfig
    from squall.reporting.outputs.cloud.bigquery import BigQueryConfig
    from squall.reporting.outputs.cloud.bigtable import BigtableConfig
    from squall.reporting.outputs.cloud.gcs import GCSConfig
    from squall.reporting.outputs.cloud.s3 import S3Config
    from squall.reporting.outputs.cloud.timestream import TimestreamConfig
    from squall.reporting.outputs.documents.cassandra import CassandraConfig
    from squall.reporting.outputs.documents.cosmosdb import CosmosDBConfig
    from squall.reporting.outputs.documents.kafka import KafkaConfig
    from squall.reporting.outputs.documents.mongodb import MongoDBConfig
    from squall.reporting.outputs.documents.redis import RedisConfig
    from squall.reporting.outputs.live.lines.graphite import GraphiteConfig
    from squall.reporting.outputs.live.lines.influx import Influx2Config, InfluxConfig
    from squall.reporting.outputs.live.lines.statsd import StatsDConfig
    from squall.reporting.outputs.live.otlp.message import OTLPConfig
    from squall.reporting.outputs.live.prometheus.pushgateway import PushgatewayConfig
    from squall.reporting.outputs.live.prometheus.remote_write import RemoteWriteConfig
    from squall.reporting.outputs.live.vendors.cloudwatch import CloudWatchConfig
    from squall.reporting.outputs.live.vendors.datadog import DatadogConfig
    from squall.reporting.outputs.live.vendors.grafana import GrafanaConfig
    from squall.reporting.outputs.live.vendors.honeycomb import HoneycombConfig
    from squall.reporting.outputs.live.vendors.newrelic import NewRelicConfig
    from squall.reporting.outputs.relational.mysql import MySQLConfig
    from squall.reporting.outputs.relational.postgres import PostgresConfig, TimescaleDBConfig
    from squall.reporting.outputs.relational.sqlite import SQLiteConfig

_HOMES = {
    "cloud.aws_lambda": "LambdaConfig",
    "cloud.bigquery": "BigQueryConfig",
    "cloud.bigtable": "BigtableConfig",
    "cloud.gcs": "GCSConfig",
    "cloud.s3": "S3Config",
    "cloud.timestream": "TimestreamConfig",
    "documents.cassandra": "CassandraConfig",
    "documents.cosmosdb": "CosmosDBConfig",
    "documents.kafka": "KafkaConfig",
    "documents.mongodb": "MongoDBConfig",
    "documents.redis": "RedisConfig",
    "live.lines.graphite": "GraphiteConfig",
    "live.lines.influx": "Influx2Config InfluxConfig",
    "live.lines.statsd": "StatsDConfig",
    "live.otlp.message": "OTLPConfig",
    "live.prometheus.pushgateway": "PushgatewayConfig",
    "live.prometheus.remote_write": "RemoteWriteConfig",
    "live.vendors.cloudwatch": "CloudWatchConfig",
    "live.vendors.datadog": "DatadogConfig",
    "live.vendors.grafana": "GrafanaConfig",
    "live.vendors.honeycomb": "HoneycombConfig",
    "live.vendors.newrelic": "NewRelicConfig",
    "relational.mysql": "MySQLConfig",
    "relational.postgres": "PostgresConfig TimescaleDBConfig",
    "relational.sqlite": "SQLiteConfig",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BigQueryConfig",
    "BigtableConfig",
    "CassandraConfig",
    "CloudWatchConfig",
    "CosmosDBConfig",
    "DatadogConfig",
    "GCSConfig",
    "GrafanaConfig",
    "GraphiteConfig",
    "HoneycombConfig",
    "Influx2Config",
    "InfluxConfig",
    "KafkaConfig",
    "LambdaConfig",
    "MongoDBConfig",
    "MySQLConfig",
    "NewRelicConfig",
    "OTLPConfig",
    "PostgresConfig",
    "PushgatewayConfig",
    "RedisConfig",
    "RemoteWriteConfig",
    "Reporter",
    "ReporterTypes",
    "S3Config",
    "SQLiteConfig",
    "StatsDConfig",
    "TimescaleDBConfig",
    "TimestreamConfig",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'squall.reporters' has no attribute {name!r}")
    value = getattr(import_module(f"squall.reporting.outputs.{home}"), name)
    globals()[name] = value
    return value


class ReporterTypes(StrEnum):
    """The kinds of output; each value is the KIND of `-o KIND=TARGET`."""

    AWSLambda = "lambda"
    AWSTimestream = "timestream"
    BigQuery = "bigquery"
    BigTable = "bigtable"
    Cassandra = "cassandra"
    CloudWatch = "cloudwatch"
    CosmosDB = "cosmosdb"
    CSV = "csv"
    Datadog = "datadog"
    DogStatsD = "dogstatsd"
    GCS = "gcs"
    Grafana = "grafana"
    Graphite = "graphite"
    Honeycomb = "honeycomb"
    HTML = "html"
    InfluxDB = "influx"
    InfluxDB2 = "influx2"
    JSON = "json"
    JSONLines = "jsonl"
    JUnit = "junit"
    Kafka = "kafka"
    MariaDB = "mariadb"
    Markdown = "markdown"
    MongoDB = "mongodb"
    MySQL = "mysql"
    Netdata = "netdata"
    NewRelic = "newrelic"
    OpenTelemetry = "otlp"
    OpenTelemetryGRPC = "otlp-grpc"
    Postgres = "postgres"
    Prometheus = "prometheus"
    PrometheusRemoteWrite = "remote-write"
    Pushgateway = "pushgateway"
    Redis = "redis"
    S3 = "s3"
    SQLite = "sqlite"
    StatsD = "statsd"
    Telegraf = "telegraf"
    TelegrafStatsD = "telegraf-statsd"
    TimescaleDB = "timescaledb"
    XML = "xml"


C = TypeVar("C")


class Reporter(RunReporter, Generic[C]):
    """Delivers the results of a run: a built-in kind of output, or a subclass of your own.

    `Reporter(reporter_type=ReporterTypes.Postgres, config=PostgresConfig(...))` is an output of
    that kind. Kinds that take a file or an address (`JSON`, `CSV`, `Prometheus`) have a text as
    their `config`. `connect`, `submit` and `close` are called once each, in this order.
    """

    output_kind: str = ""
    """The kind of a built-in one."""
    config: C | None = None
    timeout_s: float = 60.0
    _backend: RunReporter | LiveReporter | None = None
    _was_live: bool = False
    start: Callable[[LiveRun], Awaitable[None]]
    """A kind that is live has this and the two others of `LiveReporter`."""
    tick: Callable[[Any], Awaitable[None]]
    end: Callable[[dict[str, Any] | None], Awaitable[None]]

    def __init__(
        self, *, reporter_type: ReporterTypes | str | None = None, config: C | None = None
    ) -> None:
        if reporter_type is None:
            if type(self) is Reporter:
                raise ConfigError(
                    "Reporter: write Reporter(reporter_type=..., config=...), or a subclass with a "
                    "submit of its own"
                )
            return
        kind = KINDS.get(reporter_type)
        if kind is None:
            raise ConfigError(
                f"Reporter: there is no output {reporter_type}; known: {', '.join(KINDS)}"
            )
        self.output_kind = kind.name
        self.config = _checked(kind, config)
        self.timeout_s = getattr(config, "timeout_s", self.timeout_s)
        if kind.is_live:
            self.start, self.tick, self.end = self._start, self._tick, self._end

    @property
    def wants_histograms(self) -> bool:
        """Whether a live one sends whole histograms."""
        kind = KINDS.get(self.output_kind)
        return kind is not None and kind.is_live and getattr(self._live, "wants_histograms", False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values of the configuration that no message may show."""
        try:
            return secrets_in(resolved(self.config))
        except ValueError:
            # What cannot be read cannot be shown.
            return ()

    async def connect(self) -> None:
        """Opens connections. If it raises, only this report is lost; the others are delivered."""
        kind = KINDS.get(self.output_kind)
        if kind is not None and not kind.is_live:
            self._backend = _created(kind, self.config)
            await self._after_run.connect()

    async def submit(self, document: dict[str, Any]) -> None:
        """Sends the results document, as `--json` writes it."""
        if not self.output_kind:
            raise NotImplementedError(f"{type(self).__name__} has no submit")
        if not KINDS[self.output_kind].is_live:
            await self._after_run.submit(document)
        elif not self._was_live:
            # It was not there while the run went on, so it gets the final numbers alone.
            await self._start(_run_of(document))
            await self._end(document)

    async def close(self) -> None:
        """Releases what `connect` opened; also called if `connect` or `submit` raised."""
        if isinstance(self._backend, RunReporter):
            await self._backend.close()

    @property
    def _after_run(self) -> RunReporter:
        assert isinstance(self._backend, RunReporter), "connect comes first"
        return self._backend

    @property
    def _live(self) -> LiveReporter:
        if self._backend is None:
            self._backend = _created(KINDS[self.output_kind], self.config)
        assert isinstance(self._backend, LiveReporter)
        return self._backend

    async def _start(self, run: LiveRun) -> None:
        self._was_live = True
        await self._live.start(run)

    async def _tick(self, snapshot: Any) -> None:
        await self._live.tick(snapshot)

    async def _end(self, document: dict[str, Any] | None) -> None:
        await self._live.end(document)


def _checked(kind: OutputKind, config: Any) -> Any:
    wanted = wanted_config(kind.factory_function)
    if wanted is str and isinstance(config, str | Path):
        return str(config)
    if not isinstance(config, wanted):
        name = "a text" if wanted is str else f"a {wanted.__name__}"
        raise ConfigError(
            f"Reporter: the config of {kind.name} is {name}, not {type(config).__name__}"
        )
    return config


def _created(kind: OutputKind, config: Any) -> Any:
    kind.check_installed(kind.name)
    return kind.create_with(resolved(config), kind.name)


def _run_of(document: dict[str, Any]) -> LiveRun:
    run = document["run"]
    return LiveRun(
        id=run["id"],
        file=run["file"],
        workflows=tuple(workflow["name"] for workflow in document["workflows"]),
        tags=run["tags"],
        started_at=datetime.fromisoformat(document["started_at"]).timestamp(),
    )
