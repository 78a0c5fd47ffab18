"""The sealed wire over a store: handshakes, requests, blobs, keep-alive and a new leader."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.wire.blob_transfer import BlobFetcher, blob_hash, serve_blobs
from squall.cluster.wire.errors import HandshakeFailed, OutcomeUnknown
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.seal.secrets import Secrets
from squall.store_mode.transport.network import LEADER
from squall.store_mode.transport.tuning import S3_TUNING
from tests.fakes.store_network import LAYOUTS, RECORDS, Lab, Process, rest, until
from tests.fakes.wire import Beat, Echo, Parcel, board, run, turns

CONTENT = random.Random(5).randbytes(6 * 1024 * 1024 + 5)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def answer(echo: Echo, _: object) -> Echo:
    return Echo(f"{echo.text}!")


def wired(process: Process, lab: Lab, **more: Any) -> Switchboard:
    network = cast("Any", process.network)
    return board(network, process.name, limits=lab.tuning.wire, **more)


async def serve(lab: Lab, name: str, **more: Any) -> tuple[Process, Endpoint]:
    process = lab.process(name)
    endpoint = Endpoint(wired(process, lab, handlers=[(Echo, answer)], **more))
    await endpoint.listen((name, 0))
    return process, endpoint


@every_layout
def test_requests_and_answers(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        _, endpoint = await serve(lab, "manager")
        lab.leader = "manager"
        peer = Peer(wired(lab.process("worker"), lab), (LEADER, 0))
        peer.start()
        texts = [str(number) for number in range(100)]
        answers = await asyncio.gather(*(peer.request(Echo(text), 10.0) for text in texts))
        assert [each.text for each in answers] == [f"{text}!" for text in texts]
        peer.send(Beat(1))
        await peer.close()
        await endpoint.close()
        await lab.close()

    run(main())


@every_layout
def test_a_blob_of_several_megabytes(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        held, wanted = MemoryBlobs(), MemoryBlobs()
        blob = held.put(CONTENT)
        manager = lab.process("manager")
        there = wired(manager, lab)
        serve_blobs(there.handlers, held)
        endpoint = Endpoint(there)
        await endpoint.listen(("manager", 0))
        here = wired(lab.process("worker"), lab)
        peer = Peer(here, ("manager", 0))
        peer.start()
        await BlobFetcher(wanted, here.counters, here.tasks).fetch(blob, len(CONTENT), [peer])
        assert blob_hash(wanted.take(blob)) == blob
        assert not here.counters.links_lost
        await peer.close()
        await endpoint.close()
        await lab.close()

    run(main())


def test_a_pull_over_the_link_of_who_dialled() -> None:
    """As a manager pulls the record that a worker offers."""

    async def main() -> None:
        lab = Lab(RECORDS)
        lab.tuning = S3_TUNING
        held, wanted = MemoryBlobs(), MemoryBlobs()
        blob = held.put(CONTENT)
        manager = lab.process("manager")
        there = wired(manager, lab)
        endpoint = Endpoint(there)
        await endpoint.listen(("manager", 0))
        here = wired(lab.process("worker"), lab)
        serve_blobs(here.handlers, held)
        peer = Peer(here, ("manager", 0))
        peer.start()
        peer.send(Parcel(b"opens the bulk link"))
        await until(lambda: endpoint.links == 2)
        identity = here.keyring.identity
        channel = endpoint.channel(identity.node, identity.boot, LinkKind.BULK)
        assert channel is not None
        fetcher = BlobFetcher(wanted, there.counters, there.tasks, chunk_timeout_s=120.0)
        begun = manager.clock.now()
        await fetcher.fetch(blob, len(CONTENT), [channel])
        assert blob_hash(wanted.take(blob)) == blob
        assert len(CONTENT) / (manager.clock.now() - begun) > 500_000.0
        assert not here.counters.links_lost
        await peer.close()
        await endpoint.close()
        await lab.close()

    run(main())


def test_a_wrong_secret_is_told() -> None:
    async def main() -> None:
        lab = Lab()
        _, endpoint = await serve(lab, "manager")
        stranger = wired(
            lab.process("worker"), lab, secrets=Secrets.of_node("another secret, as long")
        )
        peer = Peer(stranger, ("manager", 0))
        peer.start()
        with pytest.raises(HandshakeFailed, match="wrong secret"):
            await peer.connected(5.0)
        await peer.close()
        await endpoint.close()
        await lab.close()

    run(main())


@every_layout
def test_a_dead_peer_is_found_out_by_keep_alive(layout: str) -> None:
    async def main() -> None:
        lab = Lab(layout)
        manager, endpoint = await serve(lab, "manager")
        here = wired(lab.process("worker"), lab)
        peer = Peer(here, ("manager", 0))
        peer.start()
        assert (await peer.request(Echo("x"), 10.0)).text == "x!"
        manager.die()
        with pytest.raises(OutcomeUnknown):
            await peer.request(Echo("y"), 100.0)
        assert here.counters.keepalive_lost == 1
        manager.faults.down = False
        await peer.close()
        await endpoint.close()
        await lab.close()

    run(main())


def test_links_stay_through_quiet_times_on_an_object_store() -> None:
    async def main() -> None:
        lab = Lab(RECORDS)
        lab.tuning = S3_TUNING
        _, endpoint = await serve(lab, "manager")
        worker = lab.process("worker")
        for process in lab.processes:
            process.faults.delay_s = process.faults.reply_delay_s = 0.5
        here = wired(worker, lab)
        peer = Peer(here, ("manager", 0))
        peer.start()
        assert (await peer.request(Echo("x"), 60.0)).text == "x!"
        await rest(400.0)
        assert (await peer.request(Echo("y"), 60.0)).text == "y!"
        assert here.counters.links_lost == 0
        assert peer.control.link is not None
        assert peer.control.link.round_trip_s is not None
        assert peer.control.link.round_trip_s < lab.tuning.round_trip_s
        await peer.close()
        await endpoint.close()
        await lab.close()

    run(main())


def test_a_worker_follows_the_leader_as_soon_as_it_is_notified() -> None:
    async def main() -> None:
        lab = Lab()
        first, endpoint = await serve(lab, "first")
        _, other = await serve(lab, "second")
        lab.leader = "first"
        worker = lab.process("worker")
        peer = Peer(wired(worker, lab), (LEADER, 0))
        peer.start()
        assert (await peer.connected(5.0)).peer.node == "first"
        first.die()
        lab.leader = "second"
        worker.network.abandon("first")
        begun = worker.clock.now()
        await turns()
        assert peer.control.session is None
        await until(lambda: peer.control.session is not None)
        assert (await peer.connected(5.0)).peer.node == "second"
        assert worker.clock.now() - begun < 1.0
        first.faults.down = False
        await peer.close()
        await endpoint.close()
        await other.close()
        await lab.close()

    run(main())
