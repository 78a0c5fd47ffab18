"""Runs over other protocols than HTTP/1: counts, negotiation, mistakes, `--once`."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from squall.clients import registry
from tests.lab.http2_server import running_http2_server
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


def test_a_result_of_another_protocol_is_named(command: CommandLab) -> None:
    file = command.write(HTTP2.replace("client.http2.", "client.http."))
    ended = command.load(file, "--host", command.target.url, "-i", "3")
    assert ended.code == 99
    assert "returned HTTPResponse instead of an HTTP2Response" in ended.out


def test_a_missing_package_is_found_before_the_run(
    command: CommandLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name="hpack")

    monkeypatch.setattr(registry, "import_module", missing)
    ended = command.load(command.write(HTTP2), "--host", command.target.url)
    assert ended.code == 104
    assert "pip install 'squall[http2]'" in ended.err
    assert command.target.counts()["total"] == 0
