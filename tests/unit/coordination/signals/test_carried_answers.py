"""A carried signal brings the versions that its receiver would read; only fresh ones count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from squall.coordination.records import keys
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ANY, Append, Item, Put, Record
from tests.fakes.coordination_records import tombstone
from tests.unit.coordination.lab.world import Lab, play


class Watched:
    """Records the signals that `b` handled, and the reads that they caused."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.got: list[object] = []
        self.asked: list[str] = []
        self.brings = lab.store.listen
        self._get = lab.store.get
        lab.store.get = self._noted

    async def begin(self) -> None:
        self.lab.start("a", "b")
        await self.lab.ready("a", "b")
        self.handle()
        await asyncio.sleep(0.2)

    def handle(self) -> None:
        self.lab.members["b"].on_signal("ask", self._handle)

    async def send(self, payload: object) -> str:
        sent = await self.lab.members["a"].send_signal("b", "ask", payload=payload)
        await asyncio.sleep(3.0)
        return sent.signal_id

    def _handle(self, delivery: Delivery) -> None:
        self.got.append(delivery.signal.payload)

    async def _noted(self, *names: str) -> tuple[Record | None, ...]:
        self.asked += [name for name in names if name.startswith("idempotency/b/")]
        return await self._get(*names)


def watched(script: Callable[[Watched], Awaitable[None]]) -> None:
    async def whole(lab: Lab) -> None:
        await script(Watched(lab))

    play(whole)


def test_nothing_is_asked_for_a_signal_that_brings_the_answers() -> None:
    async def script(watch: Watched) -> None:
        await watch.begin()
        for number in range(3):
            await watch.send(number)
        assert (watch.got, watch.asked) == ([0, 1, 2], [])
        assert list(await watch.lab.store.read(keys.inbox("b"))) == []

    watched(script)


def test_answers_that_are_not_fresh_do_not_count() -> None:
    async def script(watch: Watched) -> None:
        async def late(stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
            found = await watch.brings(stream, after=after, timeout_s=timeout_s)
            await asyncio.sleep(1.2)
            return found

        watch.lab.store.listen = late
        await watch.begin()
        signal_id = await watch.send("late")
        assert watch.got == ["late"]
        assert watch.asked == [keys.idempotency("b", signal_id)]

    watched(script)


def test_a_sender_with_another_known_tombstone_is_looked_up() -> None:
    async def script(watch: Watched) -> None:
        await watch.begin()
        await watch.send("before")
        a = watch.lab.members["a"]
        value = a.parts.codec.encode(tombstone("a", 0))
        await watch.lab.store.write(Put(keys.tombstone("a"), value, expect=ANY, ttl_s=600.0))
        first, second = await watch.send("first"), await watch.send("second")
        assert watch.got == ["before", "first", "second"]
        # The second brings what the read for the first one found.
        assert keys.idempotency("b", first) in watch.asked
        assert keys.idempotency("b", second) not in watch.asked

    watched(script)


def test_a_copy_brings_that_it_was_delivered() -> None:
    async def script(watch: Watched) -> None:
        kept: list[Item] = []

        async def noted(stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
            found = await watch.brings(stream, after=after, timeout_s=timeout_s)
            kept.extend(found if stream == keys.inbox("b") else ())
            return found

        watch.lab.store.listen = noted
        await watch.begin()
        signal_id = await watch.send("once")
        # Another process, which remembers nothing.
        watch.lab.world.kill("b")
        watch.lab.world.start("b")
        await asyncio.sleep(6.0)
        watch.handle()
        await asyncio.sleep(0.2)
        mark = keys.idempotency("b", signal_id)
        copy = Append(
            keys.inbox("b"),
            "a-copy",
            kept[0].value,
            ttl_s=600.0,
            carried=True,
            versions_of=(mark, keys.tombstone("a")),
        )
        await watch.lab.store.write(copy)
        await asyncio.sleep(1.0)
        assert watch.got == ["once"]
        assert kept[-1].id == "a-copy"
        assert kept[-1].versions[mark] != ""
        assert watch.lab.members["b"].signals.receiver.rejected == {"replay": 1}

    watched(script)
