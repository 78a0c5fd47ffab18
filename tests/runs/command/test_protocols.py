"""Runs over other protocols than HTTP/1: counts, negotiation, mistakes, `--once`."""

from __future__ import annotations

import re
import ssl
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import trustme

from squall.clients import registry
from tests.lab.http2_server import running_http2_server
from tests.lab.http3_server import running_http3_server
from tests.lab.protocol_servers import CLOSED, FLAGS, OPEN, running_protocol_servers
from tests.lab.websocket_server import running_websocket_server
from tests.runs.lab.command import CommandLab

HTTP = """
from squall import URL, HTTPResponse, Workflow, step


class Shop(Workflow):
    @step()
    async def home(self, url: URL = "/home") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home")
    async def order(self, url: URL = "/order") -> HTTPResponse:
        return await self.client.http.post(url, json={"n": 1}, name="saved")
"""
HTTP3 = HTTP.replace("HTTPResponse", "HTTP3Response").replace("client.http.", "client.http3.")
HTTP2 = HTTP.replace("HTTPResponse", "HTTP2Response").replace("client.http.", "client.http2.")


def tls_files(folder: Path) -> tuple[ssl.SSLContext, str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context, str(folder / "ca.pem")


@pytest.mark.parametrize("words", [["-u", "4", "-i", "50"], ["-r", "50/s", "-d", "1s"]])
@pytest.mark.usefixtures("no_start_is_dropped")
def test_both_sides_count_the_same(command: CommandLab, words: list[str]) -> None:
    file = command.write(HTTP2)
    with running_http2_server() as server:
        ended = command.load(file, "--host", server.url, *words)
    command.check_passed(ended, server.requests)
    assert server.paths == {"/home": 50, "/order": 50}
    workflow = ended.document["workflows"][0]
    assert [(row["name"], row["protocol"]) for row in workflow["steps"]] == [
        ("home", "http2"),
        ("order", "http2"),
        ("saved", "http2"),
    ]


@pytest.mark.parametrize("words", [["-u", "4", "-i", "50"], ["-r", "50/s", "-d", "1s"]])
@pytest.mark.usefixtures("no_start_is_dropped")
def test_both_sides_count_the_same_over_http3(
    command: CommandLab, tmp_path: Path, words: list[str]
) -> None:
    file = command.write(HTTP3)
    with running_http3_server(tmp_path) as server:
        ended = command.load(file, "--host", server.url, "--cacert", server.ca_file, *words)
    command.check_passed(ended, server.requests)
    assert server.paths == {"/home": 50, "/order": 50}
    rows = ended.document["workflows"][0]["steps"]
    assert [(row["name"], row["protocol"]) for row in rows] == [
        ("home", "http3"),
        ("order", "http3"),
        ("saved", "http3"),
    ]
    assert re.search(r"  http3  100 calls, 0 failed, p50 .*, p99 ", ended.out)


@pytest.mark.parametrize("way", ["flag", "class"])
def test_a_server_may_choose_http2(command: CommandLab, tmp_path: Path, way: str) -> None:
    text = (
        HTTP if way == "flag" else HTTP.replace("    @step()", '    http = "auto"\n\n    @step()')
    )
    file = command.write(text)
    context, ca_file = tls_files(tmp_path)
    words = ["--cacert", ca_file, *(["--http2"] if way == "flag" else [])]
    with running_http2_server(context) as server:
        ended = command.load(file, "--host", server.url, "-u", "3", "-i", "30", *words)
        command.check_passed(ended, server.requests)
    assert server.paths == {"/home": 30, "/order": 30}


def test_once_shows_the_exchange(command: CommandLab) -> None:
    file = command.write(HTTP2)
    with running_http2_server() as server:
        ended = command.squall("run", file, "--once", "--host", server.url)
    assert ended.code == 0
    assert "> GET /home HTTP/2" in ended.out
    assert "< HTTP/2 200" in ended.out


def test_once_shows_the_exchange_over_http3(command: CommandLab, tmp_path: Path) -> None:
    file = command.write(HTTP3)
    with running_http3_server(tmp_path) as server:
        ended = command.squall(
            "run", file, "--once", "--host", server.url, "--cacert", server.ca_file
        )
    assert ended.code == 0
    assert "> GET /home HTTP/3" in ended.out
    assert "< HTTP/3 200" in ended.out


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.usefixtures("no_start_is_dropped")
def test_the_counts_of_each_protocol_are_those_of_its_server(
    command: CommandLab, load: str
) -> None:
    with running_protocol_servers() as servers:
        file = command.write(servers.workflow(load, command.folder))
        ended = command.load(file, "--host", command.target.url, *FLAGS)
        servers.check(ended.document, command.target.counts()["total"])
    assert ended.code == 0, ended.err


MIXED = (
    HTTP2
    + """
    @step("order")
    async def question(self, url: URL = "WS/echo") -> WebsocketResponse:
        return await self.client.websocket.ask(url, "hello")
"""
)


def test_each_protocol_has_a_line(command: CommandLab) -> None:
    imported = MIXED.replace("Workflow, step", "WebsocketResponse, Workflow, step")
    with running_http2_server() as server, running_websocket_server() as sessions:
        file = command.write(imported.replace("WS", sessions.url))
        ended = command.load(file, "--host", server.url, "-u", "2", "-i", "10")
        command.check_passed(ended, server.requests + sessions.messages.total())
    assert "CALLS       30 sent, 0 redirects, 0 reconnects, 200: 20\n" in ended.out
    assert re.search(r"  http2  20 calls, 0 failed, p50 .*, p99 ", ended.out)
    assert re.search(r"  websocket  10 calls, 0 failed, p50 .*, p99 ", ended.out)
    requests = ended.document["workflows"][0]["requests"]
    assert (requests["answered"], requests["replies"]) == (30, 10)


def test_a_result_of_another_protocol_is_named(command: CommandLab) -> None:
    file = command.write(HTTP2.replace("client.http2.", "client.http."))
    ended = command.load(file, "--host", command.target.url, "-i", "3")
    assert ended.code == 99
    assert "returned HTTPResponse instead of an HTTP2Response" in ended.out


@pytest.mark.parametrize(
    ("text", "package", "extra"), [(HTTP2, "hpack", "http2"), (HTTP3, "qh3", "http3")]
)
def test_a_missing_package_is_found_before_the_run(
    command: CommandLab, monkeypatch: pytest.MonkeyPatch, text: str, package: str, extra: str
) -> None:
    def missing(name: str) -> ModuleType:
        if name == f"squall.clients.{extra}":
            raise ModuleNotFoundError(name=package)
        return import_module(name)

    monkeypatch.setattr(registry, "import_module", missing)
    ended = command.load(command.write(text), "--host", command.target.url)
    assert ended.code == 104
    assert f"{package}, which is not installed: pip install 'squall[{extra}]'" in ended.err
    assert command.target.counts()["total"] == 0
