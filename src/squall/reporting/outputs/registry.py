"""The one table of all kinds of output: `-o KIND=TARGET`, messages and docs/outputs.md follow it.

A kind names the function or class that makes it. Its first parameter is the configuration, which
`targets` reads from the target; the modules of a backend are imported only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from squall.api.errors import UsageError
from squall.reporting.outputs.targets import CreatedOutput, create, create_with
from squall.stats.manifest import FileManifest

Family = Literal["file", "live", "database", "queue", "cloud"]


@dataclass(frozen=True)
class OutputKind:
    """One kind of output."""

    name: str
    text: str
    """What it writes and where, in one line."""
    example: str
    """A target, as a user types it after the `=`."""
    family: Family
    module: str
    """Its module below `squall.reporting.outputs`: `live.statsd`."""
    factory: str
    """The function or class in it that makes the output from the target."""
    extra: str = ""
    """`pip install 'squall[EXTRA]'` brings its library."""
    modules: tuple[str, ...] = ()
    """What it imports of that library."""
    flag: str = ""
    """Its own flag besides `-o`."""

    @property
    def flag_name(self) -> str:
        """The name of its flag in parsed arguments."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_live(self) -> bool:
        """Whether the output gets each second of the run; the others get the document after it."""
        return self.family == "live"

    def create(self, target: str, flag: str) -> CreatedOutput:
        self.check_installed(flag)
        return create(self.factory_function, target, flag)

    def create_with(self, config: object, flag: str) -> Any:
        """As `create`, with a configuration that was written in Python."""
        return create_with(self.factory_function, config, flag)

    @property
    def factory_function(self) -> Callable[..., Any]:
        module = import_module(f"squall.reporting.outputs.{self.module}")
        return getattr(module, self.factory)

    def check_installed(self, flag: str) -> None:
        """Finds the libraries without importing them, because imports take time before a run."""
        for module in self.modules:
            if not _is_installed(module):
                raise UsageError(
                    f"{flag}: needs {module}, which is not installed: "
                    f"pip install 'squall[{self.extra}]'"
                )


# Files, written after the run.
_FILES = (
    OutputKind(
        *("json", "the results document, with histograms", "results.json"),
        *("file", "files", "json_file"),
        flag="--json",
    ),
    OutputKind(
        *("csv", "three tables: PREFIX_steps.csv, _windows, _errors", "results/checkout"),
        *("file", "files", "csv_files"),
        flag="--csv",
    ),
    OutputKind(
        *("junit", "thresholds as test cases", "junit.xml"),
        *("file", "files", "junit_file"),
        flag="--junit",
    ),
    OutputKind(
        *("markdown", "a report; in CI also added to the step summary", "report.md"),
        *("file", "files", "markdown_file"),
        flag="--markdown",
    ),
    OutputKind(
        *("xml", "counts and times without histograms", "results.xml"),
        *("file", "files", "xml_file"),
        flag="--xml",
    ),
    OutputKind(
        *("html", "a report in one page that opens offline", "report.html"),
        *("file", "files", "html_file"),
        flag="--html",
    ),
)

