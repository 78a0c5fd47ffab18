"""Live outputs of a run on this machine: all hold the totals of the document, and backends that
are dead or hang change nothing but one line each."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import squall
from squall.reporting.outputs.live import delivery
from squall.reporting.outputs.live.prometheus import scrape
from tests.lab.outputs import (
    LiveFiles,
    RecordingServer,
    recording_server,
    step_totals,
    wait_for,
)
from tests.lab.ports import free_ports
from tests.lab.programs import ROOT
from tests.lab.prometheus_server import PrometheusServer, prometheus_server
from tests.runs.lab.command import GET, CommandLab

SHOP = f"""
    class Own:
        def __init__(self, path: str = "own.jsonl") -> None:
            self.path = path

        def write(self, *words) -> None:
            with open(self.path, "a") as file:
                print(*words, file=file)

        async def start(self, run) -> None:
            self.write("start", run.id)

        async def tick(self, snapshot) -> None:
            self.write("tick", snapshot.workflows[0].iterations if snapshot.workflows else 0)

        async def end(self, document) -> None:
            self.write("end", document["workflows"][0]["iteration"]["count"])

    class Both(Own):
        async def connect(self) -> None: ...

        async def submit(self, document) -> None:
            self.write("submit")

        async def close(self) -> None: ...

    class Shop(Workflow):
        reporting = Both("both.txt")

        @step()
        async def home(self, url: URL = "/?delay=1ms") -> HTTPResponse:
            {GET}

        @then()
        async def pay(self, url: URL = "/?status=200:1,503:1&delay=3ms") -> HTTPResponse:
            {GET}
"""


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with recording_server() as found:
        yield found


def own_lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("no_start_is_dropped")
def test_every_live_output_holds_the_totals_and_broken_ones_are_a_line_each(
    command: CommandLab, server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The others may come later; only the one that hangs takes all of it.
    monkeypatch.setattr(delivery, "FINISH_S", 1.0)
    (dead,) = free_ports(1)
    files = LiveFiles(command.folder, server)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        # It takes connections and never answers.
        silent = hanging.getsockname()[1]
        ended = command.load(
            *(command.write(SHOP), "--host", command.target.url, "-r", "40/s", "-d", "3s"),
            *files.words,
            *("-o", "flow.py:Own=own.txt"),
            *("-o", f"influx=http://me:hunter2@127.0.0.1:{dead}/x"),
            *("-o", f"datadog=http://127.0.0.1:{silent},key=hunter3"),
        )
    assert ended.code == 0, ended.err
    files.check(ended.document)
    count = ended.document["workflows"][0]["iteration"]["count"]
    for name in ("own.txt", "both.txt"):
        path = command.folder / name
        wait_for(lambda path=path: ["end", str(count)] in own_lines(path), "the end of a reporter")
        lines = own_lines(command.folder / name)
        ticks = [int(value) for what, value in (line for line in lines if line[0] == "tick")]
        assert lines[0] == ["start", ended.document["run"]["id"]]
        assert ticks and ticks == sorted(ticks) and ticks[-1] <= count
    assert ["submit"] in own_lines(command.folder / "both.txt")
    said = {line.split(": ")[1]: line for line in ended.lines if line.startswith("squall run: ")}
    for name, reason in (("-o influx", "Connection refused"), ("-o datadog", "not delivered")):
        assert "the final totals were not delivered" in said[name] and reason in said[name]
    everything = ended.err + ended.out + (command.folder / "results.json").read_text()
    assert "hunter" not in everything
    assert command.target.counts()["total"] == sum(step_totals(ended.document).values())


def test_report_reads_json_lines_and_refuses_those_of_a_run_that_goes_on(
    command: CommandLab,
) -> None:
    name = command.write(SHOP)
    ended = command.load(name, "--host", command.target.url, "-i", "3", "--out-file", "r.jsonl")
    assert ended.code == 0, ended.err
    again = command.squall("report", "r.jsonl", "--json", "again.json")
    assert again.code == 0, again.err
    assert json.loads((command.folder / "again.json").read_text()) == ended.document
    content = (command.folder / "r.jsonl").read_bytes()
    (command.folder / "cut.jsonl").write_bytes(content.partition(b'{"type":"end"')[0])
    refused = command.squall("report", "cut.jsonl")
    assert refused.code == 2 and "has not ended" in refused.err


def test_report_sends_the_totals_of_a_document_to_a_live_output(
    command: CommandLab, server: RecordingServer
) -> None:
    name = command.write(SHOP)
    ended = command.load(name, "--host", command.target.url, "-i", "3")
    again = command.squall("report", "results.json", "-o", f"pushgateway={server.url}")
    assert again.code == 0, again.err
    assert f'run="{ended.document["run"]["id"]}"' in server.requests[-1].body.decode()


def test_a_report_that_a_live_output_did_not_get_has_failed(
    command: CommandLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "FINISH_S", 0.6)
    name = command.write(SHOP)
    command.load(name, "--host", command.target.url, "-i", "1")
    (dead,) = free_ports(1)
    again = command.squall("report", "results.json", "-o", f"otlp=http://127.0.0.1:{dead}")
    assert again.code == 1 and len(again.lines) == 1
    assert "the final totals were not delivered: Connection refused" in again.err


def test_a_run_from_python_feeds_live_outputs(
    command: CommandLab, server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(command.folder)
    files = LiveFiles(command.folder, server)
    name = command.write(SHOP)
    lines = str(command.folder / "python.jsonl")
    (dead,) = free_ports(1)
    monkeypatch.setattr(delivery, "FINISH_S", 0.6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = squall.run(
            name,
            host=command.target.url,
            vus=1,
            duration="1s",
            workers=1,
            out_file=lines,
            output=[files.words[3], f"pushgateway=http://127.0.0.1:{dead}"],
        )
    said = [str(each.message) for each in caught if "squall.run: -o push" in str(each.message)]
    assert len(said) == 1 and "Connection refused" in said[0]
    wait_for(lambda: b'{"type":"end"' in Path(lines).read_bytes(), "the last line")
    wait_for(lambda: Path(lines).read_bytes().endswith(b"\n"), "the end of the last line")
    last = json.loads(Path(lines).read_bytes().splitlines()[-1])
    assert step_totals(last["document"]) == step_totals(result.document)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("-o", "prometheus=nowhere"), "write [HOST]:PORT"),
        (("-o", "statsd=tcp://"), "name a host"),
        (("-o", "datadog=https://api.datadoghq.com"), "missing required field `key`"),
        (("-o", "influx2=http://u:hunter2@h,bucket=b"), "missing required field `org`"),
        (("--out-file", "no/such/file"), "there is no directory"),
        (("-o", "nonsense=x"), "known: json, csv"),
    ],
)
def test_a_mistake_about_an_output_is_found_before_the_first_request(
    words: tuple[str, ...], part: str, command: CommandLab
) -> None:
    name = command.write(SHOP)
    ended = command.squall("run", name, "--host", command.target.url, "-i", "1", *words)
    assert ended.code == 2 and part in ended.err
    assert "hunter2" not in ended.err and len(ended.lines) == 1
    assert command.target.counts()["total"] == 0


# A real Prometheus.


def empty_panels(prometheus: PrometheusServer) -> set[str]:
    """The panels of the dashboard for Grafana that show nothing of the last minutes; it must read
    all queries."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "prometheus.json").read_text())
    empty: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = re.sub(r"\$(run|workflow|step)\b", ".*", target["expr"])
            query = query.replace("$__rate_interval", "1m")
            if not prometheus.asked(f"count_over_time(({query})[5m:1s])"):
                empty.add(panel["title"])
    return empty


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[PrometheusServer]:
    with prometheus_server(tmp_path) as started:
        yield started


