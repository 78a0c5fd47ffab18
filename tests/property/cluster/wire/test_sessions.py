"""Whole sessions on the fake network, cut anywhere and changed anywhere.

Whatever happens to the bytes: a message that arrives was sent, in order, once; a request
ends exactly once with one of its three errors or its own answer; no task, buffer,
admission or connection is left; and the node answers the next honest peer.
"""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.wire.errors import NotSent, OutcomeUnknown, RemoteError
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from tests.fakes.wire import Beat, Echo, FakeNetwork, Gate, board, run, turns

CHANGES = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "repeat", "drop"]),
    st.integers(min_value=0, max_value=3_000),
    st.integers(min_value=1, max_value=255),
)


def changed(kind: str, at: int, value: int, data: bytes) -> bytes:
    """One change at one place of the bytes of one send."""
    at %= len(data)
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "insert":
        return data[:at] + bytes([value]) * value + data[at:]
    if kind == "repeat":
        return data + data
    return b""


@settings(deadline=None, max_examples=60)
@given(
    st.integers(min_value=1, max_value=400),
    st.lists(st.text(max_size=50), min_size=1, max_size=20),
)
def test_any_fragmentation_delivers_everything_once_and_in_order(
    piece_bytes: int, texts: list[str]
) -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.piece_bytes = piece_bytes
        got: list[str] = []
        server = board(network, "server", handlers=[(Echo, lambda e, _: got.append(e.text) or e)])
        endpoint = Endpoint(server)
        await endpoint.listen(("server", 0))
        peer = Peer(board(network, "client"), endpoint.address)
        peer.start()
        answers = await asyncio.gather(*(peer.request(Echo(text), 60.0) for text in texts))
        assert [answer.text for answer in answers] == got == texts
        await peer.close()
        await endpoint.close()

    run(main())


@settings(deadline=None, max_examples=150)
@given(
    st.integers(min_value=0, max_value=12),
    CHANGES,
    st.integers(min_value=1, max_value=300),
)
def test_any_change_of_the_bytes_is_survived(
    which: int, change: tuple[str, int, int], piece_bytes: int
) -> None:
    async def main() -> None:
        network = FakeNetwork()
        network.piece_bytes = piece_bytes
        gate = Gate()
        beats: list[int] = []
        errors: list[Exception] = []
        server = board(
            network,
            "server",
            admit=gate,
            on_error=errors.append,
            handlers=[(Echo, lambda e, _: e), (Beat, lambda b, _: beats.append(b.number))],
        )
        endpoint = Endpoint(server)
        await endpoint.listen(("server", 0))
        client = board(network, "client", on_error=errors.append)
        peer = Peer(client, endpoint.address)
        sends = 0

        def tamper(data: bytes) -> bytes:
            nonlocal sends
            sends += 1
            return changed(*change, data) if sends - 1 == which else data

        network.tamper = tamper
        peer.start()
        for number in range(6):
            peer.send(Beat(number))
            try:
                answer = await peer.request(Echo(f"n{number}"), 3.0)
                assert answer == Echo(f"n{number}")
            except (NotSent, OutcomeUnknown, RemoteError):
                await asyncio.sleep(2.0)
        assert beats == sorted(set(beats))
        assert errors == []
        network.tamper = lambda data: data
        await asyncio.sleep(60.0)
        await peer.connected(30.0)
        assert await peer.request(Echo("after"), 10.0) == Echo("after")
        await peer.close()
        await endpoint.close()
        await turns()
        assert (gate.held, endpoint.links, endpoint.unproven) == (0, 0, 0)
        assert server.budget.held == client.budget.held == 0
        assert not network.live
        assert server.tasks.running == client.tasks.running == ()

    run(main())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(min_size=1, max_size=500), max_size=6))
def test_a_stranger_gets_no_byte_whatever_it_says(pieces: list[bytes]) -> None:
    class Stranger:
        def __init__(self) -> None:
            self.answers = b""
            self.ended = False

        def on_open(self, connection: object) -> None: ...
        def on_data(self, data: bytes) -> None:
            self.answers += data

        def on_closed(self, error: Exception | None) -> None:
            self.ended = True

    async def main() -> None:
        network = FakeNetwork()
        server = board(network, "server")
        endpoint = Endpoint(server)
        await endpoint.listen(("server", 0))
        stranger = Stranger()
        connection = await network.dial(endpoint.address, stranger, timeout_s=1.0)
        for piece in pieces:
            connection.send(piece)
            await turns(3)
        await asyncio.sleep(30.0)
        assert (stranger.answers, stranger.ended) == (b"", True)
        assert server.counters.handshake_failed == 1
        await endpoint.close()
        assert server.budget.held == endpoint.unproven == 0

    run(main())