# Live outputs, fed each second while the run goes on.
_LIVE = (
    OutputKind(
        *("prometheus", "an endpoint that Prometheus scrapes during the run", ":9464"),
        *("live", "live.prometheus.scrape", "prometheus"),
    ),
    OutputKind(
        *("pushgateway", "pushes to a Prometheus Pushgateway", "http://localhost:9091"),
        *("live", "live.prometheus.pushgateway", "pushgateway"),
    ),
    OutputKind(
        *("remote-write", "Prometheus remote write with native histograms"),
        "http://localhost:9090/api/v1/write",
        *("live", "live.prometheus.remote_write", "remote_write"),
        extra="prometheus",
        modules=("cramjam",),
    ),
    OutputKind(
        *("otlp", "OpenTelemetry metrics over HTTP", "http://localhost:4318"),
        *("live", "live.otlp.over_http", "otlp"),
    ),
    OutputKind(
        *("otlp-grpc", "OpenTelemetry metrics over gRPC", "http://localhost:4317"),
        *("live", "live.otlp.over_grpc", "otlp_grpc"),
        extra="otlp",
        modules=("grpc",),
    ),
    OutputKind(
        *("influx", "InfluxDB 1, line protocol over HTTP", "http://localhost:8086,database=load"),
        *("live", "live.lines.influx", "influx"),
    ),
    OutputKind(
        *("influx2", "InfluxDB 2 and 3"),
        "http://localhost:8086,org=acme,bucket=load,token=env:INFLUX_TOKEN",
        *("live", "live.lines.influx", "influx2"),
    ),
    OutputKind(
        *("telegraf", "Telegraf's socket listener, line protocol", "udp://localhost:8094"),
        *("live", "live.lines.influx", "telegraf"),
    ),
    OutputKind(
        *("statsd", "StatsD, labels as parts of the name", "localhost:8125"),
        *("live", "live.lines.statsd", "statsd"),
    ),
    OutputKind(
        *("dogstatsd", "DogStatsD, labels as tags", "localhost:8125"),
        *("live", "live.lines.statsd", "dogstatsd"),
    ),
    OutputKind(
        *("telegraf-statsd", "Telegraf's StatsD with its tags", "localhost:8125"),
        *("live", "live.lines.statsd", "telegraf_statsd"),
    ),
    OutputKind(
        *("netdata", "Netdata's StatsD server", "localhost:8125"),
        *("live", "live.lines.statsd", "statsd"),
    ),
    OutputKind(
        *("graphite", "Graphite (carbon), plain text", "localhost:2003"),
        *("live", "live.lines.graphite", "graphite"),
    ),
    OutputKind(
        *("datadog", "Datadog's metrics interface"),
        "https://api.datadoghq.com,key=env:DD_API_KEY",
        *("live", "live.vendors.datadog", "datadog"),
    ),
    OutputKind(
        *("newrelic", "New Relic's metric interface"),
        "https://metric-api.newrelic.com,key=env:NEW_RELIC_LICENSE_KEY",
        *("live", "live.vendors.newrelic", "newrelic"),
    ),
    OutputKind(
        *("honeycomb", "Honeycomb events"),
        "https://api.honeycomb.io,dataset=load,key=env:HONEYCOMB_API_KEY",
        *("live", "live.vendors.honeycomb", "honeycomb"),
    ),
    OutputKind(
        *("cloudwatch", "AWS CloudWatch", "LoadTests,region=eu-west-1"),
        *("live", "live.vendors.cloudwatch", "cloudwatch"),
        extra="cloudwatch",
        modules=("aiobotocore",),
    ),
    OutputKind(
        *("grafana", "an annotation in Grafana for the time of the run"),
        "http://localhost:3000,token=env:GRAFANA_TOKEN",
        *("live", "live.vendors.grafana", "GrafanaAnnotation"),
    ),
    OutputKind(
        *("jsonl", "JSON lines: start, each second, the results document", "run.jsonl"),
        *("live", "live.jsonl", "JSONLines"),
        flag="--out-file",
    ),
)

