"""Each backend of live numbers against a server that records what arrives: what it understands of
the last delivery are the totals of the results document."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pytest
from cramjam import snappy
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from prometheus_client.parser import text_string_to_metric_families

from squall.api.errors import UsageError
from squall.reporting.document.build import build_document
from squall.reporting.outputs.live.http import HTTPPoster, PostRefused
from squall.reporting.outputs.live.otlp.over_grpc import METHOD
from squall.reporting.outputs.registry import KINDS
from squall.stats.snapshot import Snapshot
from tests.lab.outputs import RUN, RecordingServer, recording_server, step_totals

Totals = dict[tuple[str, str, str], float]


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with recording_server() as found:
        yield found


@pytest.fixture
def ended(make_outcome: Any) -> tuple[Snapshot, dict[str, Any]]:
    """The last snapshot of a run and its document."""
    outcome = make_outcome()
    outcome.stats.shows_histograms = True
    return outcome.stats.snapshot(10.0), build_document(outcome)


def feed(kind: str, target: str, ended: tuple[Snapshot, dict[str, Any]]) -> None:
    reporter = KINDS[kind].create(target, f"-o {kind}").made

    async def run() -> None:
        await reporter.start(RUN)
        await reporter.tick(ended[0])
        await reporter.end(ended[1])

    asyncio.run(run())


def exposition_totals(text: str) -> Totals:
    return {
        tuple(sample.labels[name] for name in ("workflow", "step", "result")): sample.value  # type: ignore[misc]
        for family in text_string_to_metric_families(text)
        if family.name == "squall_executions"
        for sample in family.samples
    }


# Prometheus.


def test_pushgateway(server: RecordingServer, ended: Any) -> None:
    feed("pushgateway", f"{server.url},job=night run", ended)
    assert {each.method for each in server.requests} == {"PUT"}
    assert server.requests[-1].path == "/metrics/job/night%20run/run/01J9Z4"
    assert exposition_totals(server.requests[-1].body.decode()) == step_totals(ended[1])
    text = server.requests[-1].body.decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    rows = ended[1]["workflows"][0]["steps"]
    counts = {
        each.labels["step"]: each.value
        for each in families["squall_latency_seconds"].samples
        if each.name.endswith("_count")
    }
    assert all(counts[row["name"]] == row["histogram"]["count"] for row in rows)


def test_a_group_that_is_not_kept_is_deleted(server: RecordingServer, ended: Any) -> None:
    feed("pushgateway", f"{server.url},keep=false", ended)
    assert server.requests[-1].method == "DELETE"


def test_remote_write_sends_native_histograms(server: RecordingServer, ended: Any) -> None:
    feed("remote-write", f"{server.url}/api/v1/write,token=t0k,tenant=me", ended)
    first, last = server.requests
    assert last.path == "/api/v1/write"
    assert last.headers["authorization"] == "Bearer t0k"
    assert last.headers["x-scope-orgid"] == "me"
    messages = [
        WRITE_REQUEST.FromString(bytes(snappy.decompress_raw(each.body))) for each in (first, last)
    ]
    found: Totals = {}
    counts: dict[str, int] = {}
    for series in messages[1].timeseries:
        labels = {each.name: each.value for each in series.labels}
        assert list(labels) == sorted(labels), "Prometheus demands sorted names"
        if labels["__name__"] == "squall_executions_total":
            key = (labels["workflow"], labels["step"], labels["result"])
            found[key] = series.samples[0].value
        for histogram in series.histograms:
            buckets, count = [], 0
            for delta in histogram.positive_deltas:
                count += delta
                buckets.append(count)
            assert sum(buckets) == histogram.count_int
            assert histogram.positive_spans[0].length == len(buckets)
            counts[labels["step"]] = histogram.count_int
    assert found == step_totals(ended[1])
    assert counts["login"] == ended[1]["workflows"][0]["steps"][0]["histogram"]["count"]
    times = [each.timeseries[0].samples[0].timestamp for each in messages]
    assert times[0] < times[1]


def test_a_scrape_port_that_is_taken_or_none_is_found_before_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^-o prometheus=:{port}: .*Address already in use"):
            KINDS["prometheus"].create(f":{port}", "-o prometheus")
    with pytest.raises(UsageError, match=r"write \[HOST\]:PORT"):
        KINDS["prometheus"].create("everywhere", "-o prometheus")


# OpenTelemetry.


def otlp_totals(body: bytes) -> tuple[Totals, dict[str, Any]]:
    request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
    [resource] = request.resource_metrics
    found = {each.name: each for each in resource.scope_metrics[0].metrics}
    totals: Totals = {}
    executions = found["squall.executions"].sum
    assert executions.is_monotonic and executions.aggregation_temporality == 2
    for point in executions.data_points:
        labels = {each.key: each.value.string_value for each in point.attributes}
        totals[labels["workflow"], labels["step"], labels["result"]] = point.as_double
        assert 0 < point.start_time_unix_nano < point.time_unix_nano
    return totals, found


def check_otlp(body: bytes, document: dict[str, Any]) -> None:
    totals, found = otlp_totals(body)
    assert totals == step_totals(document)
    login = found["squall.latency"].exponential_histogram.data_points[0]
    entry = document["workflows"][0]["steps"][0]["histogram"]
    assert login.count == sum(login.positive.bucket_counts) == entry["count"]
    assert login.sum == pytest.approx(entry["sum_ms"] / 1e3)
    assert (found["squall.latency"].unit, found["squall.users"].unit) == ("s", "1")
    assert len(found["squall.users"].gauge.data_points) == 1


def test_otlp_over_http(server: RecordingServer, ended: Any) -> None:
    feed("otlp", f"{server.url},headers=x-key=abc,headers=x-two=b", ended)
    assert [each.path for each in server.requests] == ["/v1/metrics"] * 2
    assert server.requests[0].headers["content-type"] == "application/x-protobuf"
    headers = server.requests[0].headers
    assert (headers["x-key"], headers["x-two"]) == ("abc", "b")
    check_otlp(server.requests[-1].body, ended[1])


def test_otlp_over_grpc(ended: Any) -> None:
    bodies: list[bytes] = []

    class Service(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            assert details.method == METHOD
            assert ("x-key", "abc") in details.invocation_metadata
            return grpc.unary_unary_rpc_method_handler(self._export)

        def _export(self, body: bytes, context: Any) -> bytes:
            bodies.append(body)
            return metrics_service_pb2.ExportMetricsServiceResponse().SerializeToString()

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((Service(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            feed("otlp-grpc", f"http://127.0.0.1:{port},headers=x-key=abc", ended)
        finally:
            server.stop(None).wait()
    check_otlp(bodies[-1], ended[1])


# Lines.


def influx_totals(lines: list[str]) -> Totals:
    found: Totals = {}
    for line in lines:
        name, fields, at = re.split(r"(?<!\\) ", line)
        assert at.isdecimal()
        measurement, *tags = re.split(r"(?<!\\),", name)
        labels = dict(re.split(r"(?<!\\)=", tag) for tag in tags)
        if measurement == "squall_executions":
            key = (labels["workflow"], labels["step"], labels["result"])
            found[key] = float(fields.removeprefix("value="))
    return found


@pytest.mark.parametrize(
    ("kind", "options", "path", "credentials"),
    [
        ("influx", "database=d,user=u,password=p", "/write?db=d&precision=ns&u=u&p=p", None),
        (
            "influx2",
            "org=o,bucket=b,token=t",
            "/api/v2/write?org=o&bucket=b&precision=ns",
            "Token t",
        ),
    ],
)
def test_influx(
    kind: str, options: str, path: str, credentials: str | None, server: RecordingServer, ended: Any
) -> None:
    feed(kind, f"{server.url},{options}", ended)
    last = server.requests[-1]
    assert last.path == path
    assert last.headers.get("authorization") == credentials
    lines = last.body.decode().splitlines()
    assert influx_totals(lines) == step_totals(ended[1])
    latencies = [line for line in lines if line.startswith("squall_latency,")]
    [login] = [line for line in latencies if "step=login" in line]
    count = ended[1]["workflows"][0]["steps"][0]["histogram"]["count"]
    assert f" count={count}i,sum=" in login and ",p99=" in login


class Datagrams:
    """A UDP socket that is read in a thread until `text` is asked for."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self._found: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while (data := self.socket.recv(65536)) != b"end":
            self._found.append(data)

    def lines(self) -> list[str]:
        # Datagrams of one machine keep their order, so that all have come before this one.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closing:
            closing.sendto(b"end", self.socket.getsockname())
        self._thread.join()
        self.socket.close()
        assert all(len(each) <= 1400 for each in self._found)
        return b"\n".join(self._found).decode().splitlines()