@pytest.mark.usefixtures("no_start_is_dropped")
def test_a_real_prometheus_holds_what_was_written_to_it(
    command: CommandLab, prometheus: PrometheusServer
) -> None:
    """It shows a sample when the sample's time has come, so the first question may be too early."""
    ended = command.load(
        *(command.write(SHOP), "--host", command.target.url, "-r", "40/s", "-d", "1s"),
        *("-o", f"remote-write={prometheus.url}/api/v1/write", "--tag", "way=written"),
    )
    assert ended.code == 0, ended.err
    assert "squall run: -o" not in ended.err
    wanted = step_totals(ended.document)
    wait_for(lambda: prometheus.step_totals('way="written"') == wanted, "the written totals")
    pay = ended.document["workflows"][0]["steps"][1]["histogram"]["count"]
    native = "histogram_count(squall_latency_seconds{way='written',step='pay'})"

    def counted() -> list[float]:
        return [float(each["value"][1]) for each in prometheus.asked(native)]

    wait_for(lambda: counted() == [float(pay)], "the native histogram")
    # What only a second of the run has may be missing, since the run was a short one.
    shown = {"Latency since the start, p95", "Errors by reason", "Users"}
    wait_for(lambda: not empty_panels(prometheus) & shown, "the panels of the dashboard")


@pytest.mark.nightly
@pytest.mark.usefixtures("no_start_is_dropped")
def test_a_real_prometheus_holds_what_it_scraped(
    command: CommandLab, prometheus: PrometheusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scrapes a new target for the first time after five seconds."""
    # However long this machine stands still between two scrapes.
    monkeypatch.setattr(scrape, "LAST_SCRAPE_S", 90.0)
    monkeypatch.setattr(delivery, "FINISH_S", 90.0)
    ended = command.load(
        *(command.write(SHOP), "--host", command.target.url, "-r", "40/s", "-d", "12s"),
        *("-o", f"prometheus=:{prometheus.scraped}", "--tag", "way=scraped"),
    )
    assert ended.code == 0, ended.err
    wanted = step_totals(ended.document)
    wait_for(lambda: prometheus.step_totals('way="scraped"') == wanted, "the scraped totals")
    # The threshold that every run has is judged at the end.
    assert empty_panels(prometheus) <= {"Thresholds that hold", "Workers by datacenter"}


@pytest.mark.usefixtures("no_start_is_dropped")
def test_a_scraper_gets_the_totals_of_the_document_before_the_endpoint_ends(
    command: CommandLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "LAST_SCRAPE_S", 90.0)
    monkeypatch.setattr(delivery, "FINISH_S", 90.0)
    (port,) = free_ports(1)
    texts: list[str] = []
    ended = threading.Event()

    def scrapes() -> None:
        while not ended.is_set():
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as a:
                texts.append(a.read().decode())
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as threads:
        scraper = threads.submit(scrapes)
        try:
            run = command.load(
                *(command.write(SHOP), "--host", command.target.url, "-r", "40/s", "-d", "1s"),
                *("-o", f"prometheus=:{port}"),
            )
        finally:
            ended.set()
        scraper.result()
    assert run.code == 0, run.err
    found = {
        tuple(sample.labels[name] for name in ("workflow", "step", "result")): sample.value
        for family in text_string_to_metric_families(texts[-1])
        if family.name == "squall_executions"
        for sample in family.samples
    }
    assert found == step_totals(run.document)
