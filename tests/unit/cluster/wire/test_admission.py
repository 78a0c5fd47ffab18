"""The wire with the admission of `squall.cluster.control` behind its callback."""

from __future__ import annotations

import asyncio

import pytest

from squall.cluster.control.admission import Admission
from squall.cluster.control.execution import BoundedExecution
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.wire.errors import OutcomeUnknown, RemoteError
from squall.cluster.wire.links.dispatch import Incoming
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.messages import ErrorCode
from tests.fakes.wire import Beat, Echo, FakeClock, FakeNetwork, board, run, turns


async def slow(message: Echo | Beat, incoming: Incoming) -> Echo | Beat:
    await asyncio.sleep(1.0)
    return message


def test_data_is_shed_with_retry_after_while_control_waits_and_is_served() -> None:
    async def main() -> None:
        network = FakeNetwork()
        settings = AdmissionSettings(shared_max=4, data_max=3, telemetry_max=2, control_max=1)
        execution = BoundedExecution(Admission(settings, lambda low, high: low), FakeClock())
        server = board(
            network, "server", admit=execution.enter, handlers=[(Echo, slow), (Beat, slow)]
        )
        endpoint = Endpoint(server)
        await endpoint.listen(("server", 0))
        peer = Peer(board(network, "client"), endpoint.address)
        peer.start()
        await peer.connected(5.0)
        held = [asyncio.ensure_future(peer.request(Echo("x"), 60.0)) for _ in range(3)]
        await turns()
        with pytest.raises(RemoteError) as caught:
            await peer.request(Echo("one too many"), 60.0)
        assert caught.value.code == ErrorCode.OVERLOADED
        assert caught.value.retry_after_s > 0.0
        beats = [asyncio.ensure_future(peer.request(Beat(n), 60.0)) for n in range(5)]
        assert [beat.number for beat in await asyncio.gather(*beats)] == list(range(5))
        assert len(await asyncio.gather(*held)) == 3
        await peer.close()
        await endpoint.close()

    run(main())


def test_a_flood_costs_only_the_link_of_its_own_process() -> None:
    async def main() -> None:
        network = FakeNetwork()
        settings = AdmissionSettings(control_max=1, control_waiting_per_source_max=3)
        execution = BoundedExecution(Admission(settings, lambda low, high: low), FakeClock())
        endpoint = Endpoint(
            board(network, "server", admit=execution.enter, handlers=[(Beat, slow)])
        )
        await endpoint.listen(("server", 0))
        # The managers of two datacenters have the same name.
        floods, asks = [
            Peer(board(network, "m1", boot=boot), endpoint.address) for boot in ("eu", "us")
        ]
        for peer in (floods, asks):
            peer.start()
            await peer.connected(5.0)
        asked = [asyncio.ensure_future(asks.request(Beat(n), 60.0)) for n in range(3)]
        await turns()
        flood = [asyncio.ensure_future(floods.request(Beat(n), 60.0)) for n in range(5)]
        assert [beat.number for beat in await asyncio.gather(*asked)] == [0, 1, 2]
        failed = await asyncio.gather(*flood, return_exceptions=True)
        assert all(isinstance(each, OutcomeUnknown) for each in failed)
        for peer in (floods, asks):
            await peer.close()
        await endpoint.close()

    run(main())


def test_a_brief_handler_takes_a_slot_only_when_it_turns_out_to_wait() -> None:
    async def main() -> None:
        network = FakeNetwork()
        settings = AdmissionSettings(shared_max=4, data_max=1, telemetry_max=1, control_max=1)
        admission = Admission(settings, lambda low, high: low)
        execution = BoundedExecution(admission, FakeClock())
        waits = False

        def brief(message: Echo, incoming: Incoming) -> object:
            return slow(message, incoming) if waits else message

        server = board(network, "server", admit=execution.enter, passes=execution.passes)
        server.handlers.on(Echo, brief, brief=True)
        endpoint = Endpoint(server)
        await endpoint.listen(("server", 0))
        peer = Peer(board(network, "client"), endpoint.address)
        peer.start()
        await peer.connected(5.0)
        answers = await asyncio.gather(*(peer.request(Echo("x"), 60.0) for _ in range(5)))
        assert len(answers) == 5
        assert sum(admission.load().admitted_total.values()) == 0
        waits = True
        held = asyncio.ensure_future(peer.request(Echo("x"), 60.0))
        await turns()
        assert admission.load().shared_in_flight == 1
        with pytest.raises(RemoteError) as caught:
            await peer.request(Echo("no room, at once or not"), 60.0)
        assert caught.value.code == ErrorCode.OVERLOADED
        await held
        assert admission.load().shared_in_flight == 0
        await peer.close()
        await endpoint.close()

    run(main())