# Databases, after the run.
_DATABASES = (
    OutputKind(
        *("postgres", "tables in PostgreSQL"),
        "postgresql://user@host/results,password=env:PGPASSWORD",
        *("database", "relational.postgres", "postgres"),
        extra="postgres",
        modules=("asyncpg",),
    ),
    OutputKind(
        *("timescaledb", "tables in TimescaleDB, with a hypertable of windows"),
        "postgresql://user@host/results",
        *("database", "relational.postgres", "timescaledb"),
        extra="postgres",
        modules=("asyncpg",),
    ),
    OutputKind(
        *("mysql", "tables in MySQL", "mysql://user@host/results,password=env:MYSQL_PWD"),
        *("database", "relational.mysql", "mysql"),
        extra="mysql",
        modules=("asyncmy",),
    ),
    OutputKind(
        *("mariadb", "tables in MariaDB", "mariadb://user@host/results,password=env:MYSQL_PWD"),
        *("database", "relational.mysql", "mysql"),
        extra="mysql",
        modules=("asyncmy",),
    ),
    OutputKind(
        *("sqlite", "tables in a file of SQLite", "results.db"),
        *("database", "relational.sqlite", "sqlite"),
    ),
    OutputKind(
        *("mongodb", "collections in MongoDB", "mongodb://user@host,database=load"),
        *("database", "documents.mongodb", "MongoDBReporter"),
        extra="mongodb",
        modules=("pymongo",),
    ),
    OutputKind(
        *("cassandra", "tables in Cassandra or ScyllaDB", "host1,host2,keyspace=load"),
        *("database", "documents.cassandra", "CassandraReporter"),
        extra="cassandra",
        modules=("cassandra",),
    ),
    OutputKind(
        *("cosmosdb", "items in Azure Cosmos DB"),
        "https://account.documents.azure.com:443/,key=@cosmos.key",
        *("database", "documents.cosmosdb", "CosmosDBReporter"),
        extra="cosmosdb",
        modules=(
            "azure.cosmos",
            "aiohttp",
        ),
    ),
)

# Queues and caches, after the run.
_QUEUES = (
    OutputKind(
        *("redis", "a hash per run in Redis", "redis://host:6379/0,expire=30d"),
        *("queue", "documents.redis", "RedisReporter"),
        extra="redis",
        modules=("redis",),
    ),
    OutputKind(
        *("kafka", "a message per row to Kafka", "broker1:9092,broker2:9092,topic=load"),
        *("queue", "documents.kafka", "KafkaReporter"),
        extra="kafka",
        modules=("aiokafka",),
    ),
)

# Cloud storage, warehouses and functions, after the run.
_CLOUD = (
    OutputKind(
        *("s3", "the document and its rows in S3", "s3://bucket/load,region=eu-central-1"),
        *("cloud", "cloud.s3", "S3Reporter"),
        extra="s3",
        modules=("aiobotocore",),
    ),
    OutputKind(
        *("timestream", "records in Amazon Timestream", "load,region=eu-central-1"),
        *("cloud", "cloud.timestream", "TimestreamReporter"),
        extra="aws",
        modules=("aiobotocore",),
    ),
    OutputKind(
        *("lambda", "a call of a function in AWS Lambda", "on-load-test,region=eu-central-1"),
        *("cloud", "cloud.aws_lambda", "LambdaReporter"),
        extra="aws",
        modules=("aiobotocore",),
    ),
    OutputKind(
        *("gcs", "the document and its rows in Google Cloud Storage", "gs://bucket/load"),
        *("cloud", "cloud.gcs", "GCSReporter"),
        extra="gcs",
        modules=("google.cloud.storage",),
    ),
    OutputKind(
        *("bigquery", "tables in BigQuery", "load_tests,project=shop"),
        *("cloud", "cloud.bigquery", "BigQueryReporter"),
        extra="bigquery",
        modules=("google.cloud.bigquery",),
    ),
    OutputKind(
        *("bigtable", "rows in Bigtable", "instance,project=shop,table=load"),
        *("cloud", "cloud.bigtable", "BigtableReporter"),
        extra="bigtable",
        modules=("google.cloud.bigtable",),
    ),
)

KINDS: dict[str, OutputKind] = {
    kind.name: kind for kind in (*_FILES, *_LIVE, *_DATABASES, *_QUEUES, *_CLOUD)
}


def check_reporters(manifest: FileManifest) -> None:
    """Finds the libraries that the reporters of an author's file need, before the load begins."""
    for workflow in manifest.workflows:
        for name in workflow.outputs:
            if name in KINDS:
                KINDS[name].check_installed(f"reporting of {workflow.name}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        # A submodule whose package is missing.
        return False