def statsd_totals(lines: list[str], read: Callable[[str], tuple[str, ...] | None]) -> Totals:
    found: Totals = {}
    for line in lines:
        key = read(line)
        if key is not None:
            assert "|c" in line
            value = float(re.search(r":(-?[\d.e+]+)\|", line)[1])  # type: ignore[index]
            found[key] = found.get(key, 0.0) + value  # type: ignore[index]
    return {key: value for key, value in found.items() if value}


def in_name(line: str) -> tuple[str, ...] | None:
    parts = line.partition(":")[0].split(".")
    return tuple(parts[-3:]) if parts[1] == "executions" else None


def with_hash(line: str) -> tuple[str, ...] | None:
    if not line.startswith("squall.executions:"):
        return None
    tags = dict(tag.split(":", 1) for tag in line.partition("|#")[2].split(","))
    return tags["workflow"], tags["step"], tags["result"]


def with_commas(line: str) -> tuple[str, ...] | None:
    name, *tags = line.partition(":")[0].split(",")
    labels = dict(tag.split("=", 1) for tag in tags)
    if name != "squall.executions":
        return None
    return labels["workflow"], labels["step"], labels["result"]


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("statsd", in_name),
        ("netdata", in_name),
        ("dogstatsd", with_hash),
        ("telegraf-statsd", with_commas),
    ],
)
def test_statsd_and_its_dialects_add_up_to_the_totals(kind: str, read: Any, ended: Any) -> None:
    received = Datagrams()
    feed(kind, received.address, ended)
    lines = received.lines()
    wanted = {key: value for key, value in step_totals(ended[1]).items() if value}
    assert statsd_totals(lines, read) == wanted
    assert any(re.search(r"users.*\|g", line) for line in lines)


