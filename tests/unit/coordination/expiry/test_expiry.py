"""Which records expiry does not remove, and which errors do not stop it. In virtual time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.coordination import Ttl
from squall.coordination.records import keys
from squall.coordination.stores.interface import ANY, Put, Record
from tests.unit.coordination.lab.world import FIRST_EPOCH, Lab, play

ODD = {
    "many digits": b'{"until":' + b"9" * 309 + b"}",
    "deep": b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "true": b'{"until":true}',
    "no number": b'{"until":1e400}',
    "no text": b"\xff\xfe",
    "a list": b"[]",
}


@pytest.mark.parametrize("odd", ODD)
def test_a_record_that_says_nothing_stays_and_stops_nothing(odd: str) -> None:
    async def script(lab: Lab) -> None:
        def make(name: str) -> Ttl:
            ttl = Ttl(ttl_interval=1.0)
            ttl.register("session", expires_field="until")
            ttl.register("thing", expires_after=5.0)
            return ttl

        await lab.store.write(
            Put("session/odd", ODD[odd], expect=ANY, ttl_s=None),
            Put("session/old", msgspec.json.encode({"until": 1.0}), expect=ANY, ttl_s=None),
            Put("thing/old", b"", expect=ANY, ttl_s=None),
        )
        lab.start("a", plugin=make)
        await lab.led()
        await asyncio.sleep(10.0)
        found = await lab.store.get("session/odd", "session/old", "thing/old")
        assert [each is not None for each in found] == [True, False, False]
        assert lab.members["a"].current_epoch == FIRST_EPOCH, "its coordinator is well"

    play(script)


def test_a_member_that_fell_silent_while_all_were_away_is_still_found_dead() -> None:
    """Its heartbeat has expired by then; it is the only sign that there is."""

    async def script(lab: Lab) -> None:
        lab.start("a", plugin=lambda name: Ttl(ttl_interval=1.0))
        lab.start("b")
        await lab.ready("a", "b")
        await asyncio.sleep(5.0)
        lab.world.kill("a")
        lab.world.kill("b")
        lab.members.clear()
        await asyncio.sleep(120.0)
        lab.world.start("a")
        await lab.led(30.0)
        await asyncio.sleep(60.0)
        (tomb,) = await lab.store.get(keys.tombstone("b"))
        assert tomb is not None

    play(script)


@pytest.mark.parametrize(("given", "kept_s"), [(None, 100.0), (500.0, 500.0)])
def test_a_touch_restarts_the_time_for_which_the_store_keeps_a_record(
    given: float | None, kept_s: float
) -> None:
    async def script(lab: Lab) -> None:
        made = list[Ttl]()

        def make(name: str) -> Ttl:
            made.append(Ttl())
            return made[-1]

        lab.start("a", plugin=make)
        await lab.ready("a")
        await lab.store.write(Put("session/x", b"{}", expect=ANY, ttl_s=100.0))
        await asyncio.sleep(60.0)
        assert await lab.run_on("a", made[0].touch("session/x", ttl_s=given))
        await asyncio.sleep(kept_s - 1.0)
        (still,) = await lab.store.get("session/x")
        assert isinstance(still, Record)
        await asyncio.sleep(2.0)
        assert await lab.store.get("session/x") == (None,)

    play(script)
