"""Only one process acts on an inbox: not one whose id was taken over, and not the adopter once
the owner is back.
"""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination.coordinator import Coordinator
from squall.coordination.errors import ConfigurationError
from squall.coordination.records import keys
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ABSENT, Put
from tests.unit.coordination.lab.world import FAST, SECRET, Lab, play

NEW_SECRET = "0ddba11c0ffee" * 6


async def taken_over(lab: Lab, got: list[tuple[str, object]], *secrets: str) -> Coordinator:
    """`c` was declared dead, another process has its id, and the first one is back."""
    lab.start("a", "c")
    await lab.ready("a", "c")
    first = lab.members["c"]
    first.on_signal("job", lambda delivery: got.append(("first", delivery.signal.payload)))
    lab.faults["c"].down = True
    await asyncio.sleep(6.0)
    lab.members["a"].reload_secrets(secrets)
    second = Coordinator(
        lab.store,
        member_id="c",
        profile=FAST,
        unsafe_timings=True,
        secret=secrets,
        runtime=first.parts.runtime,
    )
    await lab.run_on("c", second.start())
    await asyncio.sleep(5.0)
    lab.faults["c"].down = False
    await asyncio.sleep(10.0)
    assert first.isolated and not second.isolated
    return second


@pytest.mark.parametrize("secrets", [(SECRET,), (SECRET, NEW_SECRET)])
def test_a_process_whose_id_was_taken_over_handles_and_refuses_nothing(
    secrets: tuple[str, ...],
) -> None:
    """With a new secret, signals look forged to it."""

    async def script(lab: Lab) -> None:
        got: list[tuple[str, object]] = []
        second = await taken_over(lab, got, *secrets)
        a = lab.members["a"]
        for number in range(3):
            await lab.run_on("a", a.send_signal("c", "job", payload=number))
        await asyncio.sleep(3.0)
        assert got == []
        second.on_signal("job", lambda delivery: got.append(("second", delivery.signal.payload)))
        await asyncio.sleep(3.0)
        assert got == [("second", number) for number in range(3)]
        assert lab.members["c"].signals.receiver.rejected == {}
        assert second.signals.receiver.rejected == {}
        await lab.run_on("c", second.stop())

    play(script)


def test_a_process_whose_id_was_taken_over_hides_no_waits() -> None:
    async def script(lab: Lab) -> None:
        second = await taken_over(lab, [], SECRET)
        lives = lab.run_on("c", second.block_until_signal(correlation_id="x", timeout_s=600.0))
        await asyncio.sleep(1.0)
        first = lab.members["c"]
        dead = lab.run_on("c", first.block_until_signal(correlation_id="y", timeout_s=600.0))
        await asyncio.sleep(3.0)
        assert [each.correlation_id for each in await second.signals.open_waits()] == ["x"]
        lives.cancel()
        dead.cancel()
        await lab.run_on("c", second.stop())

    play(script)


def test_a_handler_that_waited_in_an_isolated_member_sees_what_was_done_meanwhile() -> None:
    """Its signal was read before the death and handled by the adopter of the inbox."""

    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        await lab.ready("a", "b", "c")
        a, c = lab.members["a"], lab.members["c"]
        got: list[str] = []

        async def slow(delivery: Delivery) -> None:
            got.append(f"c {delivery.signal.payload}")
            await asyncio.sleep(12.0 if delivery.signal.payload == 0 else 0.0)

        c.on_signal("job", slow)
        for number in range(2):
            await lab.run_on("a", a.send_signal("c", "job", payload=number))
        await asyncio.sleep(0.5)
        lab.faults["c"].down = True
        await asyncio.sleep(8.0)
        await lab.run_on("a", a.signals.adopt_inbox("c"))
        a.on_signal("job", lambda delivery: got.append(f"a {delivery.signal.payload}"))
        await asyncio.sleep(1.0)
        lab.faults["c"].down = False
        await asyncio.sleep(20.0)
        assert got == ["c 0", "a 0", "a 1"]

    play(script)


async def adopted(lab: Lab, got: list[str]) -> None:
    """`a` reads for `c`, which is dead."""
    lab.start("a", "b", "c")
    await lab.ready("a", "b", "c")
    lab.faults["c"].down = True
    await asyncio.sleep(8.0)
    a = lab.members["a"]
    await lab.run_on("a", a.signals.adopt_inbox("c"))
    a.on_signal("job", lambda delivery: got.append(f"a {delivery.signal.payload}"))


def test_an_adopted_inbox_is_its_owners_again_when_that_is_back() -> None:
    async def script(lab: Lab) -> None:
        got: list[str] = []
        await adopted(lab, got)
        b, c = lab.members["b"], lab.members["c"]
        await lab.run_on("b", b.send_signal("c", "job", payload=0))
        await asyncio.sleep(1.0)
        assert got == ["a 0"]
        lab.faults["c"].down = False
        await lab.world.eventually(lambda: not c.isolated, within_s=10.0, what="c is back")
        c.on_signal("job", lambda delivery: got.append(f"c {delivery.signal.payload}"))
        for number in range(1, 6):
            await lab.run_on("b", b.send_signal("c", "job", payload=number))
            await asyncio.sleep(0.3)
        assert got == ["a 0", *(f"c {number}" for number in range(1, 6))]
        # An inbox is adopted again after the next death.
        lab.faults["c"].down = True
        await asyncio.sleep(8.0)
        await lab.run_on("a", lab.members["a"].signals.adopt_inbox("c"))
        await lab.run_on("b", b.send_signal("c", "job", payload=6))
        await asyncio.sleep(1.0)
        assert got[-1] == "a 6"

    play(script)


def test_what_is_done_for_an_owner_that_is_back_meanwhile_has_no_effect() -> None:
    async def script(lab: Lab) -> None:
        got: list[str] = []
        await adopted(lab, got)
        a, b, c = (lab.members[name] for name in "abc")

        async def back(delivery: Delivery) -> None:
            lab.faults["c"].down = False
            await lab.world.eventually(lambda: not c.isolated, within_s=10.0, what="c is back")
            delivery.also(Put("effect/a", b"1", expect=ABSENT, ttl_s=60.0))

        a.on_signal("slow", back)
        sent = await lab.run_on("b", b.send_signal("c", "slow"))
        await asyncio.sleep(5.0)
        effect, ack = await lab.store.get("effect/a", keys.ack("b", sent.signal_id))
        assert effect is None and ack is None
        waiting = lab.run_on("c", c.block_until_signal(types=["slow"], timeout_s=5.0))
        assert (await waiting).signal_id == sent.signal_id

    play(script)


def test_a_member_cannot_adopt_its_own_inbox() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.ready("a")
        a = lab.members["a"]
        with pytest.raises(ConfigurationError, match="dead_id"):
            await lab.run_on("a", a.signals.adopt_inbox("a"))

    play(script)