def test_telegraf_gets_line_protocol_in_datagrams(ended: Any) -> None:
    received = Datagrams()
    feed("telegraf", f"udp://{received.address}", ended)
    assert influx_totals(received.lines()) == step_totals(ended[1])


@pytest.mark.parametrize("tags", [False, True])
def test_graphite(tags: bool, ended: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        received: list[bytes] = []

        def read() -> None:
            connection, _ = listening.accept()
            with connection:
                while data := connection.recv(65536):
                    received.append(data)

        thread = threading.Thread(target=read)
        thread.start()
        feed("graphite", f"127.0.0.1:{port},tags={str(tags).lower()}", ended)
        thread.join()
    found: Totals = {}
    for line in b"".join(received).decode().splitlines():
        name, value, at = line.split(" ")
        assert at.isdecimal()
        if tags and name.startswith("squall.executions;"):
            labels = dict(each.split("=") for each in name.split(";")[1:])
            found[labels["workflow"], labels["step"], labels["result"]] = float(value)
        elif name.startswith("squall.executions."):
            found[tuple(name.split(".")[-3:])] = float(value)  # type: ignore[index]
    assert found == step_totals(ended[1])


# Services.


def test_datadog(server: RecordingServer, ended: Any) -> None:
    feed("datadog", f"{server.url},key=s3cret", ended)
    found: Totals = {}
    for request in server.requests:
        assert request.path == "/api/v2/series" and request.headers["dd-api-key"] == "s3cret"
        for series in msgspec.json.decode(request.body)["series"]:
            tags = dict(tag.split(":", 1) for tag in series["tags"])
            if series["metric"] == "squall.executions":
                assert (series["type"], series["interval"]) == (1, 1)
                key = (tags["workflow"], tags["step"], tags["result"])
                found[key] = found.get(key, 0.0) + series["points"][0]["value"]
    assert found == {key: value for key, value in step_totals(ended[1]).items() if value}


def test_newrelic(server: RecordingServer, ended: Any) -> None:
    feed("newrelic", f"{server.url},key=s3cret", ended)
    found: Totals = {}
    for request in server.requests:
        assert request.path == "/metric/v1" and request.headers["api-key"] == "s3cret"
        [content] = msgspec.json.decode(request.body)
        assert content["common"]["timestamp"] > 0
        for metric in content["metrics"]:
            own = metric["attributes"]
            if metric["name"] == "squall.executions":
                assert metric["type"] == "count" and metric["interval.ms"] > 0
                key = (own["workflow"], own["step"], own["result"])
                found[key] = found.get(key, 0.0) + metric["value"]
    assert found == {key: value for key, value in step_totals(ended[1]).items() if value}


def test_honeycomb(server: RecordingServer, ended: Any) -> None:
    feed("honeycomb", f"{server.url},dataset=load,key=s3cret", ended)
    last = server.requests[-1]
    assert last.path == "/1/batch/load" and last.headers["x-honeycomb-team"] == "s3cret"
    found = {
        (data["workflow"], data["step"], data["result"]): data["squall.executions"]
        for event in msgspec.json.decode(last.body)
        if "squall.executions" in (data := event["data"])
        if data["final"] and event["time"]
    }
    assert found == step_totals(ended[1])


def test_grafana_gets_an_annotation_that_becomes_a_region(
    server: RecordingServer, ended: Any
) -> None:
    feed("grafana", f"{server.url},token=s3cret,dashboard=abc", ended)
    first, last = server.requests
    assert (first.method, first.path) == ("POST", "/api/annotations")
    assert first.headers["authorization"] == "Bearer s3cret"
    begun = msgspec.json.decode(first.body)
    assert begun["time"] == 1000 and begun["dashboardUID"] == "abc"
    assert begun["tags"] == ["squall", "run:01J9Z4", "env:staging", "step:one"]
    assert (last.method, last.path) == ("PATCH", "/api/annotations/7")
    ends = msgspec.json.decode(last.body)
    assert ends["timeEnd"] > 1000 and ends["text"].endswith(", VALID")


# The transport.


def test_an_answer_that_is_no_success_is_one_line(server: RecordingServer) -> None:
    server.status, server.answer = 401, b"token\nis wrong"
    with pytest.raises(PostRefused) as caught:
        HTTPPoster(server.url).post("/x", b"", {})
    assert str(caught.value) == "the server answered 401 Unauthorized: token is wrong"


def test_credentials_of_a_url_become_a_header(server: RecordingServer) -> None:
    poster = HTTPPoster(server.url.replace("//", "//me:p%40ss@"))
    poster.post("/x", b"body", {})
    poster.close()
    assert server.requests[0].headers["authorization"] == "Basic bWU6cEBzcw=="


@pytest.mark.parametrize("url", ["localhost:9091", "ftp://x", "http://"])
def test_a_url_that_is_none_is_found_before_the_run(url: str) -> None:
    with pytest.raises(UsageError, match="begins with http:// or https://"):
        KINDS["pushgateway"].create(url, "-o pushgateway")


def _write_request() -> Any:
    """`prometheus.WriteRequest` of prompb/remote.proto and types.proto, for what is sent."""
    kinds = {
        "double": 1,
        "int64": 3,
        "uint64": 4,
        "string": 9,
        "uint32": 13,
        "sint32": 17,
        "sint64": 18,
    }
    messages = {
        "Label": [("name", 1, "string", 0), ("value", 2, "string", 0)],
        "Sample": [("value", 1, "double", 0), ("timestamp", 2, "int64", 0)],
        "BucketSpan": [("offset", 1, "sint32", 0), ("length", 2, "uint32", 0)],
        "Histogram": [
            ("count_int", 1, "uint64", 0),
            ("sum", 3, "double", 0),
            ("schema", 4, "sint32", 0),
            ("zero_threshold", 5, "double", 0),
            ("zero_count_int", 6, "uint64", 0),
            ("positive_spans", 11, "BucketSpan", 1),
            ("positive_deltas", 12, "sint64", 1),
            ("timestamp", 15, "int64", 0),
        ],
        "TimeSeries": [
            ("labels", 1, "Label", 1),
            ("samples", 2, "Sample", 1),
            ("histograms", 4, "Histogram", 1),
        ],
        "WriteRequest": [("timeseries", 1, "TimeSeries", 1)],
    }
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", package="w", syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            made = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in kinds:
                made.type = kinds[kind]  # type: ignore[assignment]
            else:
                made.type, made.type_name = 11, f".w.{kind}"  # type: ignore[assignment]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("w.WriteRequest"))


WRITE_REQUEST = _write_request()
