"""Calls through a library, against scripted servers. The library here is one of the tests: it sends
a line and reads a line, with asyncio's streams."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from squall.api.errors import CallError, ConfigError, TransportError
from squall.api.protocols.response import ProtocolResponse
from squall.clients import registry
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.calls.library import Library, LibraryCalls, LibraryConnection
from squall.clients.calls.probe import PingAnswer
from squall.clients.http import Exchange, HTTPClient, HTTPShared
from squall.clients.ping import ping
from tests.services.http.lab.servers import Peer, on_uvloop, prepared, serve, swept

SOURCE = registry.ClientSource(
    "tests.services.clients.test_library_calls", "LineClient", "", (registry.Scheme("lines", 7007),)
)


class LineResponse(ProtocolResponse, eq=False, gc=False):
    protocol: ClassVar[str] = "lines"

    line: str = ""

    @property
    def text(self) -> str:
        return self.line


class LineClient:
    """`ignores` cancellations as a careless library does."""

    ignores = False

    def __init__(self, http: HTTPClient, *, multiplexes: bool = False) -> None:
        library = Library(
            _open, abort=lambda streams: streams[1].transport.abort(), multiplexes=multiplexes
        )
        self.calls = LibraryCalls(http, "lines", library)

    async def ask(self, url: Any, line: str, timeout: Any = None) -> LineResponse:
        answer = await self.calls.call(
            url,
            line,
            lambda streams: self._exchange(streams, line),
            timeout=timeout,
            sent=len(line),
        )
        error = answer.value if answer.value.startswith("-") else ""
        return self.calls.done(LineResponse(*answer.stamps, error=error, line=answer.value))

    async def _exchange(self, streams: Any, line: str) -> str:
        reader, writer = streams
        writer.write(line.encode() + b"\n")
        while True:
            try:
                answer = await reader.readline()
            except asyncio.CancelledError:
                if not self.ignores:
                    raise
                continue
            if not answer:
                raise EOFError
            return answer.decode().strip()

    async def probe(self, url: Any) -> PingAnswer:
        return PingAnswer("Lines 1.0", await self.ask(url, "hello"), ["all is well"])


async def _open(opening: LibraryOpening) -> Any:
    return await asyncio.open_connection(opening.host, opening.port, ssl=opening.tls)


@pytest.fixture(autouse=True)
def _lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CLIENTS, "lines", SOURCE)
    monkeypatch.setitem(registry.SCHEMES, "lines", ("lines", SOURCE.schemes[0]))


async def _answering(peer: Peer) -> None:
    """Answers each line with itself; `hang` with nothing, `close` with the end."""
    while line := await peer.reader.readline():
        if line == b"close\n":
            return
        if line != b"hang\n":
            await peer.send(line)


def _address(server: Any) -> str:
    return server.url.replace("http://", "lines://")


@on_uvloop
async def test_a_call_is_counted_and_stamped_and_its_connection_is_kept() -> None:
    async with serve(_answering) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = LineClient(http)
            url = await prepared(shared, _address(server))
            first = await client.ask(url, "one")
            second = await client.ask(url, "two")
            assert (first.line, second.line) == ("one", "two")
            assert first.timings.connect_s > 0 and second.timings.connect_s == 0
            assert first.started < first.first_byte <= first.ended
            assert (second.bytes_sent, second.ok) == (0, True)
            refused = await client.ask(url, "-no")
            assert (refused.ok, refused.failure) == (False, "-no")
            assert http.last is refused
        counters = shared.counters_of("lines")
        assert (counters.sent, counters.answered, counters.connections) == (3, 3, 1)
        assert (counters.bytes_sent, counters.bytes_received) == (9, 12)
        assert len(counters.connect_samples) == 1


@on_uvloop
async def test_the_answer_is_stamped_when_it_comes_and_not_when_the_task_runs() -> None:
    async with serve(_answering) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = LineClient(http)
            await client.ask(_address(server), "warm")
            asked = asyncio.ensure_future(client.ask(_address(server), "one"))
            clock = asyncio.get_running_loop().time
            connection = next(each for each in shared.live if isinstance(each, LibraryConnection))
            while not asked.done():
                came = connection.arrivals.last
                await asyncio.sleep(0)
                if connection.arrivals.last != came:
                    # The answer is here, and its task waits for the next turn of the loop.
                    until = clock() + 0.05
                    while clock() < until:
                        pass
            response = await asked
            assert response.timings.total_s < 0.05 or response.ended == connection.arrivals.last


@pytest.mark.parametrize("ignores", [False, True])
@on_uvloop
async def test_a_library_that_hangs_is_left_in_time_and_its_connection_dropped(
    ignores: bool,
) -> None:
    async with serve(_answering) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = LineClient(http)
            client.ignores = ignores
            url = await prepared(shared, _address(server))
            with pytest.raises(TransportError, match=r"^timeout after 0.05 s$") as caught:
                await client.ask(url, "hang", timeout="50ms")
            assert caught.value.request == f"LINES hang {url}"
            assert caught.value.protocol == "lines"
            assert (await client.ask(url, "again")).line == "again"
        counters = shared.counters_of("lines")
        assert (counters.sent, counters.failed, counters.connections) == (2, 1, 2)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0


@on_uvloop
async def test_a_lost_connection_and_a_cancelled_call_are_counted() -> None:
    async with serve(_answering) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = LineClient(http)
            url = await prepared(shared, _address(server))
            with pytest.raises(TransportError, match=r"^connection closed by the server$"):
                await client.ask(url, "close")
            cancelled = asyncio.ensure_future(client.ask(url, "hang"))
            await asyncio.wait([cancelled], timeout=0.05)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert (await client.ask(url, "again")).line == "again"
        counters = shared.counters_of("lines")
        assert (counters.sent, counters.failed, counters.cancelled) == (3, 1, 1)


@on_uvloop
async def test_a_server_that_is_gone_is_one_failure_by_reason() -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        client = LineClient(http)
        with pytest.raises(TransportError, match=r"^connection refused: 127\.0\.0\.1:9$"):
            await client.ask("lines://ada:secret@127.0.0.1:9/db", "one")
        assert isinstance(http.last, TransportError) and "secret" not in http.last.request
    counters = shared.counters_of("lines")
    assert (counters.sent, counters.failed, counters.unsent) == (0, 1, 1)


@on_uvloop
async def test_a_pool_has_at_most_its_size_and_serves_its_users_in_order() -> None:
    async with serve(_answering) as server:
        shared = HTTPShared(connections="shared", pool_size=2)
        async with swept(shared) as http:
            url = await prepared(shared, _address(server))
            ended: list[int] = []

            async def user(number: int) -> None:
                await LineClient(HTTPClient(shared, number)).ask(url, f"line {number}")
                ended.append(number)

            await asyncio.gather(*(user(number) for number in range(20)))
            # Two connections: a call is overtaken by the one beside it at most.
            assert all(abs(place - number) <= 1 for place, number in enumerate(ended))
            # A connection that breaks gives its place to another.
            for _ in range(3):
                with pytest.raises(TransportError):
                    await LineClient(http).ask(url, "close")
            with pytest.raises(TransportError, match="timeout"):
                await LineClient(http).ask(url, "hang", timeout=0.02)
            waiting = [asyncio.ensure_future(LineClient(http).ask(url, "hang")) for _ in range(2)]
            await asyncio.sleep(0.01)
            late = asyncio.ensure_future(LineClient(http).ask(url, "late", timeout=0.02))
            with pytest.raises(TransportError, match="timeout"):
                await late
            last = asyncio.ensure_future(LineClient(http).ask(url, "last"))
            for task in waiting:
                task.cancel()
            assert (await last).line == "last"
            assert (await last).timings.connect_s > 0
        assert shared.counters_of("lines").connections <= 2 + 3 + 1 + 2


@pytest.mark.parametrize(("connections", "opened"), [("vu", 1), ("iteration", 2), ("request", 4)])
@on_uvloop
async def test_the_policies_of_connections(connections: Any, opened: int) -> None:
    async with serve(_answering) as server:
        shared = HTTPShared(connections=connections)
        async with swept(shared) as http:
            client = LineClient(http)
            url = await prepared(shared, _address(server))
            for _ in range(2):
                http.begin_iteration()
                await client.ask(url, "one")
                await client.ask(url, "two")
        assert shared.counters_of("lines").connections == opened


@on_uvloop
async def test_a_multiplexed_library_has_one_connection_for_all_users() -> None:
    async with serve(_answering) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            clients = [LineClient(http, multiplexes=True) for _ in range(5)]
            url = _address(server)
            # One call at a time: the library of this test cannot tell answers apart.
            for client in clients:
                await client.ask(url, "one")
            await asyncio.gather(*(client.calls.take(url, "") for client in clients))
            with pytest.raises(TransportError):
                await clients[0].ask(url, "close")
        assert shared.counters_of("lines").connections == 1


@on_uvloop
async def test_no_call_begins_after_the_lease() -> None:
    async with serve(_answering) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = LineClient(http)
            await client.ask(_address(server), "one")
            shared.limit[0], shared.allows = 0.0, lambda now: False
            with pytest.raises(asyncio.CancelledError):
                await client.ask(_address(server), "two")
        assert shared.counters_of("lines").sent == 1


@on_uvloop
async def test_a_name_of_resolve_is_connected_to_and_shown() -> None:
    async with serve(_answering) as server:
        port = int(server.url.rsplit(":", 1)[1])
        shared = HTTPShared(resolve={("db.test", port): "127.0.0.1"})
        async with swept(shared) as http:
            response = await LineClient(http).ask(
                f"lines://ada:pw@db.test:{port}/x?password=pw", "a"
            )
            assert response.url == f"lines://ada@db.test:{port}/x"


@on_uvloop
async def test_once_and_ping_show_the_exchange() -> None:
    async with serve(_answering) as server:
        seen: list[Exchange] = []
        shared = HTTPShared()
        shared.on_exchange = seen.append
        async with swept(shared) as http:
            client = LineClient(http)
            await client.ask(_address(server), "one")
            with pytest.raises(TransportError):
                await client.ask(_address(server), "close")
        assert [(each.method, each.request) for each in seen] == [
            ("LINES", b"one"),
            ("LINES", b"close"),
        ]
        found = await ping(_address(server))
        assert found.render().startswith("Lines 1.0  from 127.0.0.1:")
        assert found.lines[2:] == ["all is well"]
    gone = await ping("lines://ada:secret@127.0.0.1:9")
    assert (gone.ok, gone.error) == (False, "connection refused: 127.0.0.1:9")
    assert "secret" not in gone.render()


@pytest.mark.parametrize(
    "text", ["lines://ada:sec/ret@host", "lines://", "lines://ada:secret@:7", "lines://a b:1"]
)
@on_uvloop
async def test_a_wrong_address_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await prepared(HTTPShared(), text)
    assert "sec" not in str(caught.value)
    assert "lines://user:password@host:port" in str(caught.value)


@on_uvloop
async def test_an_address_has_its_parts_and_hides_its_password() -> None:
    shared = HTTPShared()
    url = await prepared(shared, "LINES://a%40b:p%2Fw@[::1]/data/base?x=1&y=")
    assert isinstance(url, PreparedAddress)
    assert (url.user, url.password, url.host, url.port) == ("a@b", "p/w", "::1", 7007)
    assert (url.path, dict(url.query)) == ("/data/base", {"x": "1", "y": ""})
    assert str(url) == "lines://a%40b@[::1]:7007/data/base"
    http = HTTPClient(shared, 0)
    with pytest.raises(
        CallError, match=r"^an address of lines begins with lines://, not with http"
    ):
        await LineClient(http).ask("http://127.0.0.1", "one")
