"""`--traceparent`: each request carries a trace of its own, and those of the author stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.http2_server import running_http2_server
from tests.lab.http3_server import running_http3_server
from tests.runs.lab.command import CommandLab

OWN = "00-11111111111111111111111111111111-2222222222222222-01"
FLOW = """
    from squall import HTTP2Response, HTTP3Response

    def note(response) -> None:
        found = {name.lower(): value for name, value in response.json()["headers"].items()}
        with open("seen.txt", "a") as file:
            print(found.get("traceparent", "none"), file=file)

    class Shop(Workflow):
        @step()
        async def plain(self, url: URL = "/headers") -> HTTPResponse:
            response = await self.client.http.get(url)
            note(response)
            return response

        @then()
        async def own(self, url: URL = "/headers") -> HTTPResponse:
            response = await self.client.http.get(url, headers={"TraceParent": "OWN"})
            note(response)
            return response

        @then()
        async def body(self, url: URL = "/headers") -> HTTPResponse:
            response = await self.client.http.post(url, json={"n": 1})
            note(response)
            return response
""".replace("OWN", OWN)


def seen(folder: Path) -> list[str]:
    return (folder / "seen.txt").read_text().split()


def check_traces(found: list[str], iterations: int) -> None:
    own = [each for each in found if each == OWN]
    made = [each for each in found if each != OWN]
    assert len(own) == iterations
    assert len(set(made)) == len(made) == 2 * iterations
    # https://www.w3.org/TR/trace-context/#traceparent-header
    assert all(
        re.fullmatch(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-01", each) for each in made
    )


def test_each_request_of_http_has_a_trace_of_its_own(command: CommandLab) -> None:
    name = command.write(FLOW)
    words = ("--host", command.target.url, "-i", "5", "--traceparent")
    ended = command.load(name, *words)
    command.check_passed(ended)
    check_traces(seen(command.folder), 5)
    counted = command.target.counts()["total"]
    assert counted == 15


def test_without_the_flag_no_request_has_one(command: CommandLab) -> None:
    ended = command.load(command.write(FLOW), "--host", command.target.url, "-i", "1")
    command.check_passed(ended)
    assert seen(command.folder) == ["none", OWN, "none"]


@pytest.mark.parametrize("protocol", ["http2", "http3"])
def test_other_protocols_of_http_do_it_too(
    protocol: str, command: CommandLab, tmp_path: Path
) -> None:
    kind = {"http2": "HTTP2Response", "http3": "HTTP3Response"}[protocol]
    text = FLOW.replace("-> HTTPResponse", f"-> {kind}").replace(
        "client.http.", f"client.{protocol}."
    )
    name = command.write(text)
    words = ("-i", "3", "-u", "1", "--traceparent")
    if protocol == "http2":
        with running_http2_server() as server:
            ended = command.load(name, "--host", server.url, *words)
    else:
        with running_http3_server(tmp_path) as server:
            ended = command.load(name, "--host", server.url, "--cacert", server.ca_file, *words)
    assert ended.code == 0, ended.err
    check_traces(seen(command.folder), 3)
