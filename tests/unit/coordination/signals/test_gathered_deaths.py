"""`wait_all` with several senders, of which some die."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination.errors import BlockingTimeoutError, DeadCoordinatorError
from tests.unit.coordination.lab.world import FAST, Lab, play

LIMIT_S = 300.0


@pytest.mark.parametrize(
    ("wanted", "dead", "ends_with"),
    [
        (("x",), "b", DeadCoordinatorError),
        (("x", "y"), "b", DeadCoordinatorError),
        # One sender for three signals: the living one may still send the others.
        (("x", "y", "z"), "b", BlockingTimeoutError),
        (("x", "y", "z"), "b c", DeadCoordinatorError),
    ],
)
def test_it_ends_once_it_cannot_be_complete_and_names_the_dead(
    wanted: tuple[str, ...], dead: str, ends_with: type[Exception]
) -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        await lab.ready("a", "b", "c")
        wait_all = lab.members["a"].wait_all
        senders = ("b",) if len(wanted) == 1 else ("b", "c")
        waiting = lab.run_on("a", wait_all(wanted, LIMIT_S, from_=senders))
        await asyncio.sleep(1.0)
        if len(wanted) > 1:
            send = lab.members["c"].send_signal
            await lab.run_on("c", send("a", "done", correlation_id=wanted[-1]))
        for name in dead.split():
            lab.world.kill(name)
        begun = lab.world.now
        with pytest.raises(ends_with) as ended:
            await waiting
        took_s = lab.world.now - begun
        if ends_with is DeadCoordinatorError:
            assert took_s < 4 * FAST.dead_after
            assert str(ended.value).startswith(f"{', '.join(dead.split())} is dead")
        else:
            assert took_s >= LIMIT_S - 2.0 and "b" in str(ended.value)

    play(script)


def test_a_call_goes_on_while_a_sender_that_may_still_answer_lives() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        await lab.ready("a", "b", "c")
        waiting = lab.run_on("a", lab.members["a"].wait_all(["x", "y"], LIMIT_S, from_=("b", "c")))
        await asyncio.sleep(1.0)
        lab.world.kill("b")
        await asyncio.sleep(5 * FAST.dead_after)
        assert not waiting.done()
        for name in ("x", "y"):
            send = lab.members["c"].send_signal
            await lab.run_on("c", send("a", "done", correlation_id=name))
        assert sorted(await waiting) == ["x", "y"]

    play(script)
