"""All links of a node are checked in turn, with few timers, none of which stays behind."""

from __future__ import annotations

import asyncio

from squall.cluster.wire.links.keepalive import IDLE, SHARED, KeepAlive
from tests.fakes.wire import FakeClock, run


class Looks:
    def __init__(self) -> None:
        self.at: list[float] = []
        self.late: list[float] = []
        self.ends: list[tuple[KeepAlive, Looks]] = []
        self.idles = False

    def check(self, now: float, late_s: float) -> bool:
        self.at.append(now)
        self.late.append(late_s)
        for turns, other in self.ends:
            turns.discard(other)
        return self.idles


class CountingLoop:
    """Counts the timers of the running loop."""

    def __init__(self) -> None:
        self.made = 0
        loop = asyncio.get_running_loop()
        later = loop.call_later

        def counted(*args: object, **names: object) -> object:
            self.made += 1
            return later(*args, **names)  # pyright: ignore[reportArgumentType]

        loop.call_later = counted  # pyright: ignore[reportAttributeAccessIssue]


def test_each_link_is_looked_at_once_per_interval_whenever_it_came() -> None:
    async def main() -> None:
        turns = KeepAlive(FakeClock(), 1.0)
        links = [Looks() for _ in range(40)]
        for link in links:
            turns.add(link)
            await asyncio.sleep(0.05)
        await asyncio.sleep(20.0)
        for link in links:
            gaps = [two - one for one, two in zip(link.at, link.at[1:], strict=False)]
            assert len(gaps) >= 18
            assert min(gaps) >= 1.0 - SHARED - 0.01
            assert max(gaps) <= 1.0 + SHARED + 0.01
        for link in links:
            turns.discard(link)

    run(main())


def test_links_whose_turns_are_close_share_a_timer() -> None:
    async def main() -> None:
        counted = CountingLoop()
        turns = KeepAlive(FakeClock(), 1.0)
        links = [Looks() for _ in range(1000)]
        for number, link in enumerate(links):
            turns.add(link)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        before = counted.made
        await asyncio.sleep(10.0)
        assert counted.made - before <= 10 / SHARED + 2
        assert all(len(link.at) >= 9 for link in links)
        for link in links:
            turns.discard(link)

    run(main())


def test_no_timer_is_left_when_nobody_is() -> None:
    async def main() -> None:
        counted = CountingLoop()
        turns = KeepAlive(FakeClock(), 1.0)
        one, two = Looks(), Looks()
        turns.add(one)
        turns.add(two)
        turns.discard(one)
        turns.discard(one)
        turns.discard(two)
        made = counted.made
        await asyncio.sleep(5.0)
        assert one.at == two.at == []
        # Those two are the sleep above.
        assert counted.made - made <= 1
        turns.add(one)
        await asyncio.sleep(1.5)
        assert len(one.at) == 1
        turns.discard(one)

    run(main())


def test_a_look_may_end_other_links() -> None:
    async def main() -> None:
        turns = KeepAlive(FakeClock(), 1.0)
        one, two = Looks(), Looks()
        one.ends = [(turns, two), (turns, one)]
        turns.add(one)
        turns.add(two)
        await asyncio.sleep(5.0)
        assert len(one.at) == 1
        assert two.at == []
        assert len(turns) == 0

    run(main())


def test_who_comes_late_says_by_how_much() -> None:
    class Late(FakeClock):
        behind_s = 0.0

        def now(self) -> float:
            return super().now() + self.behind_s

    async def main() -> None:
        clock = Late()
        turns = KeepAlive(clock, 1.0)
        link = Looks()
        turns.add(link)
        await asyncio.sleep(1.5)
        clock.behind_s = 20.0
        await asyncio.sleep(1.0)
        assert link.late[0] < 0.1
        assert 19.0 <= link.late[1] <= 20.1
        turns.discard(link)

    run(main())


def test_one_that_idles_is_looked_at_less_often_until_it_is_added_anew() -> None:
    async def main() -> None:
        turns = KeepAlive(FakeClock(), 1.0)
        idle = Looks()
        idle.idles = True
        turns.add(idle)
        await asyncio.sleep(40.5)
        assert 40 / IDLE - 1 <= len(idle.at) <= 40 / IDLE + 1
        # There is no other link: the timer waits for the next check of the idle one.
        other = Looks()
        idle.idles = False
        await asyncio.sleep(0.3)
        for link in (idle, other):
            turns.add(link)
            link.at.clear()
        await asyncio.sleep(10.5)
        for link in (idle, other):
            assert 9 <= len(link.at) <= 11
            assert all(late_s < SHARED + 0.01 for late_s in link.late)
            turns.discard(link)
        assert len(turns) == 0

    run(main())
