"""Streams over a store that fails at random.

Whatever happens: what arrives is a beginning of what was sent; all of it when the sender
closed and nothing failed for too long or was lost; both ends are told of the end once; and
nothing is left behind.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.coordination.stores.interface import ANY, Delete, Remove, make_key
from tests.fakes.store_network import LAYOUTS, STREAMS, Lab, Process, Recorder, rest, until
from tests.fakes.wire import run

PEOPLE = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "dial",
                "send",
                "send",
                "send",
                "big",
                "close",
                "abort",
                "pause",
                "resume",
                "outage",
                "rest",
                "rest",
            ]
        ),
        st.integers(min_value=0, max_value=2**16),
    ),
    max_size=40,
)


class Stream:
    """One direction of one connection: what was sent and what came."""

    def __init__(self, sender: Recorder, receiver: Recorder) -> None:
        self.sender = sender
        self.receiver = receiver
        self.sent = bytearray()
        self.closed_by_sender = False

    def send(self, data: bytes) -> None:
        if not self.sender.closed and not self.closed_by_sender:
            self.sender.end.send(data)
            self.sent += data


class World:
    def __init__(self, layout: str, seed: int) -> None:
        self.lab = Lab(layout, envelope_bytes=20_000, give_up_s=30.0, full_s=30.0)
        self.draw = random.Random(seed)
        self.people = [self.lab.process(name) for name in PEOPLE]
        self.streams: list[tuple[Stream, Stream]] = []
        self.unclean = False
        """Somebody aborted, or mail was lost: then only beginnings are promised."""

    async def begin(self) -> None:
        for person in self.people:
            await person.listen()

    async def dial(self, number: int) -> None:
        caller = self.people[number % 3]
        called = self.people[number // 3 % 3]
        before = len(called.accepted)
        near = await caller.dial(called.name, timeout_s=60.0)
        await until(lambda: len(called.accepted) > before)
        far = called.accepted[-1]
        self.streams.append((Stream(near, far), Stream(far, near)))

    async def step(self, what: str, number: int) -> None:
        if what == "dial" or not self.streams:
            await self.dial(number)
            return
        pair = self.streams[number % len(self.streams)]
        stream = pair[number // 7 % 2]
        match what:
            case "send":
                stream.send(self.draw.randbytes(number % 300 + 1))
            case "big":
                stream.send(self.draw.randbytes(number * 3 + 1))
            case "close":
                stream.sender.end.close()
                stream.closed_by_sender = True
            case "abort":
                self.unclean = True
                stream.sender.end.abort()
                stream.closed_by_sender = True
            case "pause":
                stream.receiver.end.pause_reading()
            case "resume":
                stream.receiver.end.resume_reading()
            case "outage":
                person = self.people[number % 3]
                person.faults.down = True
                await rest(number % 8)
                person.faults.down = False
            case _:
                await rest(number % 100 / 50.0)

    async def finish(self) -> None:
        """All read again, all close; then everybody knows of the end."""
        for pair in self.streams:
            for stream in pair:
                stream.receiver.end.resume_reading()
        await rest(5.0)
        for pair in self.streams:
            pair[0].sender.end.close()
        await until(self._is_over, 300.0, step_s=0.2)

    def _is_over(self) -> bool:
        return all(
            stream.receiver.closed and stream.sender.closed
            for pair in self.streams
            for stream in pair
        )

    def check(self) -> None:
        for first, second in self.streams:
            closers = first.closed_by_sender + second.closed_by_sender
            for stream in (first, second):
                got = stream.receiver.data
                assert stream.sent.startswith(got)
                # Who closes reads no more; the other's bytes may be lost on the way.
                if not self.unclean and closers == stream.closed_by_sender:
                    assert got == stream.sent
            if not self.unclean:
                assert first.sender.closed == first.receiver.closed == [None]


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(LAYOUTS), STEPS, st.integers(min_value=0, max_value=2**20), st.booleans())
def test_everything_arrives_once_and_in_order_through_lost_requests_and_replies(
    layout: str, steps: list[tuple[str, int]], seed: int, faulty: bool
) -> None:
    async def main() -> None:
        world = World(layout, seed)
        await world.begin()
        if faulty:
            for person in world.people:
                person.faults.lost_requests = person.faults.lost_replies = 0.15
                person.faults.delay_s = 0.05
        for what, number in steps:
            await world.step(what, number)
        await world.finish()
        world.check()
        await world.lab.close()

    run(main())


async def lose_some_mail(lab: Lab, owner: Process, draw: random.Random) -> None:
    """The store forgets letters that nobody has read."""
    if lab.layout == STREAMS:
        stream = make_key("mail", owner.name)
        for item in await lab.store.read(stream):
            if draw.random() < 0.5:
                await lab.store.write(Remove(stream, item.cursor))
        return
    for entry in (await lab.store.list(f"mail.{owner.name}")).entries:
        if draw.random() < 0.5:
            await lab.store.write(Delete(entry.key, ANY))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(LAYOUTS), STEPS, st.integers(min_value=0, max_value=2**20))
def test_what_arrives_is_a_beginning_even_if_the_store_forgets(
    layout: str, steps: list[tuple[str, int]], seed: int
) -> None:
    async def main() -> None:
        world = World(layout, seed)
        world.unclean = True
        await world.begin()
        for what, number in steps:
            try:
                await world.step(what, number)
            except (ConnectionError, TimeoutError):
                continue
            if number % 3 == 0:
                await lose_some_mail(world.lab, world.people[number % 5 % 3], world.draw)
        for pair in world.streams:
            for stream in pair:
                stream.receiver.end.resume_reading()
        await rest(5.0)
        # A letter that was lost at the very end shows only with the next one.
        for pair in world.streams:
            for stream in pair:
                stream.send(b"is anybody there?")
                stream.sender.end.resume_reading()
        await rest(5.0)
        for pair in world.streams:
            pair[0].sender.end.close()
        await rest(5.0)
        world.check()
        await world.lab.close()

    run(main())
