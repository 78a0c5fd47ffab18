"""The metrics port over real sockets, with a real HTTP client and with malformed requests."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from squall.runtime.interfaces import Address
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import HttpLimits, MetricsServer, Probes
from squall.runtime.real.runtime import RealRuntime
from tests.lab.runtime_conformance import Ear

Play = Callable[[RealRuntime, Address], Awaitable[None]]


async def serve(play: Play, probes: Probes | None = None, limits: HttpLimits | None = None) -> None:
    runtime = RealRuntime("node")
    registry = Registry()
    registry.counter("squall_frames_total", "Frames.").add(7)
    server = MetricsServer(runtime.network, registry, probes, limits)
    address = await server.start(("127.0.0.1", 0))
    try:
        async with asyncio.timeout(20.0):
            await play(runtime, address)
    finally:
        await server.close()
        await runtime.close()
    assert runtime.network.open_count == 0


async def ask(runtime: RealRuntime, address: Address, *parts: bytes) -> bytes:
    ear = Ear()
    line = await runtime.network.dial(address, ear, timeout_s=5.0)
    for part in parts:
        line.send(part)
        await asyncio.sleep(0.005)
    await ear.closed.wait()
    return ear.received


def fetch(address: Address, path: str, method: str = "GET") -> tuple[int, str, str]:
    url = f"http://{address[0]}:{address[1]}{path}"
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            body = response.read().decode()
            return response.status, body, response.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers["Content-Type"]


@pytest.mark.asyncio
async def test_metrics_are_scraped_and_probes_answer() -> None:
    reason = ["catching up"]

    async def play(_: RealRuntime, address: Address) -> None:
        status, body, kind = await asyncio.to_thread(fetch, address, "/metrics?x=1")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        [family] = text_string_to_metric_families(body)
        assert family.samples[0].value == 7
        assert (await asyncio.to_thread(fetch, address, "/healthz"))[:2] == (200, "ok\n")
        ready = await asyncio.to_thread(fetch, address, "/readyz")
        assert ready[:2] == (503, "catching up\n")
        reason[0] = ""
        assert (await asyncio.to_thread(fetch, address, "/readyz"))[0] == 200
        assert (await asyncio.to_thread(fetch, address, "/"))[0] == 404
        assert (await asyncio.to_thread(fetch, address, "/metrics", "POST"))[0] == 405
        assert (await asyncio.to_thread(fetch, address, "/metrics", "HEAD"))[1] == ""

    await serve(play, Probes(ready=lambda: reason[0]))


@pytest.mark.asyncio
async def test_a_probe_that_fails_tells_a_stranger_nothing() -> None:
    def broken() -> str:
        raise RuntimeError("hunter2")

    async def play(_: RealRuntime, address: Address) -> None:
        status, body, _kind = await asyncio.to_thread(fetch, address, "/healthz")
        assert (status, body) == (500, "internal error\n")

    await serve(play, Probes(alive=broken))


@pytest.mark.asyncio
async def test_a_request_in_any_pieces_is_understood_and_garbage_is_not() -> None:
    async def play(runtime: RealRuntime, address: Address) -> None:
        pieces = [bytes([byte]) for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"]
        assert (await ask(runtime, address, *pieces)).startswith(b"HTTP/1.1 200 OK\r\n")
        for garbage in (b"\x16\x03\x01\r\n\r\n", b"GET /\r\n\r\n", b"\r\n\r\n"):
            assert (await ask(runtime, address, garbage)).startswith(b"HTTP/1.1 400 ")

    await serve(play)


@pytest.mark.asyncio
async def test_an_endless_head_and_a_silent_client_are_cut_off() -> None:
    async def endless(runtime: RealRuntime, address: Address) -> None:
        answer = await ask(runtime, address, b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000)
        assert answer.startswith(b"HTTP/1.1 431 ")

    async def silent(runtime: RealRuntime, address: Address) -> None:
        assert (await ask(runtime, address)).startswith(b"HTTP/1.1 408 ")

    await serve(endless, limits=HttpLimits(request_head_max_bytes=1000))
    await serve(silent, limits=HttpLimits(request_timeout_s=0.1))


@pytest.mark.asyncio
async def test_an_answer_that_is_not_fetched_is_given_up() -> None:
    runtime, registry = RealRuntime("node"), Registry()
    numbers = registry.gauges("g", "x" * 10_000, ("n",))
    for number in range(1000):
        numbers.with_labels(f"{number}" * 10_000).set(1)
    server = MetricsServer(runtime.network, registry, None, HttpLimits(request_timeout_s=0.1))
    address = await server.start(("127.0.0.1", 0))
    ear = Ear()
    line = await runtime.network.dial(address, ear, timeout_s=5.0)
    line.pause_reading()
    line.send(b"GET /metrics HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20.0):
        while runtime.network.open_count != 2:
            await asyncio.sleep(0.01)
        # The listener and the client's own end are left: the server's end is gone.
        line.resume_reading()
        await ear.closed.wait()
    assert isinstance(ear.error, ConnectionError)
    await server.close()
    await runtime.close()


@pytest.mark.asyncio
async def test_one_connection_too_many_is_refused_and_leaves_room_when_it_is_gone() -> None:
    async def play(runtime: RealRuntime, address: Address) -> None:
        held = [Ear(), Ear()]
        for ear in held:
            await runtime.network.dial(address, ear, timeout_s=5.0)
        assert (await ask(runtime, address)).startswith(b"HTTP/1.1 503 ")
        for ear in held:
            ear.line.close()
            await ear.closed.wait()
        answer = await ask(runtime, address, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")

    await serve(play, limits=HttpLimits(connections=2))
