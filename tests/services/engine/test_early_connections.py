"""The users of a large share are connected before its load begins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter

import pytest

from squall import URL, HTTPResponse, Workflow, step, then
from squall.engine.core_protocol import ShareSpec
from squall.engine.plan.program import build_program
from squall.engine.run_options import RunOptions
from squall.engine.users import share as shares
from squall.engine.users.http_settings import http_shared
from squall.engine.users.share import Share
from squall.stats.manifest import Profile
from squall.stats.reports import WindowReport

USERS = 5
CLOSED = Profile(model="closed", vus=USERS, max_vus=USERS, duration_s=0.3, grace_s=5.0)
OPEN = Profile(model="open", vus=USERS, max_vus=USERS, duration_s=0.3, rate_per_s=20.0)


class Shop(Workflow):
    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def elsewhere(self, url: URL = "/elsewhere") -> HTTPResponse:
        return await self.client.http.get(url)


class TwoServers(Workflow):
    """A workflow whose users may begin with either server."""

    @step(weight=1)
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

    @step(weight=1)
    async def other(self, url: URL = "http://127.0.0.1:9/") -> HTTPResponse:
        return await self.client.http.get(url)


class Target:
    """Counts connections and requests, and answers everything."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()


@contextlib.asynccontextmanager
async def target() -> AsyncIterator[Target]:
    counts = Target()
    server = await asyncio.start_server(counts.serve, "127.0.0.1", 0)
    counts.port = server.sockets[0].getsockname()[1]
    async with server:
        yield counts


class Run:
    """One share of a workflow, and its reports."""

    def __init__(
        self, port: int, profile: Profile = CLOSED, workflow: type[Workflow] = Shop
    ) -> None:
        name = workflow.__name__
        options = RunOptions(file="shop.py", host=f"http://127.0.0.1:{port}")
        program = build_program([workflow], "shop.py", Path(), options)
        spec = ShareSpec(
            workflow=name, share=0, shares=1, profile=profile, users=USERS, users_max=USERS
        )
        self.http = http_shared(program.plans[name], options, Path())
        self.reports: list[WindowReport] = []
        self.share = Share(
            program, spec, self.http, on_report=self.reports.append, on_error=lambda error: None
        )

    async def load(self) -> None:
        self.share.go(perf_counter())
        async with asyncio.timeout(30.0):
            await self.share.wait()

    @property
    def failed(self) -> int:
        return sum(report.requests.failed for report in self.reports)


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes five users a large share."""
    monkeypatch.setattr(shares, "EARLY_MIN", USERS - 1)


@pytest.mark.asyncio
@pytest.mark.usefixtures("crowd")
async def test_users_are_connected_before_the_load_and_send_nothing() -> None:
    async with target() as served:
        run = Run(served.port)
        await run.share.prepare()
        assert run.http.counters.connections == USERS
        async with asyncio.timeout(10.0):
            while served.connections < USERS:
                await asyncio.sleep(0.01)
        assert (served.requests, run.http.counters.sent) == (0, 0)

        await run.load()
        counters = run.http.counters
        assert served.connections == counters.connections == USERS
        assert served.requests == counters.sent == counters.answered > USERS
        assert counters.reconnects == 0
        # The times of connects are reported, although no request waited for one.
        times = [report.connect for report in run.reports if report.connect is not None]
        assert sum(each.count for each in times) == USERS


@pytest.mark.asyncio
@pytest.mark.usefixtures("crowd")
async def test_the_requests_report_a_target_that_does_not_accept() -> None:
    async with target() as served:
        port = served.port
    run = Run(port)
    await run.share.prepare()
    assert run.http.counters.failed == 0
    await run.load()
    assert run.failed >= USERS


@pytest.mark.asyncio
@pytest.mark.usefixtures("crowd")
async def test_users_of_an_open_model_connect_with_their_first_start() -> None:
    async with target() as served:
        run = Run(served.port, OPEN)
        await run.share.prepare()
        assert run.http.counters.connections == 0
        await run.load()


@pytest.mark.asyncio
async def test_a_few_users_connect_with_their_first_request() -> None:
    async with target() as served:
        run = Run(served.port)
        await run.share.prepare()
        assert run.http.counters.connections == 0
        await run.load()
        assert served.connections == USERS


@pytest.mark.asyncio
@pytest.mark.usefixtures("crowd")
async def test_users_that_may_begin_with_another_server_do_not_connect_early() -> None:
    async with target() as served:
        run = Run(served.port, workflow=TwoServers)
        await run.share.prepare()
        assert run.http.counters.connections == 0
        await run.load()
