"""Checkpoints of a log in a store, what is deleted and when, and what is lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.cluster.ledger.interface import LedgerFailed, NotPrimary, OutcomeUnknown
from squall.coordination.stores.interface import ANY, Delete, Put
from squall.store_mode.ledger.tail import Overtaken
from tests.unit.cluster.ledger.lab.ledgers import Words
from tests.unit.store_mode.lab.ledgers import SMALL, Lab, Leave, play, say

OFTEN = msgspec.structs.replace(
    SMALL, checkpoint_slots=10, part_bytes=40, trust_s=10.0, retain_s=20.0
)


async def grow(lab: Lab) -> Words:
    """Sixty commands in as many slots, with checkpoints on the way; its leader is gone."""
    words = Words()
    ledger = await lab.open("a", words, settings=OFTEN)
    for number in range(60):
        await say(ledger, f"word-{number}")
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    assert ledger.housekeeping.checkpoints >= 3
    await ledger.close()
    return words


def test_a_leader_goes_on_from_a_checkpoint_and_reads_few_slots() -> None:
    async def script(lab: Lab) -> None:
        before = await grow(lab)
        lab.store.requests.clear()
        words = Words()
        await lab.open("b", words, term=Leave(2), settings=OFTEN)
        assert words.words == before.words
        assert len([each for each in lab.store.requests if each.startswith("get log/")]) < 30
        head = await lab.head()
        assert len(head.checkpoints) == 2
        assert head.checkpoints[-1].parts > 1

    play(script)


def test_a_checkpoint_may_stand_in_the_middle_of_a_slot() -> None:
    async def script(lab: Lab) -> None:
        words = Words()
        ledger = await lab.open("a", words, settings=msgspec.structs.replace(OFTEN, apply_slice=2))
        lab.faults["a"].reply_delay_s = 0.0
        waiting = asyncio.ensure_future(say(ledger, *(f"w{number}" for number in range(9))))
        while ledger.applied < 3:
            await asyncio.sleep(0)
        op = await ledger.checkpoint()
        await waiting
        assert int(op) < int(ledger.applied)
        await ledger.close()
        again = Words()
        await lab.open("b", again, term=Leave(2))
        assert again.words == words.words

    play(script)


def test_obsolete_slots_and_checkpoints_are_deleted_after_a_while_and_not_before() -> None:
    async def script(lab: Lab) -> None:
        await grow(lab)
        many = len(await lab.keys("log"))
        assert many == 61
        ledger = await lab.open("b", term=Leave(2), settings=OFTEN)
        await asyncio.sleep(10.0)
        assert len(await lab.keys("log")) == many + 1
        await asyncio.sleep(15.0)
        head = await lab.head()
        left = [int(key.rpartition("/")[2]) for key in await lab.keys("log")]
        assert left == list(range(head.first_slot, 63))
        named = {ref.name for ref in head.checkpoints}
        parts = await lab.keys("checkpoint")
        assert {key.rpartition("/")[2].rpartition(".")[0] for key in parts} == named
        await say(ledger, "more")
        words = Words()
        await lab.open("c", words, term=Leave(3))
        assert len(words.words) == 61

    play(script)


def test_what_a_dead_leader_left_of_a_checkpoint_is_swept() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a", settings=OFTEN)
        key = f"checkpoint/main/{ledger.group}/7-dead.0"
        await lab.store.write(Put(key, b"x", expect=ANY, ttl_s=None))
        await asyncio.sleep(5.0)
        await ledger.collect()
        assert key in await lab.keys("checkpoint")
        await asyncio.sleep(20.0)
        await ledger.collect()
        assert key not in await lab.keys("checkpoint")

    play(script)


def test_a_damaged_checkpoint_is_passed_over() -> None:
    async def script(lab: Lab) -> None:
        before = await grow(lab)
        newest = (await lab.head()).checkpoints[-1]
        key = next(key for key in await lab.keys("checkpoint") if newest.name in key)
        await lab.store.write(Put(key, b"\x91\xc4\x01x", expect=ANY, ttl_s=None))
        words = Words()
        await lab.open("b", words, term=Leave(2))
        assert words.words == before.words
        assert lab.told("store_log_checkpoint_skipped")

    play(script)


def test_a_log_without_its_checkpoints_is_replaced_by_a_new_one() -> None:
    async def script(lab: Lab) -> None:
        await grow(lab)
        former = (await lab.head()).id
        for key in await lab.keys("checkpoint"):
            await lab.store.write(Delete(key, ANY))
        words = Words()
        ledger = await lab.open("b", words, term=Leave(2))
        assert ledger.group != former
        assert words.words == []
        (told,) = lab.told("store_log_lost")
        assert "its jobs are lost" in told
        await say(ledger, "anew")

    play(script)


def test_a_slot_that_does_not_follow_is_refused_and_kept() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        await say(ledger, "one")
        await say(ledger, "two")
        keys = await lab.keys("log")
        (record,) = await lab.store.get(keys[1])
        assert record is not None
        await ledger.close()
        await lab.store.write(Put(keys[2], record.value, expect=ANY, ttl_s=None))
        await lab.store.write(Put(keys[1], b"nonsense", expect=ANY, ttl_s=None))
        with pytest.raises(LedgerFailed, match="cannot be decoded"):
            await lab.open("b", term=Leave(2))
        assert await lab.keys("log") == keys

    play(script)


@pytest.mark.parametrize("asks", ["submit", "confirm"])
def test_a_sleeper_does_not_take_a_deleted_slot_for_one_never_written(asks: str) -> None:
    """Without transactions nothing but the head can show it."""

    async def script(lab: Lab) -> None:
        blind = msgspec.structs.replace(OFTEN, head_check_interval_s=1e9)
        sleeper = await lab.open("sleeper", settings=blind)
        await say(sleeper, "one")
        other = await lab.open("other", term=Leave(2), settings=OFTEN)
        for number in range(60):
            await say(other, f"word-{number}")
            await asyncio.sleep(0.6)
        await asyncio.sleep(30.0)
        assert (await lab.head()).first_slot > 5
        assert not [key for key in await lab.keys("log") if key.endswith("000000000003")]
        assert sleeper.is_primary
        with pytest.raises((NotPrimary, OutcomeUnknown)):
            await (sleeper.submit(b"late") if asks == "submit" else sleeper.confirm())
        assert isinstance(sleeper.failure, Overtaken)
        words = Words()
        await lab.open("third", words, term=Leave(3))
        assert len(words.words) == 61

    play(script, bound=False)
