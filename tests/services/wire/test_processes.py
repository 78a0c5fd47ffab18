"""The wire between two real processes over loopback: echo, kill, wrong secret, blobs, TLS."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.wire.blob_transfer import BlobFetcher, blob_hash
from squall.cluster.wire.errors import HandshakeFailed, OutcomeUnknown, RemoteError
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import client_credential
from squall.runtime.real.tls import client_tls, server_tls
from tests.fakes.wire import SECRET, Echo, Order
from tests.lab.certificates import Authority
from tests.lab.ports import free_ports
from tests.lab.programs import ROOT, program
from tests.services.wire.lab.node import BLOB, close_all, real_board

WITHIN_S = 60.0


class Server:
    def __init__(self, port: int = 0) -> None:
        self.process = subprocess.Popen(
            program("tests.services.wire.lab.node", str(port)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.end()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.01)


async def refused(peer: Peer, told: str) -> None:
    """`connected` waits for all of its time, since a later try may succeed."""
    dialler = peer._diallers[LinkKind.CONTROL]  # pyright: ignore[reportPrivateUsage]
    await until(lambda: isinstance(dialler.error, HandshakeFailed))
    with pytest.raises(HandshakeFailed, match=told):
        await peer.connected(0.05)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        try:
            await main()
        finally:
            await close_all()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


def test_many_requests_over_one_sealed_link(server: Server) -> None:
    async def main() -> None:
        board = real_board("client")
        peer = Peer(board, ("127.0.0.1", server.port))
        peer.start()
        for size in (0, 10, 300, 5_000):
            asked = [peer.request(Echo("x" * size, n), 30.0) for n in range(500)]
            answers = await asyncio.gather(*asked)
            assert [answer.size for answer in answers] == list(range(500))
        assert board.counters.handshakes == 1
        await peer.close()
        assert board.tasks.running == ()

    run(main)


def test_a_killed_server_leaves_an_unknown_outcome_and_is_found_again() -> None:
    (port,) = free_ports(1)
    first = Server(port)

    async def main() -> None:
        peer = Peer(real_board("client"), ("127.0.0.1", first.port))
        peer.start()
        await peer.connected(10.0)
        request = asyncio.ensure_future(peer.request(Echo("wait"), 60.0))
        await peer.request(Echo("the other one has arrived"), 10.0)
        first.kill()
        with pytest.raises(OutcomeUnknown):
            await request
        second = Server(port)
        await peer.connected(30.0)
        assert (await peer.request(Echo("again"), 10.0)).text == "again"
        await peer.close()
        second.end()

    run(main)
    first.end()


def test_a_wrong_secret_is_reported_in_one_line_and_a_stranger_gets_nothing(server: Server) -> None:
    async def main() -> None:
        peer = Peer(real_board("client", "quite another secret"), ("127.0.0.1", server.port))
        peer.start()
        await refused(peer, "wrong secret or not a Squall node")
        await peer.close()

    run(main)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        try:
            answer = stranger.recv(1)
        except ConnectionResetError:
            answer = b""
        assert answer == b""


def test_another_cluster_and_another_role_are_refused_and_counted() -> None:
    """Each before anything else of it is read. A peer of another cluster learns nothing, not
    even that its secret is right; one that is known learns which role may not connect."""

    async def main() -> None:
        board = real_board("server")
        heard: list[Echo] = []
        board.handlers.on(Echo, lambda message, incoming: heard.append(message))
        endpoint = Endpoint(board, accepts=[Role.NODE])
        await endpoint.listen(("127.0.0.1", 0))
        client = client_credential(SECRET, "alice")
        counters = board.counters
        # A dialler tries again, so each is counted at least once, and as what it is.
        peer = Peer(real_board("staging", cluster="staging"), endpoint.address)
        peer.start()
        await refused(peer, "wrong secret or not a Squall node")
        await until(lambda: counters.handshake_failed > 0)
        await peer.close()
        assert counters.handshake_refused == 0
        peer = Peer(real_board("laptop", client, Role.CLIENT), endpoint.address)
        peer.start()
        await refused(peer, "a client may not connect here")
        await until(lambda: counters.handshake_refused > 0)
        await peer.close()
        assert not heard and board.counters.handshakes == 0
        await endpoint.close()

    run(main)


def test_a_client_is_known_and_kept_from_what_nodes_do(server: Server) -> None:
    async def main() -> None:
        credential = client_credential(SECRET, "alice")
        peer = Peer(real_board("laptop", credential, Role.CLIENT), ("127.0.0.1", server.port))
        peer.start()
        assert (await peer.request(Echo("hi"), 10.0)).text == "hi"
        with pytest.raises(RemoteError, match="unknown_type"):
            await peer.request(Order("stop"), 10.0)
        await peer.close()

    run(main)


def test_a_blob_arrives_whole_between_processes(server: Server) -> None:
    async def main() -> None:
        board = real_board("client")
        peer = Peer(board, ("127.0.0.1", server.port))
        peer.start()
        store = MemoryBlobs()
        await BlobFetcher(store, board.counters, board.tasks).fetch(
            blob_hash(BLOB), len(BLOB), [peer]
        )
        assert store.take(blob_hash(BLOB)) == BLOB
        await peer.close()

    run(main)


def test_links_inside_mutual_tls_need_the_claimed_role(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    claims = {"server": "node", "good": "node:good", "bad": "worker"}

    def tls(name: str) -> LinkTLS:
        files = (*authority.issue(name, claims[name]), authority.ca)
        return LinkTLS(server_tls(*files), client_tls(*files))

    async def main() -> None:
        server = real_board("server")
        server.handlers.on(Echo, lambda echo, _: echo)
        server.tls = tls("server")
        told: list[str] = []
        server.on_refused = lambda address, error: told.append(str(error))
        endpoint = Endpoint(server)
        await endpoint.listen(("127.0.0.1", 0))
        for name, welcome in (("good", True), ("bad", False)):
            board = real_board(name)
            board.tls = tls(name)
            peer = Peer(board, endpoint.address)
            peer.start()
            if welcome:
                assert (await peer.request(Echo("hi"), 10.0)).text == "hi"
            else:
                await refused(peer, "it connects as node bad")
                await until(lambda: told)
            await peer.close()
        assert any("claims worker, and it connects as node bad" in each for each in told)
        await endpoint.close()

    run(main)
