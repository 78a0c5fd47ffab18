"""Live outputs against the servers themselves: InfluxDB with its listeners for UDP and Graphite,
carbon, a Pushgateway, and Netdata. Each holds the totals of the results document."""

from __future__ import annotations

import asyncio
import getpass
import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from squall.api.reporting import LiveRun
from squall.reporting.outputs.live.lines.statsd import path_part
from squall.reporting.outputs.registry import KINDS
from tests.lab.databases import missing
from tests.lab.outputs import step_totals, wait_for
from tests.lab.ports import free_ports
from tests.lab.programs import ROOT
from tests.services.reporting.lab.contract import one_run
from tests.services.reporting.lab.document import NASTY

pytestmark = pytest.mark.nightly

RUN = LiveRun("01J9Z4", "shop.py", ("Shop", "Browse"), {}, 1.0)
Totals = dict[tuple[str, str, str], float]


def document() -> dict[str, Any]:
    made = one_run()
    # Graphite's names have no room for it; the others take any text.
    text = json.dumps(made).replace(json.dumps(NASTY)[1:-1], "a name, with=all <of it>")
    return json.loads(text)


def feed(kind: str, target: str) -> None:
    reporter = KINDS[kind].create(target, f"-o {kind}").made

    async def run() -> None:
        await reporter.start(RUN)
        await reporter.end(document())

    asyncio.run(run())


