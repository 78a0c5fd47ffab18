"""How recent the answers to reads are, and what a manager does that is behind its client."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from squall.cluster.datacenter import commands
from squall.cluster.group import committer
from squall.cluster.group.committer import CommandCodec, Committer
from squall.cluster.ledger.interface import Fence, ReadLevel, Standing
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode

pytestmark = pytest.mark.asyncio


class Follower:
    """A member that has applied op 5; it hears of more when the test says so."""

    fence = Fence(2, 7)
    is_primary = False

    def __init__(self) -> None:
        self.applied = 5
        self.grown = asyncio.Event()

    def standing(self) -> Standing:
        return Standing(group="g", storage="", members=None, committed=5, stale_s=0.25)

    async def read(self, level: ReadLevel, minimum_op: int = 0) -> int:
        assert level is ReadLevel.SESSION
        while self.applied < minimum_op:
            await self.grown.wait()
        return self.applied

    def grow(self, op: int) -> None:
        self.applied = op
        self.grown.set()


def made(ledger: Follower) -> Committer[commands.Command]:
    return Committer(
        cast(Any, ledger), CommandCodec(commands.VERSION, commands.encode), lambda node: ""
    )


async def test_an_answer_says_how_recent_it_is() -> None:
    read = await made(Follower()).read_session(("g", 4))
    assert (read.level, read.op, read.group) == ("session", 5, "g")
    assert (read.epoch, read.view, read.age_s) == (2, 7, 0.25)


async def test_a_client_that_has_seen_more_is_answered_when_this_member_has_it() -> None:
    ledger = Follower()
    waiting = asyncio.ensure_future(made(ledger).read_session(("g", 6)))
    await asyncio.sleep(0)
    assert not waiting.done()
    ledger.grow(6)
    assert (await waiting).op == 6


async def test_a_member_that_stays_behind_refuses_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "SESSION_WAIT_S", 0.01)
    with pytest.raises(RemoteError, match="op 5, and you have seen op 9") as refused:
        await made(Follower()).read_session(("g", 9))
    assert refused.value.code == ErrorCode.RETRY_LATER


async def test_op_numbers_of_a_former_group_say_nothing() -> None:
    assert (await made(Follower()).read_session(("before the recovery", 900))).op == 5
