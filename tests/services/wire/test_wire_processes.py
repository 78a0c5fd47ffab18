"""The wire between two real processes over loopback: echo, kill, wrong secret, blobs, TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from wire_node import BLOB, close_all, real_board

from squall.runtime.real_tls import client_tls, server_tls
from squall.wire.blobs import BlobFetcher, blob_hash
from squall.wire.claims import certificate_claims
from squall.wire.endpoint import Endpoint
from squall.wire.errors import HandshakeFailed, OutcomeUnknown, RemoteError
from squall.wire.peer import Peer
from squall.wire.roles import Role
from squall.wire.secrets import client_credential
from wire_fakes import SECRET, Echo, Order

HERE = Path(__file__).parent
TESTS = HERE.parents[1]


class Server:
    def __init__(self, port: int = 0) -> None:
        source = str(TESTS.parent / "src")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((source, str(TESTS)))}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "wire_node.py"), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
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


class PartStore:
    """Keeps parts and whole blobs in memory."""

    def __init__(self) -> None:
        self.part = b""
        self.committed: dict[str, bytes] = {}

    async def size(self, blob: str) -> int | None:
        return len(self.committed[blob]) if blob in self.committed else None

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        return self.committed[blob][offset : offset + length]

    async def part_size(self, blob: str) -> int:
        return len(self.part)

    async def read_part(self, blob: str, offset: int, length: int) -> bytes:
        return self.part[offset : offset + length]

    async def append_part(self, blob: str, data: bytes) -> None:
        self.part += data

    async def discard_part(self, blob: str) -> None:
        self.part = b""

    async def commit(self, blob: str) -> None:
        self.committed[blob] = self.part


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.end()


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
    first = Server()

    async def main() -> None:
        peer = Peer(real_board("client"), ("127.0.0.1", first.port))
        peer.start()
        await peer.connected(10.0)
        request = asyncio.ensure_future(peer.request(Echo("wait"), 60.0))
        await peer.request(Echo("the other one has arrived"), 10.0)
        first.kill()
        with pytest.raises(OutcomeUnknown):
            await request
        second = Server(first.port)
        await peer.connected(30.0)
        assert (await peer.request(Echo("again"), 10.0)).text == "again"
        await peer.close()
        second.end()

    run(main)
    first.end()


def test_a_wrong_secret_is_told_in_one_line_and_a_stranger_gets_nothing(server: Server) -> None:
    async def main() -> None:
        peer = Peer(real_board("client", "quite another secret"), ("127.0.0.1", server.port))
        peer.start()
        with pytest.raises(HandshakeFailed, match="wrong secret or not a Squall node"):
            await peer.connected(3.0)
        await peer.close()

    run(main)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        try:
            answer = stranger.recv(1)
        except ConnectionResetError:
            answer = b""
        assert answer == b""


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
        store = PartStore()
        await BlobFetcher(store, board.counters, board.tasks).fetch(
            blob_hash(BLOB), len(BLOB), [peer]
        )
        assert store.committed == {blob_hash(BLOB): BLOB}
        await peer.close()

    run(main)


def test_links_inside_mutual_tls_need_the_claimed_role(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, claim in (("server", "node"), ("good", "node:good"), ("bad", "worker")):
        issued = authority.issue_cert("127.0.0.1", f"squall-{name}.test")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        _write_with_claim(authority, issued, tmp_path / f"{name}.pem", f"squall:{claim}")

    def files(name: str) -> tuple[Path, Path, Path]:
        return tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "ca.pem"

    async def main() -> None:
        server = real_board("server")
        server.handlers.on(Echo, lambda echo, _: echo)
        server.listen_tls, server.claims = server_tls(*files("server")), certificate_claims
        endpoint = Endpoint(server)
        await endpoint.listen(("127.0.0.1", 0))
        for name, welcome in (("good", True), ("bad", False)):
            board = real_board(name)
            board.dial_tls = client_tls(*files(name))
            board.claims = certificate_claims
            peer = Peer(board, endpoint.address)
            peer.start()
            if welcome:
                assert (await peer.request(Echo("hi"), 10.0)).text == "hi"
            else:
                with pytest.raises(HandshakeFailed, match="does not claim to be node bad"):
                    await peer.connected(3.0)
            await peer.close()
        await endpoint.close()

    run(main)


def _write_with_claim(
    authority: trustme.CA, issued: trustme.LeafCert, path: Path, claim: str
) -> None:
    """The issued certificate again, with a URI that claims a role."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    key = load_pem_private_key(authority.private_key_pem.bytes(), None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(certificate.issuer)
        .public_key(certificate.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(certificate.not_valid_before_utc)
        .not_valid_after(certificate.not_valid_after_utc)
    )
    for extension in certificate.extensions:
        value: Any = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            value = x509.SubjectAlternativeName([*value, x509.UniformResourceIdentifier(claim)])
        builder = builder.add_extension(value, extension.critical)
    signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    path.write_bytes(signed.public_bytes(Encoding.PEM))
