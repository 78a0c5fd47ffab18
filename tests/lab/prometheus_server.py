"""A real Prometheus of a test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.outputs import wait_for
from tests.lab.ports import free_ports


@contextmanager
def prometheus_server(folder: Path) -> Iterator[PrometheusServer]:
    """It keeps its data in `folder`."""
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus is not installed")
        pytest.skip("prometheus is not installed")
    server = PrometheusServer(program, folder)
    try:
        wait_for(server.is_ready, "the start of prometheus")
        yield server
    finally:
        server.stop()


class PrometheusServer:
    """It scrapes the port `scraped` each second and takes remote writes."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port, self.scraped = free_ports(2)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\n"
            "scrape_configs:\n"
            f"- {{job_name: squall, static_configs: [{{targets: ['127.0.0.1:{self.scraped}']}}]}}\n"
        )
        self._log = open(folder / "prometheus.log", "wb")  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                *(program, f"--web.listen-address=127.0.0.1:{self.port}"),
                *(f"--config.file={folder / 'prometheus.yml'}", "--log.level=warn"),
                *(f"--storage.tsdb.path={folder / 'data'}", "--web.enable-remote-write-receiver"),
                "--enable-feature=native-histograms",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        assert self._process.poll() is None, "prometheus ended"
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10.0) as answer:
                return answer.status == 200
        except OSError:
            return False

    def asked(self, query: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{words}", timeout=30.0) as answer:
                return json.load(answer)["data"]["result"]
        except TimeoutError:
            return []

    def step_totals(self, selector: str) -> dict[tuple[str, str, str], float]:
        """Executions by workflow, step and result: the last samples, also of series that are no
        longer written or scraped. It shows a sample when the sample's time has come."""
        query = f"last_over_time(squall_executions_total{{{selector}}}[1h])"
        found: dict[tuple[str, str, str], float] = {}
        for each in self.asked(query):
            labels = each["metric"]
            key = (labels["workflow"], labels["step"], labels["result"])
            found[key] = float(each["value"][1])
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
