"""Calls from beginning to end: second tries, limits, cancelling, redirects, reports."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import weakref
from time import perf_counter
from typing import Any

import pytest

from squall.api.errors import CallError, ConfigError, TransportError
from squall.clients.http import ConnectLimiter, HTTPClient, HTTPShared
from tests.services.http.lab.servers import Peer, answering, on_uvloop, prepared, serve, swept

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@on_uvloop
async def test_nobody_listens() -> None:
    shared = HTTPShared()
    async with swept(shared) as client:
        with pytest.raises(TransportError, match=r"^connection refused: 127\.0\.0\.1:1$") as caught:
            await client.get("http://127.0.0.1:1/")
        assert client.last_exchange() is caught.value
        with pytest.raises(TransportError, match=r"name does not resolve: no\.such\.host\.invalid"):
            await client.get("http://no.such.host.invalid/")
        with pytest.raises(ConfigError, match=r"name does not resolve: no\.such\.host\.invalid"):
            await prepared(shared, "http://no.such.host.invalid/")
    counters = shared.counters
    assert (counters.sent, counters.answered, counters.failed, counters.unsent) == (0, 0, 2, 2)


async def _first_then_hang_up(peer: Peer) -> None:
    """Answers one request per connection and closes on the second without a word."""
    if await peer.request():
        await peer.send(OK)
    await peer.request()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
@on_uvloop
async def test_a_reused_connection_that_was_closed_is_tried_again_once(method: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"

    async def handler(peer: Peer) -> None:
        if await peer.request():
            await peer.send(head if method == "HEAD" else OK)
        await peer.request()

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            for _ in range(3):
                assert (await client.request(method, server.url + "/")).status_code == 200
        counters = shared.counters
        assert counters.reconnects == 2 and counters.answered == 3 and counters.failed == 0
        assert counters.sent == len(server.requests) == 5


@on_uvloop
async def test_a_plain_prepared_get_is_tried_again_too() -> None:
    async with serve(_first_then_hang_up) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            for _ in range(4):
                response = await client.get(url)
                assert response.body == b"ok" and client.last is response
        assert shared.counters.reconnects == 3 and shared.counters.connections == 4


@on_uvloop
async def test_post_is_never_sent_twice() -> None:
    async with serve(_first_then_hang_up) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            await client.post(server.url + "/", data=b"1")
            with pytest.raises(TransportError, match="connection closed before a response"):
                await client.post(server.url + "/", data=b"2")
        assert len(server.requests) == 2
        assert shared.counters.failed == 1 and shared.counters.reconnects == 0


@on_uvloop
async def test_the_second_try_fails_for_good() -> None:
    async def handler(peer: Peer) -> None:
        if peer.number == 1 and await peer.request():
            await peer.send(OK)
        await peer.request()

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            await client.get(url)
            with pytest.raises(TransportError, match="connection closed before a response"):
                await client.get(url)
        counters = shared.counters
        assert (counters.sent, counters.answered, counters.failed) == (3, 1, 1)
        assert counters.reconnects == 1


@on_uvloop
async def test_a_response_begun_is_not_asked_for_again() -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 2")

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            await client.get(url)
            with pytest.raises(TransportError, match="response cut off"):
                await client.get(url)
        assert len(server.requests) == 2


@on_uvloop
async def test_slow_answers_time_out_and_the_connection_is_not_used_again() -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-")
            await peer.reader.read()
            return
        await peer.send(OK)
        await peer.request()

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            began = perf_counter()
            with pytest.raises(TransportError, match=r"^timeout after 0\.05 s$") as caught:
                await client.get(server.url + "/", timeout="50ms")
            # Connecting is part of the limit, and not of the time between the stamps.
            assert caught.value.ended - began >= 0.05
            assert (await client.get(server.url + "/")).ok
        assert shared.counters.failed == 1 and server.connections == 2


@on_uvloop
async def test_a_limit_set_on_the_client_holds_until_it_is_taken_back() -> None:
    async def handler(peer: Peer) -> None:
        while request := await peer.request():
            if b"/slow" in request:
                await asyncio.sleep(30)
            await peer.send(OK)

    async with serve(handler) as server:
        shared = HTTPShared(timeout_s=25.0)
        async with swept(shared) as client:
            fast, slow = [await prepared(shared, server.url + path) for path in ("/", "/slow")]
            await client.get(fast)
            client.timeout_s = 0.05
            with pytest.raises(TransportError, match=r"timeout after 0\.05 s"):
                await client.get(slow)
            client.timeout_s = None
            assert client.timeout_s == 25.0
            await client.get(fast)


@on_uvloop
async def test_the_limit_covers_a_chain_of_redirects() -> None:
    async def handler(peer: Peer) -> None:
        while await peer.request():
            await asyncio.sleep(0.03)
            await peer.send(b"HTTP/1.1 302 Found\r\nLocation: /on\r\nContent-Length: 0\r\n\r\n")

    async with serve(handler) as server:
        shared = HTTPShared(redirects=1000)
        async with swept(shared) as client:
            began = perf_counter()
            with pytest.raises(TransportError, match=r"timeout after 0\.2 s") as caught:
                await client.get(server.url + "/", timeout=0.2)
            assert caught.value.ended - began >= 0.2
        assert 1 <= len(server.requests) < 20


@on_uvloop
async def test_a_connection_that_is_never_accepted_times_out() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        held = [socket.socket() for _ in range(4)]
        for sock in held:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        shared = HTTPShared()
        async with swept(shared) as client:
            with pytest.raises(TransportError, match=r"^timeout after 0\.1 s$"):
                await client.get(f"http://127.0.0.1:{port}/", timeout=0.1)
        assert shared.counters.unsent == 1
        for sock in held:
            sock.close()


@on_uvloop
async def test_a_cancelled_call_closes_its_connection_and_counts_as_neither() -> None:
    async def handler(peer: Peer) -> None:
        while request := await peer.request():
            if b"/slow" in request:
                await asyncio.sleep(0.05)
            await peer.send(OK)

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            fast, slow = [await prepared(shared, server.url + path) for path in ("/", "/slow")]
            await client.get(fast)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await client.get(slow)
                assert (await client.get(fast)).body == b"ok"
        counters = shared.counters
        assert (counters.sent, counters.answered, counters.cancelled) == (7, 4, 3)
        assert counters.failed == 0 and counters.connections == 4


@on_uvloop
async def test_cancelling_at_any_moment_never_mixes_answers_up() -> None:
    async def handler(peer: Peer) -> None:
        while request := await peer.request():
            number = request.split(b" ")[1].rpartition(b"/")[2]
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(number) + number)

    async with serve(handler) as server:
        shared = HTTPShared(connections="shared")
        async with swept(shared):
            wrong: list[bytes] = []

            async def user(index: int) -> None:
                client = HTTPClient(shared, index)
                for turn in range(40):
                    number = str(index * 1000 + turn)
                    task = asyncio.ensure_future(client.get(f"{server.url}/{number}"))
                    for _ in range((index + turn) % 9):
                        await asyncio.sleep(0)
                    if (index + turn) % 3:
                        task.cancel()
                    try:
                        response = await task
                    except asyncio.CancelledError:
                        continue
                    if response.text != number:
                        wrong.append(response.body)

            await asyncio.gather(*[user(index) for index in range(12)])
            assert not wrong
            counters = shared.counters
            assert counters.sent == counters.answered + counters.cancelled + counters.reconnects


@on_uvloop
async def test_calls_at_the_same_time_get_a_connection_each() -> None:
    async with serve(answering(OK)) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            for _ in range(5):
                await asyncio.gather(*[client.get(url) for _ in range(4)])
        assert server.connections == 4 and shared.counters.answered == 20


@on_uvloop
async def test_steps_side_by_side_see_their_own_last_exchange() -> None:
    async def handler(peer: Peer) -> None:
        while request := await peer.request():
            await peer.send(OK if b"/a" in request else OK.replace(b"200 OK", b"500 No"))

    async with serve(handler) as server:
        shared = HTTPShared()
        shared.siblings = True
        async with swept(shared) as client:
            seen: dict[str, int] = {}
            gate = asyncio.Event()

            async def step(path: str) -> None:
                client.clear_last()
                assert client.last_exchange() is None
                await asyncio.ensure_future(client.get(server.url + path))
                if len(seen) == 0:
                    gate.set()
                await gate.wait()
                await asyncio.sleep(0.01)
                last = client.last_exchange()
                assert last is not None and not isinstance(last, TransportError)
                seen[path] = last.status_code

            await asyncio.gather(asyncio.create_task(step("/a")), asyncio.create_task(step("/b")))
        assert seen == {"/a": 200, "/b": 500}


@on_uvloop
async def test_named_calls_and_every_exchange_are_reported() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
    async with serve(answering(moved, OK)) as server:
        shared = HTTPShared()
        named: list[str] = []
        exchanges: list[tuple[str, str, bool]] = []
        shared.on_named = lambda name, outcome: named.append(f"{name} {outcome.__class__.__name__}")
        shared.on_exchange = lambda e: exchanges.append(
            (e.method, e.url.rpartition("/")[2], e.request.startswith(e.method.encode()))
        )
        async with swept(shared) as client:
            await client.get(await prepared(shared, server.url + "/a"))
            await client.post(server.url + "/c", name="login")
            with pytest.raises(TransportError):
                await client.get("http://127.0.0.1:1/d", name="gone")
        assert named == ["login HTTPResponse", "gone TransportError"]
        assert exchanges == [
            ("GET", "a", True),
            ("GET", "b", True),
            ("POST", "c", True),
            ("GET", "d", True),
        ]


@on_uvloop
async def test_credentials_stay_with_their_origin() -> None:
    async with serve(answering(OK)) as other:
        moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: %b/x\r\nContent-Length: 0\r\n\r\n"
        async with serve(answering(moved % other.url.encode())) as server:
            async with swept(HTTPShared()) as client:
                address = server.url.replace("//", "//ada:pw@")
                response = await client.post(
                    address + "/", data=b"body", headers={"Cookie": "a=1", "X-Kept": "1"}
                )
                assert response.hops == 2
        assert b"authorization: basic" in server.requests[0].lower()
        second = other.requests[0]
        assert b"uthorization" not in second and b"Cookie" not in second
        assert second.startswith(b"POST /x ") and second.endswith(b"\r\n\r\nbody")
        assert b"X-Kept: 1" in second and f"Host: 127.0.0.1:{other.port}\r\n".encode() in second


@on_uvloop
async def test_a_redirect_that_leads_nowhere_is_a_failure() -> None:
    for location in (b"ftp://127.0.0.1/", b"http://[::1", b"mailto:a@b"):
        moved = b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % location
        async with serve(answering(moved)) as server:
            async with swept(HTTPShared()) as client:
                with pytest.raises(TransportError, match="redirect to an unusable address"):
                    await client.get(server.url + "/")
    async with serve(answering(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n")) as server:
        async with swept(HTTPShared()) as client:
            assert (await client.get(server.url + "/")).status_code == 302


@on_uvloop
async def test_line_breaks_in_arguments_are_refused_and_nothing_is_sent() -> None:
    async with serve(answering(OK)) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            for bad in (
                {"headers": {"X-A": "1\r\nX-B: 2"}},
                {"headers": {"X A": "1"}},
                {"cookies": {"a": "b\r\nX: y"}},
                {"auth": "Bearer a\r\nX: y"},
                {"headers": {"Transfer-Encoding": "chunked"}},
            ):
                with pytest.raises(CallError):
                    await client.get(server.url + "/", **bad)  # type: ignore[arg-type]
            await client.get(server.url + "/a\r\nX: y", params={"q\r\n": "\r\n"})
        assert shared.counters.sent == 1
        assert server.requests[0].startswith(b"GET /aX:%20y?q%0D%0A=%0D%0A HTTP/1.1\r\nHost: ")


@on_uvloop
async def test_ipv6_and_all_addresses_of_a_name() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    async with serve(answering(OK)) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            # "localhost" may be ::1 first, where no server listens.
            for index in range(4):
                other = HTTPClient(shared, index)
                assert (await other.get(f"http://localhost:{server.port}/")).ok
            with pytest.raises(TransportError, match=r"refused|unreachable|no local ports"):
                await client.get("http://[::1]:1/")


@on_uvloop
async def test_only_so_many_connects_at_once() -> None:
    limiter = ConnectLimiter(2)
    most = 0

    async def one(cancelled: bool) -> None:
        nonlocal most
        if (turn := limiter.queue()) is not None:
            try:
                await turn
            except asyncio.CancelledError:
                limiter.leave(turn)
                raise
        most = max(most, limiter._busy)  # pyright: ignore[reportPrivateUsage]
        try:
            await asyncio.sleep(0.001)
        finally:
            limiter.release()

    tasks = [asyncio.ensure_future(one(False)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 2
    assert limiter._busy == 0  # pyright: ignore[reportPrivateUsage]


@on_uvloop
async def test_many_users_connect_through_the_limit() -> None:
    async with serve(answering(OK)) as server:
        shared = HTTPShared(limiter=ConnectLimiter(3), connect_limit=3)
        async with swept(shared):
            url = await prepared(shared, server.url + "/")
            clients = [HTTPClient(shared, index) for index in range(40)]
            await asyncio.gather(*[client.get(url) for client in clients])
        assert server.connections == 40


@on_uvloop
async def test_stamps_are_taken_when_bytes_arrive_not_when_the_task_runs() -> None:
    async with serve(answering(OK)) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            await client.get(url)

            async def busy() -> None:
                # Runs in the same turn of the loop, after the bytes and before the task.
                until = perf_counter() + 0.05
                while perf_counter() < until:
                    pass

            task = asyncio.ensure_future(client.get(url))
            while shared.counters.answered < 2:
                await asyncio.sleep(0)
            began = perf_counter()
            await busy()
            response = await task
            assert response.ended <= began


@pytest.mark.parametrize("scheme", ["http", "https"])
@on_uvloop
async def test_cancelling_while_connecting_leaves_nothing_behind(scheme: str) -> None:
    async def silent(peer: Peer) -> None:
        await peer.reader.read()

    async with serve(silent) as server:
        limiter = ConnectLimiter(1)
        shared = HTTPShared(limiter=limiter, connect_limit=1, verify=False)
        async with swept(shared) as client:
            url = f"{scheme}://127.0.0.1:{server.port}/"
            for turns in range(12):
                task = asyncio.ensure_future(client.get(url))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            while shared.live:
                await asyncio.sleep(0.005)
            # The only place of the limiter is free again.
            assert limiter.queue() is None


@on_uvloop
async def test_a_handshake_that_never_ends_times_out() -> None:
    async def silent(peer: Peer) -> None:
        await peer.reader.read()

    async with serve(silent) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            with pytest.raises(TransportError, match=r"^timeout after 0\.1 s$"):
                await client.get(f"https://127.0.0.1:{server.port}/", timeout=0.1)
        assert (shared.counters.sent, shared.counters.unsent) == (0, 1)


@on_uvloop
async def test_running_out_of_descriptors_is_named() -> None:
    async with serve(answering(OK)) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            url = await prepared(shared, server.url + "/")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest_free = os.dup(0)
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            try:
                with pytest.raises(TransportError, match="too many open files"):
                    await client.get(url)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (await client.get(url)).ok


@on_uvloop
async def test_a_plain_text_as_url_and_a_prepared_one_send_the_same() -> None:
    async with serve(answering(OK)) as server:
        shared = HTTPShared(host=server.url)
        async with swept(shared) as client:
            url = await prepared(shared, "/x")
            for _ in range(2):
                await client.get(url)
                await client.get("/x")
                await client.get("/{id}", path={"id": "x"})
        assert len(set(server.requests)) == 1 and len(server.requests) == 6


@on_uvloop
async def test_a_failed_call_leaves_no_garbage_for_the_collector() -> None:
    """Failures come by the thousand, and the collector is off while a run is on."""

    async def handler(peer: Peer) -> None:
        while request := await peer.request():
            if b"/drop" in request:
                return
            if b"/cut" in request:
                await peer.send(OK[:-1])
                return
            await peer.send(b"garbage" if b"/garbage" in request else OK)

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as client:
            gone: list[weakref.ref[BaseException]] = []
            gc.collect()
            gc.disable()
            try:
                for address in ("http://127.0.0.1:1/", *(server.url + p for p in PATHS)):
                    url = await prepared(shared, address)
                    for method in (client.get, client.post):
                        await client.get(server.url + "/")
                        gone.append(await _failure(method, url))
                        client.last = None
                assert len(gone) == 8
                # The last connection reports its end.
                async with asyncio.timeout(30.0):
                    while any(ref() is not None for ref in gone):
                        await asyncio.sleep(0.005)
            finally:
                gc.enable()


PATHS = ("/drop", "/cut", "/garbage")


async def _failure(method: Any, url: Any) -> weakref.ref[BaseException]:
    try:
        await method(url)
    except TransportError as error:
        return weakref.ref(error)
    raise AssertionError("the call did not fail")


@on_uvloop
async def test_steps_beside_each_other_keep_their_own_timeouts() -> None:
    shared = HTTPShared()
    shared.siblings = True
    client = HTTPClient(shared, 0)

    async def step(timeout_s: float | None) -> list[float]:
        client.clear_last()
        client.timeout_s = timeout_s
        seen = [client.timeout_s]
        await asyncio.sleep(0)
        seen.append(client.timeout_s)
        return seen

    assert await asyncio.gather(step(1.0), step(2.0), step(None)) == [
        [1.0, 1.0],
        [2.0, 2.0],
        [60.0, 60.0],
    ]
