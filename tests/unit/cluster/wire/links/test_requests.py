"""Requests, answers, deadlines, cancellation, admission: both sides of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from squall.cluster.wire.errors import (
    MessageTooLarge,
    NotSent,
    OutcomeUnknown,
    RemoteError,
    UnknownType,
)
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.links.channel import Channel
from squall.cluster.wire.links.dispatch import POLLS_MAX, Incoming
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.outbox import QueueLevel
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from tests.fakes.wire import (
    SECRET,
    Beat,
    Echo,
    FakeNetwork,
    Gate,
    Order,
    Parcel,
    Sample,
    board,
    run,
    turns,
)


class World:
    def __init__(self, handlers: dict[type[Any], Callable[..., Any]], **client: Any) -> None:
        self.network = FakeNetwork()
        self.gate = Gate()
        self.errors: list[Exception] = []
        self.server = board(
            self.network,
            "server",
            handlers=handlers.items(),
            admit=self.gate,
            on_error=self.errors.append,
        )
        self.channels: list[Channel] = []
        self.endpoint = Endpoint(self.server, on_connected=self.channels.append)
        self.client = board(self.network, "client", **client)

    async def __aenter__(self) -> World:
        await self.endpoint.listen(("server", 0))
        self.peer = Peer(self.client, self.endpoint.address)
        self.peer.start()
        await self.peer.connected(5.0)
        await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peer.close()
        await self.endpoint.close()
        await turns()
        assert self.gate.held == 0
        assert self.server.tasks.running == self.client.tasks.running == ()
        assert not self.network.live


async def never(message: object, incoming: Incoming) -> Echo:
    await asyncio.sleep(1e6)
    raise AssertionError("waited for ever")


def test_a_coroutine_handler_runs_as_a_task_and_answers_out_of_order() -> None:
    async def slow(echo: Echo, incoming: Incoming) -> Echo:
        await asyncio.sleep(echo.size)
        return echo

    async def main() -> None:
        async with World({Echo: slow}) as world:
            order: list[str] = []

            async def ask(text: str, wait_s: int) -> None:
                order.append((await world.peer.request(Echo(text, wait_s), 10.0)).text)

            await asyncio.gather(ask("late", 3), ask("soon", 1))
            assert order == ["soon", "late"]

    run(main())


def test_a_handler_answers_with_a_typed_error() -> None:
    def refuse(echo: Echo, incoming: Incoming) -> Echo:
        raise RemoteError(ErrorCode.NOT_PRIMARY, "ask another", retry_after_s=0.5, primary="node-7")

    async def main() -> None:
        async with World({Echo: refuse}) as world:
            with pytest.raises(RemoteError, match="not_primary: ask another") as caught:
                await world.peer.request(Echo("x"), 1.0)
            error = caught.value
            assert (error.code, error.retry_after_s, error.primary) == (
                "not_primary",
                0.5,
                "node-7",
            )
            assert world.errors == []

    run(main())


@pytest.mark.parametrize("awaited", [False, True])
def test_a_handlers_bug_is_told_to_its_owner_and_not_to_the_caller(awaited: bool) -> None:
    def fail(echo: Echo, incoming: Incoming) -> Echo:
        raise KeyError("an internal detail")

    async def fail_later(echo: Echo, incoming: Incoming) -> Echo:
        raise KeyError("an internal detail")

    async def main() -> None:
        async with World({Echo: fail_later if awaited else fail}) as world:
            with pytest.raises(RemoteError, match="internal error") as caught:
                await world.peer.request(Echo("x"), 1.0)
            assert "detail" not in str(caught.value)
            assert [str(error) for error in world.errors] == ["'an internal detail'"]
            assert world.server.counters.handler_failed == 1

    run(main())


def test_an_answer_that_cannot_be_sent_is_an_internal_error() -> None:
    async def main() -> None:
        async with World({Echo: lambda echo, _: Echo("x" * 300_000)}) as world:
            with pytest.raises(RemoteError, match="internal error"):
                await world.peer.request(Echo("x"), 1.0)
            assert isinstance(world.errors[0], MessageTooLarge)

    run(main())


def test_a_large_answer_to_a_small_request_is_refused_and_the_link_stays() -> None:
    async def main() -> None:
        async with World({Echo: lambda echo, _: Parcel(b"x" * 300_000)}) as world:
            link = world.peer.control.link
            with pytest.raises(RemoteError, match="internal error"):
                await world.peer.request(Echo("x"), 1.0)
            assert isinstance(world.errors[0], MessageTooLarge)
            assert world.peer.control.link is link

    run(main())


def test_an_unknown_type_is_answered_so_and_the_link_stays() -> None:
    async def main() -> None:
        async with World({Echo: lambda echo, _: echo}) as world:
            with pytest.raises(RemoteError) as caught:
                await world.peer.request(Beat(1), 1.0)
            assert caught.value.code == ErrorCode.UNKNOWN_TYPE
            world.peer.send(Beat(2))
            await world.peer.request(Echo("still there"), 1.0)
            assert world.server.counters.unknown_type == 2

    run(main())


def test_a_body_that_misses_a_field_is_answered_with_its_name() -> None:
    class Short(msgspec.Struct, frozen=True):
        size: int = 1

    async def main() -> None:
        async with World({Echo: lambda echo, _: echo}) as world:
            row = world.client.catalogue.by_struct[Echo]
            world.client.catalogue.by_struct[Short] = row
            try:
                with pytest.raises(RemoteError, match="missing required field `text`") as caught:
                    await world.peer.request(Short(), 1.0)
            finally:
                del world.client.catalogue.by_struct[Short]
            assert caught.value.code == ErrorCode.BAD_MESSAGE
            assert world.server.counters.decode_error == 1
            await world.peer.request(Echo("still there"), 1.0)

    run(main())


def test_a_role_may_send_only_what_it_may_send() -> None:
    handled: list[Order] = []

    async def main() -> None:
        client = Secrets.of_credential(client_credential(SECRET, "alice"))
        async with World({Order: lambda o, _: handled.append(o)}, secrets=client) as world:
            with pytest.raises(RemoteError) as caught:
                await world.peer.request(Order("shut down"), 1.0)
            assert caught.value.code == ErrorCode.FORBIDDEN
            world.peer.send(Order("shut down"))
            await turns()
            assert handled == []
            assert world.server.counters.forbidden == 2

    run(main())


def test_a_handler_knows_who_asks_and_how_long_they_wait() -> None:
    seen: list[Incoming] = []

    def look(echo: Echo, incoming: Incoming) -> Echo:
        seen.append(incoming)
        return echo

    async def main() -> None:
        client = Secrets.of_credential(client_credential(SECRET, "alice"))
        async with World({Echo: look}, secrets=client) as world:
            await world.peer.request(Echo("x"), 2.5)
            assert (seen[0].peer.name, seen[0].peer.node) == ("alice", "client")
            now = asyncio.get_running_loop().time()
            assert seen[0].deadline == pytest.approx(now + 2.5)

    run(main())


def test_the_deadline_that_travels_is_what_waiting_left_of_it() -> None:
    seen: list[float | None] = []

    def look(echo: Echo, incoming: Incoming) -> Echo:
        seen.append(incoming.deadline)
        return echo

    async def main() -> None:
        world = World({Echo: look})
        began = asyncio.get_running_loop().time()
        peer = Peer(world.client, ("server", 700))
        peer.start()
        request = asyncio.ensure_future(peer.request(Echo("x"), 10.0))
        world.network.frozen = True
        await world.endpoint.listen(("server", 700))
        await asyncio.sleep(3.0)
        world.network.thaw()
        await request
        assert seen == [pytest.approx(began + 10.0, abs=0.01)]
        world.peer = peer
        await world.__aexit__()

    run(main())


def test_a_request_without_an_answer_has_an_unknown_outcome_at_its_deadline() -> None:
    async def main() -> None:
        async with World({Echo: never}) as world:
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(OutcomeUnknown, match="deadline passed without an answer"):
                await world.peer.request(Echo("x"), 2.0)
            assert loop.time() - began == pytest.approx(2.0, abs=0.01)
            await turns()
            assert world.server.counters.cancelled == 1
            assert world.channels[0].handling == 0

    run(main())


def test_each_of_many_deadlines_is_kept() -> None:
    async def main() -> None:
        async with World({Echo: never}) as world:
            loop = asyncio.get_running_loop()
            began = loop.time()

            async def ask(timeout_s: float) -> None:
                with pytest.raises(OutcomeUnknown):
                    await world.peer.request(Echo("x"), timeout_s)
                assert loop.time() - began == pytest.approx(timeout_s, abs=0.02)

            await asyncio.gather(*(ask(s) for s in (3.0, 1.0, 2.0, 1.001, 0.5, 30.0)))
            assert world.peer.control.pending == 0

    run(main())


def test_a_late_answer_is_dropped_and_counted() -> None:
    async def stubborn(echo: Echo, incoming: Incoming) -> Echo:
        try:
            await asyncio.sleep(5.0)
        except asyncio.CancelledError:
            return echo
        return echo

    async def main() -> None:
        async with World({Echo: stubborn}) as world:
            with pytest.raises(OutcomeUnknown):
                await world.peer.request(Echo("x"), 1.0)
            await turns()
            assert world.client.counters.late_answer == 1

    run(main())


def test_a_cancelled_request_cancels_its_handler() -> None:
    async def main() -> None:
        async with World({Echo: never}) as world:
            request = asyncio.ensure_future(world.peer.request(Echo("x"), 60.0))
            await turns()
            assert world.channels[0].handling == 1
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await turns()
            assert world.channels[0].handling == 0
            assert world.gate.held == 0
            assert world.peer.control.pending == 0

    run(main())


def test_a_shed_request_is_answered_with_retry_after_and_a_one_way_message_dropped() -> None:
    handled: list[object] = []

    async def main() -> None:
        handlers = {Echo: lambda e, _: handled.append(e), Sample: lambda s, _: handled.append(s)}
        async with World(handlers) as world:
            world.gate.refused = {MessageClass.DATA, MessageClass.TELEMETRY}
            with pytest.raises(RemoteError) as caught:
                await world.peer.request(Echo("x"), 1.0)
            assert (caught.value.code, caught.value.retry_after_s) == ("overloaded", 0.25)
            world.peer.send(Sample(1))
            await turns()
            assert handled == []
            assert world.server.counters.shed == 2

    run(main())


def test_a_shed_message_is_not_even_decrypted() -> None:
    async def main() -> None:
        async with World({Sample: lambda s, _: None}) as world:
            world.gate.refused = {MessageClass.TELEMETRY}
            for number in range(10):
                world.peer.send(Sample(number))
            await turns()
            assert world.server.counters.shed == 10
            assert world.server.counters.frames_received == 0

    run(main())


@pytest.mark.parametrize("awaited", [False, True])
def test_admitted_work_waits_for_its_turn(awaited: bool) -> None:
    handled: list[str] = []

    def quick(echo: Echo, incoming: Incoming) -> Echo:
        handled.append(echo.text)
        return echo

    async def slow(echo: Echo, incoming: Incoming) -> Echo:
        return quick(echo, incoming)

    async def main() -> None:
        async with World({Echo: slow if awaited else quick}) as world:
            world.gate.turn = asyncio.Event()
            request = asyncio.ensure_future(world.peer.request(Echo("x"), 5.0))
            given_up = asyncio.ensure_future(world.peer.request(Echo("y"), 5.0))
            await turns()
            assert (handled, world.gate.held) == ([], 2)
            given_up.cancel()
            await turns()
            world.gate.turn.set()
            assert (await request).text == "x"
            assert (handled, world.gate.held) == (["x"], 0)

    run(main())


def test_a_sender_that_overruns_its_bound_loses_its_link() -> None:
    async def main() -> None:
        async with World({Beat: lambda beat, _: beat}) as world:
            world.gate.overrun = RuntimeError("too much of client")
            with pytest.raises(OutcomeUnknown):
                await world.peer.request(Beat(1), 5.0)
            assert world.server.counters.control_overflow == 1
            assert [str(error) for error in world.errors] == ["too much of client"]
            world.gate.overrun = None
            await world.peer.connected(10.0)

    run(main())


def test_the_class_of_the_catalogue_decides_the_admission() -> None:
    async def main() -> None:
        async with World({Echo: lambda e, _: e, Beat: lambda b, _: b}) as world:
            await world.peer.request(Echo("x"), 1.0)
            await world.peer.request(Beat(1), 1.0)
            assert world.gate.admitted == [MessageClass.DATA, MessageClass.CONTROL]

    run(main())


def test_the_listening_side_asks_over_the_link_that_was_opened_to_it() -> None:
    async def main() -> None:
        async with World({}) as world:
            world.client.handlers.on(Echo, lambda echo, _: Echo(echo.text.upper()))
            channel = world.endpoint.channel(
                world.client.runtime.node, world.client.runtime.boot, LinkKind.CONTROL
            )
            assert channel is world.channels[0]
            assert (await channel.request(Echo("push"), 1.0)).text == "PUSH"

    run(main())


def test_a_lost_link_leaves_sent_requests_unknown_and_their_handlers_cancelled() -> None:
    async def main() -> None:
        async with World({Echo: never}) as world:
            requests = [asyncio.ensure_future(world.peer.request(Echo("x"), 60)) for _ in range(5)]
            await turns()
            assert world.channels[0].handling == 5
            far = next(c for c in world.network.live if c.local[0] == "server")
            world.network.lose(far, ConnectionResetError("cut"))
            for request in requests:
                with pytest.raises(OutcomeUnknown, match="link lost: cut"):
                    await request
            await turns()
            assert world.channels[0].handling == 0
            assert world.gate.held == 0

    run(main())


def test_a_stopping_node_releases_what_it_admitted() -> None:
    async def main() -> None:
        async with World({Echo: never}) as world:
            request = asyncio.ensure_future(world.peer.request(Echo("x"), 5.0))
            await turns()
            await world.server.tasks.shutdown(1.0)
            assert world.gate.held == 0
            world.peer.send(Echo("one more"))
            await turns()
            assert world.gate.held == 0
            with pytest.raises(OutcomeUnknown):
                await request

    run(main())


def test_what_is_not_in_the_catalogue_or_too_large_is_refused_at_once() -> None:
    class Stray(msgspec.Struct, frozen=True):
        pass

    async def main() -> None:
        async with World({}) as world:
            with pytest.raises(UnknownType):
                await world.peer.request(Stray(), 1.0)
            with pytest.raises(MessageTooLarge):
                await world.peer.request(Echo("x" * 300_000), 1.0)
            assert world.peer.control.pending == 0

    run(main())


def test_waiting_answers_are_bounded() -> None:
    async def main() -> None:
        async with World({Echo: never}, limits=WireLimits(calls_max=3)) as world:
            waiting = [asyncio.ensure_future(world.peer.request(Echo("x"), 60)) for _ in range(3)]
            await turns()
            with pytest.raises(NotSent, match="too many requests wait"):
                await world.peer.request(Echo("x"), 60)
            for request in waiting:
                request.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(main())


def test_a_server_whose_answers_pile_up_stops_reading_and_goes_on_later() -> None:
    async def main() -> None:
        roomy = WireLimits(queue_bytes=100_000_000)
        async with World({Parcel: lambda parcel, _: parcel}, limits=roomy) as world:
            await world.peer.request(Parcel(b""), 5.0)
            bulk = [c for c in world.network.live if c.local[0] == "dialler"][1]
            bulk.pause_reading()
            asked = [
                asyncio.ensure_future(world.peer.request(Parcel(b"x" * 1_000_000), 60.0))
                for _ in range(40)
            ]
            await asyncio.sleep(1.0)
            server = world.channels[1]
            assert server._outbox.level >= QueueLevel.PAUSED
            assert server.waiting < 40
            bulk.resume_reading()
            answers = await asyncio.gather(*asked)
            assert all(len(answer.data) == 1_000_000 for answer in answers)

    run(main())


def test_a_peer_that_asks_and_never_reads_loses_its_link_when_control_answers_pile_up() -> None:
    async def main() -> None:
        world = World({Echo: lambda echo, _: echo, Beat: lambda beat, _: beat})
        world.server.limits = WireLimits(control_queue_messages=50, dead_after_s=60.0)
        async with world:
            near = next(c for c in world.network.live if c.local[0] == "dialler")
            near.pause_reading()
            asked = [world.peer.request(Echo("x" * 200_000), 30.0) for _ in range(3)]
            asked += [world.peer.request(Beat(number), 30.0) for number in range(60)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, OutcomeUnknown) for answer in answers)
            assert world.server.counters.control_overflow == 1
            assert near not in world.network.live

    run(main())


def test_a_stopping_endpoint_answers_what_it_handles_within_its_deadline() -> None:
    async def slow(echo: Echo, incoming: Incoming) -> Echo:
        await asyncio.sleep(echo.size)
        return echo

    async def main() -> None:
        async with World({Echo: slow}) as world:
            quick = asyncio.ensure_future(world.peer.request(Echo("quick", 1), 60.0))
            slower = asyncio.ensure_future(world.peer.request(Echo("slow", 50), 60.0))
            await turns()
            await world.endpoint.close(drain_s=3.0)
            assert (await quick).text == "quick"
            with pytest.raises(OutcomeUnknown):
                await slower

    run(main())


def test_a_long_poll_waits_without_a_slot_and_their_number_is_bounded() -> None:
    happened: list[asyncio.Event] = []

    async def poll(echo: Echo, _: Incoming) -> Echo:
        happened.append(asyncio.Event())
        await happened[-1].wait()
        return echo

    async def main() -> None:
        async with World({}) as world:
            gate = world.gate
            world.server.handlers.on(Echo, poll, polls=POLLS_MAX)
            asked = [
                asyncio.ensure_future(world.peer.request(Echo(f"{n}"), 30.0))
                for n in range(POLLS_MAX)
            ]
            await turns()
            assert len(happened) == POLLS_MAX
            assert len(gate.admitted) == POLLS_MAX and gate.held == 0
            with pytest.raises(RemoteError) as refused:
                await world.peer.request(Echo("one more"), 1.0)
            assert refused.value.code == ErrorCode.OVERLOADED
            for each in happened:
                each.set()
            assert {answer.text for answer in await asyncio.gather(*asked)} == {
                f"{n}" for n in range(POLLS_MAX)
            }
            again = asyncio.ensure_future(world.peer.request(Echo("again"), 30.0))
            await turns()
            happened[-1].set()
            assert (await again).text == "again"
            assert gate.held == 0

    run(main())
