"""Servers of three protocols and a workflow that uses them all, with plain HTTP beside it. What a
run counts by protocol must equal what the servers counted."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.lab.http2_server import HTTP2Server, running_http2_server
from tests.lab.sse_server import EventServer, running_event_server
from tests.lab.websocket_server import WebsocketServer, running_websocket_server

EVENTS = 3
WORKFLOW = """
from squall import HTTP2Response, SSEResponse, WebsocketResponse, then

class Load(Workflow):
    {load}

    @step()
    async def plain(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def stream(self, url: URL = "{http2}/") -> HTTP2Response:
        return await self.client.http2.get(url)

    @then()
    async def ask(self, url: URL = "{websocket}/echo") -> WebsocketResponse:
        return await self.client.websocket.ask(url, "hello")

    @then()
    async def events(self, url: URL = "{sse}/events") -> SSEResponse:
        return await self.client.sse.listen(url, events={events}, timeout="60s")
"""
CLOSED = "vus = 2\n    iterations = 12"
OPEN = 'rate = "8/s"\n    duration = "2s"'


class ProtocolServers(NamedTuple):
    http2: HTTP2Server
    websocket: WebsocketServer
    sse: EventServer

    def workflow(self, load: str) -> str:
        urls = {"http2": self.http2.url, "websocket": self.websocket.url, "sse": self.sse.url}
        return WORKFLOW.format(load=load, events=EVENTS, **urls)

    def check(self, document: dict[str, Any], plain: int) -> None:
        """`plain` is what the server of plain HTTP counted."""
        (workflow,) = document["workflows"]
        found = {each["name"]: each for each in workflow["protocols"]}
        assert set(found) == {"http", "http2", "websocket", "sse"}
        made = workflow["starts"]["made"]
        assert made == workflow["iteration"]["ok"] > 0
        assert {name: each["sent"] for name, each in found.items()} == dict.fromkeys(found, made)
        seen = (
            plain,
            self.http2.requests,
            self.websocket.messages["/echo"],
            self.sse.paths["/events"],
        )
        assert seen == (made,) * 4
        assert sum(each["sent"] for each in found.values()) == workflow["requests"]["sent"]
        assert not any(each["failed"] for each in found.values())
        assert found["http2"]["connections"] == self.http2.connections
        assert found["websocket"]["connections"] == self.websocket.connections
        assert found["websocket"]["messages_sent"] == made
        assert found["websocket"]["messages_received"] == made
        # Events that came in one packet with the last one are received, too.
        assert found["sse"]["messages_received"] >= EVENTS * made
        assert found["sse"]["connections"] == found["sse"]["connect_histogram"]["count"] == made


@contextmanager
def running_protocol_servers() -> Generator[ProtocolServers]:
    with (
        running_http2_server() as http2,
        running_websocket_server() as websocket,
        running_event_server() as sse,
    ):
        yield ProtocolServers(http2, websocket, sse)
