"""What stands behind a name is remembered as long as its TTL says, and no longer than is safe."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import cast

import pytest

from squall.runtime.interfaces import NotResolved, ResolvedTarget, Runtime
from squall.runtime.names import DIALS_MAX, Names, ordered
from tests.fakes.wire import FakeNetwork, FakeRuntime, run

NAME = ("dns:managers", 7400)
M1, M2, M3 = (("10.0.0.1", 7400), ("10.0.0.2", 7400), ("10.0.0.3", 7400))


class Zone:
    """A node, and the server that it asks."""

    def __init__(self) -> None:
        network = FakeNetwork()
        self.table = network.names
        self.names = Names(cast("Runtime", FakeRuntime(network, "w1", "boot")))

    async def found(self) -> set[tuple[str, int]]:
        return set(await self.names.addresses(NAME))

    @property
    def lookups(self) -> int:
        return self.table.lookups.get(NAME, 0)


def test_a_plain_address_stands_for_itself_and_is_not_looked_up() -> None:
    async def main() -> None:
        zone = Zone()
        assert await zone.names.addresses(M1) == [M1]
        assert not zone.table.lookups

    run(main())


def test_an_answer_is_used_until_its_ttl_ends() -> None:
    async def main() -> None:
        zone = Zone()
        zone.table.publish(NAME, [M1], ttl_s=20.0)
        assert await zone.found() == {M1}
        zone.table.publish(NAME, [M2], ttl_s=20.0)
        await asyncio.sleep(19.0)
        assert await zone.found() == {M1} and zone.lookups == 1
        await asyncio.sleep(1.1)
        assert await zone.found() == {M2} and zone.lookups == 2

    run(main())


@pytest.mark.parametrize(("ttl_s", "holds_s"), [(0.0, 1.0), (86_400.0, 300.0)])
def test_a_ttl_is_bounded(ttl_s: float, holds_s: float) -> None:
    async def main() -> None:
        zone = Zone()
        zone.table.publish(NAME, [M1], ttl_s)
        await zone.found()
        await asyncio.sleep(0.9 * holds_s)
        await zone.found()
        assert zone.lookups == 1
        await asyncio.sleep(0.2 * holds_s)
        await zone.found()
        assert zone.lookups == 2

    run(main())


def test_callers_at_the_same_time_share_one_lookup() -> None:
    async def main() -> None:
        zone = Zone()
        zone.table.publish(NAME, [M1, M2], ttl_s=20.0)
        found = await asyncio.gather(*(zone.found() for _ in range(20)))
        assert found == [{M1, M2}] * 20 and zone.lookups == 1

    run(main())


def test_a_caller_that_gives_up_does_not_take_the_lookup_from_the_others() -> None:
    async def main() -> None:
        zone = Zone()
        zone.table.publish(NAME, [M1], ttl_s=20.0)
        first = asyncio.ensure_future(zone.found())
        second = asyncio.ensure_future(zone.found())
        await asyncio.sleep(0.001)
        first.cancel()
        assert await second == {M1}

    run(main())


def test_a_missing_name_is_remembered_for_a_while() -> None:
    async def main() -> None:
        zone = Zone()
        for _ in range(10):
            with pytest.raises(NotResolved, match="dns:managers:7400: no such name; asked dns:53"):
                await zone.found()
            await asyncio.sleep(0.4)
        assert zone.lookups == 1
        zone.table.publish(NAME, [M1], ttl_s=20.0)
        await asyncio.sleep(5.0)
        assert await zone.found() == {M1}

    run(main())


def test_the_last_answer_stays_in_use_while_the_server_is_down() -> None:
    async def main() -> None:
        zone = Zone()
        zone.table.publish(NAME, [M1], ttl_s=5.0)
        await zone.found()
        zone.table.is_down = True
        await asyncio.sleep(60.0)
        assert await zone.found() == {M1}
        zone.table.is_down = False
        zone.table.publish(NAME, [M2], ttl_s=5.0)
        await asyncio.sleep(1.1)
        assert await zone.found() == {M2}

    run(main())


def test_a_name_whose_addresses_all_failed_is_looked_up_before_its_ttl_ends() -> None:
    async def main() -> None:
        zone = Zone()
        zone.table.publish(NAME, [M1], ttl_s=300.0)
        await zone.found()
        zone.table.publish(NAME, [M2], ttl_s=300.0)
        await asyncio.sleep(2.0)
        zone.names.failed(NAME)
        assert await zone.found() == {M2}
        # A dead cluster does not flood its DNS server.
        for _ in range(100):
            zone.names.failed(NAME)
            await zone.found()
            await asyncio.sleep(0.1)
        assert zone.lookups <= 2 + 10 + 1

    run(main())


def test_a_name_of_many_nodes_gives_some_of_them_and_others_the_next_time() -> None:
    async def main() -> None:
        zone = Zone()
        many = [(f"10.0.1.{each}", 7400) for each in range(60)]
        zone.table.publish(NAME, many, ttl_s=300.0)
        seen: set[tuple[str, int]] = set()
        for _ in range(60):
            found = await zone.found()
            assert len(found) == DIALS_MAX
            seen |= found
        assert seen == set(many) and zone.lookups == 1

    run(main())


def test_records_are_ordered_by_priority_and_drawn_by_weight() -> None:
    draw = random.Random(1)
    targets = [ResolvedTarget(M1, 10, 90), ResolvedTarget(M2, 10, 10), ResolvedTarget(M3, 20, 100)]
    orders = [ordered(targets, draw) for _ in range(1_000)]
    assert all(each[2] == M3 for each in orders)
    first = Counter(each[0] for each in orders)
    assert 850 <= first[M1] <= 950 and first[M2] == 1_000 - first[M1]


def test_a_node_with_two_records_is_one_address() -> None:
    assert ordered(
        [ResolvedTarget(M1, 1), ResolvedTarget(M1, 2), ResolvedTarget(M2, 3)], random.Random(1)
    ) == [M1, M2]