@contextmanager
def running(program: str, *words: str) -> Iterator[None]:
    # Debian's netdata is in a folder that is not on everybody's path.
    found = shutil.which(program) or shutil.which(f"/usr/sbin/{program}")
    if found is None:
        missing(f"{program} is not installed")
    process = subprocess.Popen(
        [str(found), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def fetched(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=30.0) as answer:
            return answer.read()
    except OSError:
        return None


class Influx:
    def __init__(self, folder: Path) -> None:
        self.port, self.udp, self.graphite, backup = free_ports(4)
        self.file = folder / "influxdb.conf"
        self.file.write_text(
            f'reporting-disabled = true\nbind-address = "127.0.0.1:{backup}"\n'
            f'[meta]\ndir = "{folder}/meta"\n'
            f'[data]\ndir = "{folder}/data"\nwal-dir = "{folder}/wal"\n'
            f'[http]\nbind-address = "127.0.0.1:{self.port}"\n'
            f'[[udp]]\nenabled = true\nbind-address = "127.0.0.1:{self.udp}"\ndatabase = "udp"\n'
            'batch-timeout = "50ms"\n'
            f'[[graphite]]\nenabled = true\nbind-address = "127.0.0.1:{self.graphite}"\n'
            'database = "graphite"\nbatch-timeout = "50ms"\n'
            'templates = ["squall.executions.* measurement.measurement.run.workflow.step.result"]\n'
        )

    def asked(self, database: str, query: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"db": database, "q": query})
        found = fetched(f"http://127.0.0.1:{self.port}/query?{words}")
        (result,) = json.loads(found or b'{"results": [{}]}')["results"]
        # It makes the database of a listener with the first lines.
        assert "error" not in result or "database not found" in result["error"], result
        return result.get("series", [])

    def totals(self, database: str, measurement: str) -> Totals:
        query = f'SELECT last("value") FROM "{measurement}" GROUP BY workflow, step, result'
        return {
            (tags["workflow"], tags["step"], tags["result"]): series["values"][0][1]
            for series in self.asked(database, query)
            for tags in (series["tags"],)
        }


@pytest.fixture
def influx(tmp_path: Path) -> Iterator[Influx]:
    server = Influx(tmp_path)
    with running("influxd", "-config", str(server.file)):
        ping = f"http://127.0.0.1:{server.port}/ping"
        wait_for(lambda: fetched(ping) is not None, "the start of influxd")
        yield server


def test_influxdb_and_its_dashboard(influx: Influx) -> None:
    words = urllib.parse.urlencode({"q": "CREATE DATABASE load"})
    url = f"http://127.0.0.1:{influx.port}"
    request = urllib.request.Request(f"{url}/query", data=words.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30.0):
        pass
    feed("influx", f"{url},database=load")
    assert influx.totals("load", "squall_executions") == step_totals(document())
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "influxdb.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["query"].replace("$timeFilter", "time > now() - 1h")
            for name in ("run", "workflow", "step"):
                query = query.replace(f"${name}$", ".*")
            influx.asked("load", query.replace("$__interval", "1s"))
    assert influx.asked("load", 'SHOW TAG VALUES FROM "squall_executions" WITH KEY = "run"')


def test_line_protocol_in_datagrams(influx: Influx) -> None:
    feed("telegraf", f"udp://127.0.0.1:{influx.udp}")
    wanted = step_totals(document())
    wait_for(lambda: influx.totals("udp", "squall_executions") == wanted, "the totals over UDP")


def test_graphite(influx: Influx) -> None:
    feed("graphite", f"127.0.0.1:{influx.graphite}")
    wanted = sorted(step_totals(document()).values())

    def found() -> list[float]:
        return sorted(influx.totals("graphite", "squall.executions").values())

    wait_for(lambda: found() == wanted, "the totals in Graphite's names")


class Carbon:
    """Debian's carbon-cache, which writes a whisper file for each metric."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "whisper"
        self.port, pickle, query = free_ports(3)
        self.file = folder / "carbon.conf"
        (folder / "storage-schemas.conf").write_text("[all]\npattern = .*\nretentions = 1s:1h\n")
        names = ("STORAGE", "CONF", "LOG", "PID")
        self.file.write_text(
            "[cache]\n"
            + "".join(f"{name}_DIR = {folder}\n" for name in names)
            + f"LOCAL_DATA_DIR = {self.folder}\nWHITELISTS_DIR = {folder}\nUSER =\n"
            f"LINE_RECEIVER_INTERFACE = 127.0.0.1\nLINE_RECEIVER_PORT = {self.port}\n"
            f"PICKLE_RECEIVER_INTERFACE = 127.0.0.1\nPICKLE_RECEIVER_PORT = {pickle}\n"
            f"CACHE_QUERY_INTERFACE = 127.0.0.1\nCACHE_QUERY_PORT = {query}\n"
            "MAX_CREATES_PER_MINUTE = inf\nMAX_UPDATES_PER_SECOND = inf\n"
            "CARBON_METRIC_INTERVAL = 0\nENABLE_TAGS = False\nTAG_HASH_FILENAMES = False\n"
        )

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5.0).close()
        except OSError:
            return False
        return True

    def stored(self, metric: str) -> dict[tuple[str, ...], float]:
        """The last value of each file below a metric, by the parts of its name."""
        top = self.folder / "squall" / metric
        return {
            path.relative_to(top).with_suffix("").parts: value
            for path in top.rglob("*.wsp")
            if (value := self._last(path)) is not None
        }

    def tagged(self, metric: str) -> list[float | None]:
        """The last value of each series of a metric with tags; these have one folder."""
        name = f"squall_DOT_{metric};*run={RUN.id}*;*workflow=*.wsp"
        return [self._last(path) for path in (self.folder / "_tagged").rglob(name)]

    @staticmethod
    def _last(path: Path) -> float | None:
        words = ["whisper-fetch", "--drop=nulls", str(path)]
        # None while carbon writes the file.
        lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
        return float(lines[-1].split()[1]) if lines else None


def test_carbon(tmp_path: Path) -> None:
    server = Carbon(tmp_path)
    with running("carbon-cache", f"--config={server.file}", "--nodaemon", "start"):
        wait_for(server.answers, "the start of carbon")
        feed("graphite", f"127.0.0.1:{server.port}")
        wanted = {
            (RUN.id, *map(path_part, key)): count for key, count in step_totals(document()).items()
        }
        wait_for(lambda: server.stored("executions") == wanted, "the totals in whisper files")
        feed("graphite", f"127.0.0.1:{server.port},tags=true")
        counts = sorted(wanted.values())

        def tagged() -> list[float]:
            return sorted(each for each in server.tagged("executions") if each is not None)

        wait_for(lambda: tagged() == counts, "the totals in tagged series")


def test_a_pushgateway() -> None:
    (port,) = free_ports(1)
    with running("prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{port}"):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: fetched(f"{url}/-/ready") is not None, "the start of the gateway")
        feed("pushgateway", url)
        text = fetched(f"{url}/metrics")
    assert text is not None
    found = {
        tuple(sample.labels[name] for name in ("workflow", "step", "result")): sample.value
        for family in text_string_to_metric_families(text.decode())
        if family.name == "squall_executions"
        for sample in family.samples
        # Debian's keeps what others pushed.
        if sample.labels["run"] == RUN.id
    }
    assert found == step_totals(document())


class Netdata:
    """Its web interface, and its StatsD server; nothing of the machine is measured."""

    def __init__(self, folder: Path) -> None:
        self.port, self.statsd = free_ports(2)
        self.file = folder / "netdata.conf"
        names = ("config", "cache", "lib", "log")
        for name in names:
            (folder / name).mkdir()
        (folder / "config" / ".opt-out-from-anonymous-statistics").touch()
        collectors = ("timex", "idlejitter", "tc", "proc", "diskspace", "cgroups", "apps")
        off = ("enable running new plugins", "netdata monitoring", *collectors)
        self.file.write_text(
            "[directories]\n"
            + "".join(f"{name} = {folder / name}\n" for name in names)
            + f"home = {folder}\n[global]\nrun as user = {getpass.getuser()}\n"
            "[db]\nmode = ram\n[ml]\nenabled = no\n[health]\nenabled = no\n"
            f"[web]\nbind to = 127.0.0.1:{self.port}\n"
            f"[statsd]\nbind to = udp:127.0.0.1:{self.statsd}\n[plugins]\n"
            + "".join(f"{name} = no\n" for name in off)
        )

    def charts(self) -> dict[str, Any]:
        found = fetched(f"http://127.0.0.1:{self.port}/api/v1/charts")
        return json.loads(found or b'{"charts": {}}')["charts"]

    def values(self, chart: str) -> list[float]:
        """One for each second; the newest comes first."""
        words = urllib.parse.urlencode({"chart": chart, "after": -600})
        found = fetched(f"http://127.0.0.1:{self.port}/api/v1/data?{words}")
        rows = json.loads(found or b'{"data": []}')["data"]
        return [row[1] for row in rows if row[1] is not None]

    def answers(self) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.sendto(b"probe:1|c\n", ("127.0.0.1", self.statsd))
        return any("probe" in name for name in self.charts())


def test_netdata(tmp_path: Path) -> None:
    server = Netdata(tmp_path)
    with running("netdata", "-D", "-c", str(server.file)):
        wait_for(server.answers, "the start of netdata")
        feed("netdata", f"127.0.0.1:{server.statsd}")
        totals = {key: count for key, count in step_totals(document()).items() if count}
        # Netdata's names have small letters, and its counters are rates of a second.
        wanted = {
            "statsd_squall.executions."
            + ".".join(path_part(each) for each in (RUN.id, *key)).lower()
            + "_counter": count
            for key, count in totals.items()
        }

        def found() -> dict[str, int]:
            return {
                name: round(sum(server.values(name)))
                for name in server.charts()
                if name.startswith("statsd_squall.executions.")
            }

        wait_for(lambda: found() == wanted, "the totals in Netdata's counters")
        assert server.values("statsd_squall.elapsed.01j9z4_gauge")[0] == document()["elapsed_s"]
