"""Sealed datagrams: size, replay, roles, rotation; and role claims of certificates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.datagram import (
    DATAGRAM_MAX,
    UNPROVEN_BURST,
    UNPROVEN_PER_S,
    SealedDatagrams,
    Sender,
)
from squall.cluster.wire.errors import MessageTooLarge, SealBroken
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.certificate_claims import certificate_claims
from squall.cluster.wire.seal.keyring import Identity
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.runtime.interfaces import BootId, NodeId
from tests.fakes.wire import (
    SECRET,
    TEST_CATALOGUE,
    Beat,
    Echo,
    FakeNetwork,
    Forged,
    Order,
    Sample,
    board,
    run,
    turns,
)

KEYS = Secrets.of_node(SECRET).membership_keys("dc")


class Party:
    def __init__(
        self,
        network: FakeNetwork,
        name: str,
        *,
        keys: tuple[bytes, ...] = KEYS,
        **settings: Any,
    ) -> None:
        self.got: list[tuple[Any, Sender]] = []
        self.counters = WireCounters()
        self.at = 0.0
        keyring = board(network, name, **settings).keyring
        self.datagrams = SealedDatagrams(
            keyring,
            self.counters,
            lambda m, who: self.got.append((m, who)),
            now=lambda: self.at,
            catalogue=TEST_CATALOGUE,
        )
        self.datagrams.set_membership_keys(keys)
        self.network = network

    async def bind(self) -> Party:
        await self.datagrams.bind(self.network, ("host", 0))
        return self

    @property
    def messages(self) -> list[Any]:
        return [message for message, _ in self.got]


def test_a_datagram_arrives_with_the_boot_of_its_sender() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        one.datagrams.send(Beat(1), other.datagrams.address)
        await turns()
        (message, sender) = other.got[0]
        assert message == Beat(1)
        assert sender == (Role.NODE, "a-boot", one.datagrams.address)

    run(main())


def test_no_datagram_is_larger_than_the_bound_and_a_larger_message_is_refused() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        overhead = len(msgspec.msgpack.encode(Echo("x" * 500))) - 500
        largest = one.datagrams.room - overhead
        one.datagrams.send(Echo("x" * largest), other.datagrams.address)
        with pytest.raises(MessageTooLarge, match="send it over the control link"):
            one.datagrams.send(Echo("x" * (largest + 1)), other.datagrams.address)
        await turns()
        assert len(other.messages) == 1
        assert len(network.datagrams_sent[0]) == DATAGRAM_MAX

    run(main())


def test_an_oversized_datagram_is_counted_and_dropped() -> None:
    async def main() -> None:
        other = await Party(FakeNetwork(), "b").bind()
        other.datagrams.on_datagram(b"x" * (DATAGRAM_MAX + 1), ("host", 1))
        assert other.counters.oversized == 1

    run(main())


def test_a_replayed_datagram_is_counted_and_dropped() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        for number in range(3):
            one.datagrams.send(Beat(number), other.datagrams.address)
        await turns()
        for data in network.datagrams_sent:
            other.datagrams.on_datagram(data, one.datagrams.address)
        assert other.messages == [Beat(0), Beat(1), Beat(2)]
        assert other.counters.replay == 3

    run(main())


def test_reordered_datagrams_all_arrive() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        for number in range(500):
            one.datagrams.send(Beat(number), ("nowhere", 1))
        for data in reversed(network.datagrams_sent):
            other.datagrams.on_datagram(data, one.datagrams.address)
        assert other.messages == [Beat(number) for number in reversed(range(500))]

    run(main())


def test_no_nonce_repeats_over_destinations_and_restarted_lanes() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one = await Party(network, "a").bind()
        for number in range(300):
            one.datagrams.send(Beat(number), ("host", number % 7))
        one.datagrams._seal._lanes.clear()
        for number in range(300):
            one.datagrams.send(Beat(number), ("host", number % 7))
        nonces = {data[6:18] for data in network.datagrams_sent}
        assert len(nonces) == 600

    run(main())


def test_every_changed_byte_is_counted_and_dropped() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        one.datagrams.send(Beat(1), ("nowhere", 1))
        data = network.datagrams_sent[0]
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 0x81
            other.datagrams.on_datagram(bytes(changed), ("host", 1))
        for size in range(len(data)):
            other.datagrams.on_datagram(data[:size], ("host", 1))
        assert other.messages == []
        counters = other.counters
        assert counters.bad_seal + counters.bad_frame == 2 * len(data)

    run(main())


@pytest.mark.parametrize(
    "stranger",
    [{"secrets": Secrets.of_node("another secret 16")}, {"cluster": "another cluster"}],
)
def test_a_stranger_is_counted_and_dropped(stranger: dict[str, Any]) -> None:
    async def main() -> None:
        network = FakeNetwork()
        one = await Party(network, "a", **stranger).bind()
        other = await Party(network, "b").bind()
        one.datagrams.send(Beat(1), other.datagrams.address)
        await turns()
        assert other.messages == []
        assert other.counters.bad_seal == 1

    run(main())


def test_nodes_and_workers_understand_each_other_and_workers_themselves() -> None:
    async def main() -> None:
        network = FakeNetwork()
        worker = Secrets.of_credential(worker_credential(SECRET))
        bound = Secrets.of_credential(worker_credential(SECRET, "w2"))
        node = await Party(network, "n").bind()
        one = await Party(network, "w1", secrets=worker).bind()
        two = await Party(network, "w2", secrets=bound).bind()
        node.datagrams.send(Beat(1), one.datagrams.address, Role.WORKER)
        one.datagrams.send(Beat(2), node.datagrams.address, Role.NODE)
        one.datagrams.send(Beat(3), two.datagrams.address, Role.WORKER)
        await turns()
        assert (one.messages, node.messages, two.messages) == ([Beat(1)], [Beat(2)], [Beat(3)])
        assert node.got[0][1].role is Role.WORKER

    run(main())


NEWER = Secrets.of_node("the newer secret!").membership_keys("dc")


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(NEWER, id="of another secret"),
        pytest.param(Secrets.of_node(SECRET).membership_keys("other"), id="of another datacenter"),
        pytest.param(Secrets.of_node(SECRET).for_role(Role.WORKER), id="the workers' credential"),
    ],
)
def test_a_worker_with_another_key_is_counted_and_dropped(keys: tuple[bytes, ...]) -> None:
    async def main() -> None:
        network = FakeNetwork()
        worker = Secrets.of_credential(worker_credential(SECRET))
        node = await Party(network, "n").bind()
        stranger = await Party(network, "w", secrets=worker, keys=keys).bind()
        stranger.datagrams.send(Beat(1), node.datagrams.address)
        node.datagrams.send(Beat(2), stranger.datagrams.address, Role.WORKER)
        await turns()
        assert node.messages == stranger.messages == []
        assert (node.counters.bad_seal, stranger.counters.bad_seal) == (1, 1)

    run(main())


def test_a_former_key_opens_nothing_even_of_a_known_sender() -> None:
    async def main() -> None:
        network = FakeNetwork()
        worker = Secrets.of_credential(worker_credential(SECRET))
        node = await Party(network, "n").bind()
        one = await Party(network, "w", secrets=worker).bind()

        async def sent(number: int) -> list[Any]:
            one.datagrams.send(Beat(number), node.datagrams.address)
            await turns()
            return node.messages

        assert await sent(1) == [Beat(1)]
        node.datagrams.set_membership_keys((*NEWER, *KEYS))
        assert await sent(2) == [Beat(1), Beat(2)]
        node.datagrams.set_membership_keys(NEWER)
        assert await sent(3) == [Beat(1), Beat(2)]
        one.datagrams.set_membership_keys(NEWER)
        assert await sent(4) == [Beat(1), Beat(2), Beat(4)]

    run(main())


def test_a_worker_cannot_send_as_a_node() -> None:
    async def main() -> None:
        network = FakeNetwork()
        genuine = Secrets.of_credential(worker_credential(SECRET))
        forged = Forged(Role.NODE, "", [*genuine.for_role(Role.WORKER), *KEYS])
        forger = await Party(network, "w", secrets=forged).bind()
        node = await Party(network, "n").bind()
        forger.datagrams.send(Beat(1), node.datagrams.address)
        worker = await Party(network, "w2", secrets=genuine).bind()
        worker.datagrams.send(Order("stop"), node.datagrams.address)
        await turns()
        assert node.messages == []
        assert (node.counters.bad_seal, node.counters.forbidden) == (1, 1)

    run(main())


def test_a_worker_has_no_secret_to_write_to_a_client_with() -> None:
    async def main() -> None:
        worker = Secrets.of_credential(worker_credential(SECRET))
        one = await Party(FakeNetwork(), "w", secrets=worker).bind()
        with pytest.raises(SealBroken, match="a worker has no secret of a client"):
            one.datagrams.send(Beat(1), ("host", 1), Role.CLIENT)

    run(main())


def test_datagrams_of_all_accepted_secrets_are_read() -> None:
    async def main() -> None:
        network = FakeNetwork()
        newer = "the newer secret!"
        receiver = await Party(network, "r", secrets=Secrets.of_node(newer, [SECRET])).bind()
        old = await Party(network, "old").bind()
        new = await Party(network, "new", secrets=Secrets.of_node(newer)).bind()
        for number, party in enumerate((old, new, old)):
            party.datagrams.send(Beat(number), receiver.datagrams.address)
        await turns()
        assert receiver.messages == [Beat(0), Beat(1), Beat(2)]

    run(main())


def test_a_type_that_is_not_known_is_counted_and_dropped() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        row = TEST_CATALOGUE.by_number.pop(102)
        try:
            one.datagrams.send(Sample(1), other.datagrams.address)
            await turns()
        finally:
            TEST_CATALOGUE.by_number[102] = row
        assert other.counters.unknown_type == 1

    run(main())


@pytest.mark.parametrize(
    ("names", "objection"),
    [
        (["URI:squall:worker"], ""),
        (["DNS:host", "URI:squall:worker:w-1"], ""),
        (["URI:squall:node", "URI:squall:worker"], ""),
        ([], "its certificate claims no role"),
        (["DNS:worker"], "its certificate claims no role"),
        (["URI:squall:node"], "its certificate claims node, and it connects as worker w-1"),
        (
            ["URI:squall:worker:w-2"],
            "its certificate claims worker:w-2, and it connects as worker w-1",
        ),
    ],
)
def test_a_certificate_must_claim_what_the_peer_says(names: list[str], objection: str) -> None:
    peer = Identity(Role.WORKER, NodeId("w-1"), BootId("boot"))
    assert certificate_claims(names, peer) == objection


def test_the_name_in_a_clients_claim_is_its_principal() -> None:
    peer = Identity(Role.CLIENT, NodeId("client-5f2a"), BootId("boot"), "alice")
    assert certificate_claims(["URI:squall:client:alice"], peer) == ""
    assert certificate_claims(["URI:squall:client"], peer) == ""
    assert "as client alice" in certificate_claims(["URI:squall:client:bob"], peer)


def test_a_flood_of_unknown_senders_costs_a_bounded_number_of_key_derivations() -> None:
    async def main() -> None:
        network = FakeNetwork()
        stranger = await Party(network, "s", secrets=Secrets.of_node("another secret 16")).bind()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        one.datagrams.send(Beat(0), other.datagrams.address)
        await turns()
        for number in range(UNPROVEN_BURST + 50):
            stranger.datagrams.send(Beat(number), ("nowhere", 1))
        for data in network.datagrams_sent[1:]:
            other.datagrams.on_datagram(data, ("host", 9))
        assert other.counters.bad_seal == UNPROVEN_BURST - 1
        assert other.counters.shed == 51
        # A sender that has proved itself is heard in the middle of it, a new one after a moment.
        one.datagrams.send(Beat(1), other.datagrams.address)
        newcomer = await Party(network, "n").bind()
        newcomer.datagrams.send(Beat(2), other.datagrams.address)
        await turns()
        assert other.messages == [Beat(0), Beat(1)]
        other.at += 1.0 / UNPROVEN_PER_S
        newcomer.datagrams.send(Beat(3), other.datagrams.address)
        await turns()
        assert other.messages == [Beat(0), Beat(1), Beat(3)]

    run(main())


def test_bytes_are_counted_on_both_sides() -> None:
    async def main() -> None:
        network = FakeNetwork()
        one, other = await Party(network, "a").bind(), await Party(network, "b").bind()
        one.datagrams.send(Beat(1), other.datagrams.address)
        await turns()
        sent = len(network.datagrams_sent[0])
        assert (one.datagrams.bytes_sent, other.datagrams.bytes_received) == (sent, sent)

    run(main())
