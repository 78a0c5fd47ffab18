"""What only real sockets have: TLS, resets, stuck peers, handlers that raise."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
import uvloop

from squall.api.errors import ConfigError
from squall.runtime.interfaces import Address, Connection, TLSRefused
from squall.runtime.real import network as real_network
from squall.runtime.real.network import RealNetwork
from squall.runtime.real.tls import client_tls, server_tls
from tests.lab.runtime_conformance import Ear, Post

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
Check = Callable[[RealNetwork], Awaitable[None]]
Play = Callable[[Check], list[str]]


@pytest.fixture(params=list(LOOPS))
def play(
    request: pytest.FixtureRequest,
) -> Callable[[Callable[[RealNetwork], Awaitable[None]]], list[str]]:
    def run(check: Callable[[RealNetwork], Awaitable[None]]) -> list[str]:
        """Plays on one loop; what its exception handler heard is returned."""
        heard: list[str] = []

        async def whole() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, what: heard.append(what["message"]))
            network = RealNetwork()
            try:
                async with asyncio.timeout(20.0):
                    await check(network)
            finally:
                await network.close()
            assert network.open_count == 0

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(whole())
        gc.collect()
        return heard

    return run


class Authority:
    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        folder.mkdir()
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, *names: str) -> tuple[Path, Path]:
        made = self._ca.issue_cert(*names)
        stem = names[0].replace("/", "_")
        certificate, key = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        made.cert_chain_pems[0].write_to_path(certificate)
        made.private_key_pem.write_to_path(key)
        return certificate, key


def test_both_sides_of_tls_know_whom_they_talk_to(play: Play, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = server_tls(*authority.issue("gate-1.squall"), authority.file)
    client = client_tls(*authority.issue("worker-7.squall"), authority.file)

    async def check(network: RealNetwork) -> None:
        far = Ear(echo=True)
        listener = await network.listen(("127.0.0.1", 0), lambda: far, tls=server)
        near = Ear()
        line = await network.dial(listener.address, near, timeout_s=10.0, tls=client)
        for _ in range(100):
            line.send(b"x" * 10_000)
        await near.has(1_000_000)
        assert line.peer_names == ("DNS:gate-1.squall",)
        assert far.line.peer_names == ("DNS:worker-7.squall",)
        far.line.send(b"bye")
        far.line.close()
        await near.closed.wait()
        await far.closed.wait()
        assert near.received.endswith(b"bye")
        assert (near.error, far.error) == (None, None)

    assert play(check) == []


def test_a_stranger_is_not_let_in_and_the_listener_reports_it(play: Play, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    server = server_tls(*authority.issue("gate-1.squall"), authority.file)
    mine = authority.issue("worker-7.squall")
    theirs = stranger.issue("worker-7.squall")

    async def check(network: RealNetwork) -> None:
        made: list[Ear] = []
        reported: list[str] = []

        def accept() -> Ear:
            made.append(Ear())
            return made[-1]

        def refused(address: Address, error: TLSRefused) -> None:
            assert address[0] == "127.0.0.1"
            reported.append(str(error))

        async def report() -> str:
            while not reported:
                await asyncio.sleep(0.001)
            return reported.pop()

        listener = await network.listen(("127.0.0.1", 0), accept, tls=server.reporting(refused))
        distrusting = client_tls(*mine, stranger.file)
        ear = Ear()
        with pytest.raises(TLSRefused, match="not signed by our authority"):
            await network.dial(listener.address, ear, timeout_s=10.0, tls=distrusting)
        assert ear.calls == []
        assert "ended the TLS handshake" in await report()
        # In TLS 1.3 the dialler is done before the listener checks its certificate.
        unknown = client_tls(*theirs, authority.file)
        ear = Ear()
        line = await network.dial(listener.address, ear, timeout_s=10.0, tls=unknown)
        line.send(b"let me in")
        await ear.closed.wait()
        assert ear.received == b""
        assert "not signed by our authority" in await report()
        ear = Ear()
        plain = await network.dial(listener.address, ear, timeout_s=10.0)
        plain.send(b"a frame without TLS")
        await ear.closed.wait()
        assert ear.received.startswith(b"\x15\x03"), "the listener answers with an alert of TLS"
        assert "does not speak TLS" in await report()
        known = client_tls(*mine, authority.file)
        await network.dial(listener.address, Ear(), timeout_s=10.0, tls=known)
        while not made:
            await asyncio.sleep(0.001)
        await made[0].opened.wait()
        assert made[0].line.peer_names == ("DNS:worker-7.squall",)
        assert [ear.received for ear in made] == [b""]

    play(check)


def test_a_peer_that_never_speaks_tls_times_out(play: Play, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    tls = client_tls(*authority.issue("a.squall"), authority.file)

    async def check(network: RealNetwork) -> None:
        listener = await network.listen(("127.0.0.1", 0), Ear)
        ear = Ear()
        with pytest.raises(TimeoutError, match=r"did not answer in 0\.2 s"):
            await network.dial(listener.address, ear, timeout_s=0.2, tls=tls)
        assert ear.calls == []

    play(check)


def test_unusable_certificates_are_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    empty = tmp_path / "empty.pem"
    with pytest.raises(ConfigError, match=r"empty\.pem: not a PEM file with a certificate"):
        server_tls(empty, empty, empty)
    with pytest.raises(ConfigError, match=r"absent\.pem"):
        client_tls(tmp_path / "absent.pem", empty, empty)


@pytest.mark.parametrize("at", ["on_open", "on_data"])
def test_a_handler_that_raises_loses_its_own_connection_only(play: Play, at: str) -> None:
    class Faulty(Ear):
        def on_open(self, connection: Connection) -> None:
            super().on_open(connection)
            if at == "on_open":
                raise ValueError("at open")

        def on_data(self, data: bytes) -> None:
            raise ValueError("at data")

    async def check(network: RealNetwork) -> None:
        handlers: list[Ear] = [Faulty(), Ear(echo=True)]
        waiting = iter(handlers)
        listener = await network.listen(("127.0.0.1", 0), lambda: next(waiting))
        first, second = Ear(), Ear()
        await network.dial(listener.address, first, timeout_s=5.0)
        first.line.send(b"x")
        await first.closed.wait()
        await handlers[0].closed.wait()
        assert isinstance(handlers[0].error, ValueError)
        assert handlers[0].calls == ["open", "closed"]
        await network.dial(listener.address, second, timeout_s=5.0)
        second.line.send(b"fine")
        await second.has(4)

    assert play(check) == [f"a handler failed in {at}"]


def test_an_acceptor_that_raises_refuses_and_the_listener_goes_on(play: Play) -> None:
    async def check(network: RealNetwork) -> None:
        answers = iter([None, Ear(echo=True)])

        def accept() -> Ear:
            answer = next(answers)
            if answer is None:
                raise ValueError("no room")
            return answer

        listener = await network.listen(("127.0.0.1", 0), accept)
        first, second = Ear(), Ear()
        await network.dial(listener.address, first, timeout_s=5.0)
        await first.closed.wait()
        await network.dial(listener.address, second, timeout_s=5.0)
        second.line.send(b"fine")
        await second.has(4)

    assert play(check) == ["a listener's handler could not be made"]


def test_a_close_is_not_held_up_for_ever_by_a_peer_that_does_not_read(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_network, "FLUSH_S", 0.1)
    monkeypatch.setattr(real_network, "DRAIN_S", 0.05)

    async def check(network: RealNetwork) -> None:
        far = Ear()
        listener = await network.listen(("127.0.0.1", 0), lambda: far)
        near = Ear()
        line = await network.dial(listener.address, near, timeout_s=5.0)
        await far.opened.wait()
        far.line.pause_reading()
        line.send(b"x" * 50_000_000)
        line.close()
        await near.closed.wait()
        assert near.error is None

    play(check)


def test_a_connection_that_arrives_after_its_dial_gave_up_is_closed(play: Play) -> None:
    class Late:
        aborted = False

        def get_extra_info(self, name: str) -> None:
            return None

        def abort(self) -> None:
            self.aborted = True

    async def check(network: RealNetwork) -> None:
        ear, transport = Ear(), Late()
        stream = real_network._Stream({}, handler=ear, tls=False)  # type: ignore[attr-defined]
        stream.give_up()
        stream.connection_made(transport)
        assert transport.aborted
        stream.connection_lost(None)
        assert ear.calls == []

    play(check)


class CountedWrites:
    """Stands in front of a transport."""

    def __init__(self, transport: object) -> None:
        self._transport = transport
        self.writes: list[int] = []

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._transport.write(data)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


def test_sends_of_one_turn_become_one_record_of_tls(play: Play, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = server_tls(*authority.issue("a.squall"), authority.file)
    client = client_tls(*authority.issue("b.squall"), authority.file)

    async def check(network: RealNetwork) -> None:
        far = Ear()
        listener = await network.listen(("127.0.0.1", 0), lambda: far, tls=server)
        line = await network.dial(listener.address, Ear(), timeout_s=10.0, tls=client)
        counted = CountedWrites(line._transport)  # type: ignore[attr-defined]
        line._transport = counted  # type: ignore[attr-defined]
        for _ in range(100):
            line.send(b"x" * 20)
        assert line.unsent >= 2000
        await far.has(2000)
        assert counted.writes == [2000]

    play(check)


def test_a_close_is_clean_for_a_peer_that_talks_on_and_reads_late(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However late it reads on a busy machine.
    monkeypatch.setattr(real_network, "DRAIN_S", 30.0)

    async def check(network: RealNetwork) -> None:
        far = Ear()
        listener = await network.listen(("127.0.0.1", 0), lambda: far)
        near = Ear()
        line = await network.dial(listener.address, near, timeout_s=5.0)
        await far.opened.wait()
        line.pause_reading()
        far.line.pause_reading()
        line.send(b"x" * 100_000)
        await asyncio.sleep(0.05)
        # Unread bytes lie in the kernel: closing the socket now would reset the stream.
        far.line.send(b"last words")
        far.line.close()
        await asyncio.sleep(0.05)
        line.send(b"y" * 100_000)
        await asyncio.sleep(0.05)
        line.resume_reading()
        await near.closed.wait()
        assert near.received == b"last words"
        assert near.error is None

    play(check)


def test_a_dial_that_is_cancelled_when_it_is_done_leaves_no_connection(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = real_network._Stream.connection_made  # type: ignore[attr-defined]
    dials: list[asyncio.Task[Connection]] = []

    def made_and_cancelled(self: object, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        for dial in dials:
            dial.cancel()

    async def check(network: RealNetwork) -> None:
        far, near = Ear(), Ear()
        listener = await network.listen(("127.0.0.1", 0), lambda: far)
        monkeypatch.setattr(real_network._Stream, "connection_made", made_and_cancelled)  # type: ignore[attr-defined]
        dials.append(asyncio.ensure_future(network.dial(listener.address, near, timeout_s=5.0)))
        with pytest.raises(asyncio.CancelledError):
            await dials[0]
        await far.closed.wait()
        assert near.calls == []

    play(check)
    dials.clear()


def test_host_names_work_for_streams_and_are_not_looked_up_for_datagrams(play: Play) -> None:
    async def check(network: RealNetwork) -> None:
        listener = await network.listen(("localhost", 0), Ear)
        await network.dial(("localhost", listener.address[1]), Ear(), timeout_s=5.0)
        for host in ("a..b", "x" * 300, "no-such-host.invalid"):
            with pytest.raises(OSError):
                await network.dial((host, 1), Ear(), timeout_s=5.0)
        post = Post()
        mine = await network.bind_datagrams(("127.0.0.1", 0), post)
        mine.send(b"x", ("localhost", mine.address[1]))
        mine.send(b"x", ("127.0.0.1", 70_000))
        mine.send(b"x" * 100_000, mine.address)
        mine.send(b"last", mine.address)
        await post.arrived.wait()
        assert [data for data, _ in post.received] == [b"last"]

    play(check)


def test_hundreds_of_connections_come_and_go_without_a_descriptor_left(play: Play) -> None:
    async def check(network: RealNetwork) -> None:
        listener = await network.listen(("127.0.0.1", 0), lambda: Ear(echo=True))
        # libuv keeps one descriptor in reserve from the first connection on.
        await network.dial(listener.address, Ear(), timeout_s=10.0)
        before = len(os.listdir("/proc/self/fd"))
        ears = [Ear() for _ in range(400)]
        await asyncio.gather(*(network.dial(listener.address, ear, timeout_s=10.0) for ear in ears))
        for ear in ears:
            ear.line.send(b"hello")
        for number, ear in enumerate(ears):
            await ear.has(5)
            (ear.line.close if number % 2 else ear.line.abort)()
        for ear in ears:
            await ear.closed.wait()
        await network.close()
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.01)

    play(check)
