"""A log in a store: how a leader answers, and when it must stop leading."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.api.errors import ConfigError
from squall.cluster.ledger.interface import (
    Fence,
    Ledger,
    LedgerFailed,
    NotPrimary,
    OutcomeUnknown,
    ReadLevel,
    TryLater,
)
from squall.cluster.ledger.wal.errors import TooLarge
from squall.store_mode.ledger.open_store_ledger import open_store_log
from squall.store_mode.ledger.store_ledger import TERM_ENDED
from squall.store_mode.ledger.tail import LogLost, Superseded
from tests.unit.cluster.ledger.lab.ledgers import Words
from tests.unit.store_mode.lab.ledgers import SMALL, Lab, Leave, outcome_of, play, puts, say


@pytest.mark.parametrize("bound", [True, False])
def test_the_next_leader_has_all_that_was_committed(bound: bool) -> None:
    async def script(lab: Lab) -> None:
        first = await lab.open("a")
        answers = [await first.submit(word.encode()) for word in ("one", "two")]
        assert [(int(each.op), each.result) for each in answers] == [(2, b"1"), (3, b"2")]
        assert await first.submit(b"bad")
        await first.close()
        words = Words()
        second = await lab.open("b", words, term=Leave(2))
        assert words.words == ["one", "two"]
        assert second.is_primary
        assert second.primary == "b"
        assert (await second.submit(b"three")).op == 6

    play(script, bound=bound)


def test_it_is_a_log_for_a_manager() -> None:
    async def script(lab: Lab) -> None:
        log: Ledger = await lab.open("a")
        assert log.failure is None
        assert callable(open_store_log(lab.store, term=Leave()))

    play(script)


def test_what_waits_goes_together() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        lab.faults["a"].delay_s = 0.01
        before = len(lab.store.requests)
        early = asyncio.ensure_future(ledger.submit(b"early"))
        await asyncio.sleep(0.001)
        await say(ledger, *(str(number) for number in range(63)))
        await early
        assert puts(lab.store.requests[before:]) == 2
        assert ledger.counters.commands == 64

    play(script)


def test_a_slot_has_a_limit() -> None:
    async def script(lab: Lab) -> None:
        words = Words()
        ledger = await lab.open("a", words)
        await say(ledger, *("x" * 200_000 for _ in range(6)))
        assert ledger.counters.slots >= 3
        assert len(words.words) == 6
        with pytest.raises(TooLarge):
            await ledger.submit(b"x" * 300_000)

    play(script)


@pytest.mark.parametrize("bound", [True, False])
def test_a_former_leader_is_over_for_good(bound: bool) -> None:
    async def script(lab: Lab) -> None:
        roles: list[Fence | None] = []
        first = await lab.open("a")
        first.on_role(roles.append)
        await say(first, "one")
        words = Words()
        second = await lab.open("b", words, term=Leave(2))
        assert second.fence > first.fence
        with pytest.raises(OutcomeUnknown):
            await first.submit(b"late")
        assert isinstance(first.failure, Superseded)
        assert "another agent leads" in str(first.failure)
        assert not first.is_primary
        assert first.primary is None
        before = len(lab.store.requests)
        with pytest.raises(NotPrimary):
            await first.submit(b"later")
        with pytest.raises(NotPrimary):
            await first.confirm()
        await asyncio.sleep(60.0)
        assert puts(lab.store.requests[before:]) == 0
        assert [fence is None for fence in roles] == [False, True]
        await say(second, "two")
        assert words.words == ["one", "two"]

    play(script, bound=bound)


def test_a_superseded_leader_is_not_confirmed() -> None:
    async def script(lab: Lab) -> None:
        first = await lab.open("a")
        assert await first.confirm() == first.fence
        await lab.open("b", term=Leave(2))
        with pytest.raises(NotPrimary):
            await first.confirm()
        with pytest.raises(NotPrimary):
            await first.read(ReadLevel.STRONG)

    play(script)


def test_many_share_one_round_that_began_after_they_asked() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        lab.faults["a"].delay_s = 0.1
        early = asyncio.ensure_future(ledger.confirm())
        await asyncio.sleep(0.001)
        late = [asyncio.ensure_future(ledger.confirm()) for _ in range(50)]
        await early
        assert not any(each.done() for each in late)
        await asyncio.gather(*late)
        assert ledger.counters.rounds == 2

    play(script)


def test_a_round_without_an_answer_is_begun_again_for_a_while() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        lab.faults["a"].down = True
        asking = asyncio.ensure_future(ledger.confirm())
        await asyncio.sleep(1.0)
        assert not asking.done()
        lab.faults["a"].down = False
        assert await asking == ledger.fence
        lab.faults["a"].down = True
        with pytest.raises(TryLater):
            await ledger.confirm()
        lab.faults["a"].down = False
        await asyncio.sleep(1.0)
        assert await ledger.confirm() == ledger.fence

    play(script)


def test_a_slot_confirms_those_who_asked_before_it_began() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        await asyncio.gather(ledger.confirm(), ledger.submit(b"one"))
        assert (ledger.counters.rounds, ledger.counters.slots) == (0, 1)

    play(script)


def test_a_lost_reply_is_found_out() -> None:
    async def script(lab: Lab) -> None:
        words = Words()
        ledger = await lab.open("a", words)
        lab.faults["a"].lost_replies = 0.7
        await say(ledger, "one")
        await say(ledger, "two")
        lab.faults["a"].lost_replies = 0.0
        assert words.words == ["one", "two"]
        again = Words()
        await lab.open("b", again, term=Leave(2))
        assert again.words == ["one", "two"]

    play(script)


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_an_outage_makes_outcomes_unknown_and_nothing_else_is_written(lost: str) -> None:
    async def script(lab: Lab) -> None:
        words = Words()
        ledger = await lab.open("a", words)
        setattr(lab.faults["a"], f"lost_{lost}", 1.0)
        under_way = asyncio.ensure_future(outcome_of(ledger, "one"))
        await asyncio.sleep(0.5)
        behind = asyncio.ensure_future(outcome_of(ledger, "two"))
        asking = asyncio.ensure_future(ledger.confirm())
        assert await under_way == "unknown"
        assert await behind == "TryLater"
        with pytest.raises(TryLater):
            await asking
        assert await outcome_of(ledger, "three") == "TryLater"
        assert words.words == []
        lab.faults["a"].lost_requests = lab.faults["a"].lost_replies = 0.0
        await asyncio.sleep(2.0)
        assert words.words == ["one"]
        assert await outcome_of(ledger, "four") == "committed"
        again = Words()
        await lab.open("b", again, term=Leave(2))
        assert again.words == ["one", "four"]

    play(script)


def test_the_end_of_the_term_is_the_end_of_the_lead() -> None:
    async def script(lab: Lab) -> None:
        term = Leave()
        ledger = await lab.open("a", term=term)
        roles: list[Fence | None] = []
        ledger.on_role(roles.append)
        lab.faults["a"].lost_requests = 1.0
        waiting = asyncio.ensure_future(outcome_of(ledger, "one"))
        asking = asyncio.ensure_future(outcome_of(ledger, "two"))
        await asyncio.sleep(0.1)
        term.valid = False
        assert await outcome_of(ledger, "three") == "NotPrimary"
        assert await waiting == "unknown"
        assert await asking == "unknown"
        assert str(ledger.failure) == TERM_ENDED
        assert roles[-1] is None
        lab.faults["a"].lost_requests = 0.0
        before = puts(lab.store.requests)
        await asyncio.sleep(30.0)
        assert puts(lab.store.requests) == before

    play(script)


def test_an_end_is_noticed_without_any_command() -> None:
    async def script(lab: Lab) -> None:
        term = Leave()
        ledger = await lab.open("a", term=term)
        term.valid = False
        await asyncio.sleep(1.0)
        assert not ledger.is_primary

    play(script)


def test_fences_grow_also_when_epochs_fall() -> None:
    async def script(lab: Lab) -> None:
        fences = [(await lab.open("a", term=Leave(epoch))).fence for epoch in (3, 4, 1, 1, 9)]
        assert fences == sorted(set(fences))
        assert {fence.epoch for fence in fences} == {fences[0].epoch}

    play(script)


def test_the_group_clock_continues_while_no_agent_leads() -> None:
    async def script(lab: Lab) -> None:
        first = await lab.open("a")
        await asyncio.sleep(5.0)
        await say(first, "one")
        await first.close()
        await asyncio.sleep(100.0)
        lab.world.jump_wall_clock("a", -5000.0)
        second = await lab.open("a", term=Leave(2))
        assert 104_000 < second.group_ms() < 106_000
        assert (await second.submit(b"two")).group_ms >= 104_000

    play(script)


def test_a_closed_ledger_writes_what_was_submitted() -> None:
    async def script(lab: Lab) -> None:
        words = Words()
        ledger = await lab.open("a", words)
        lab.faults["a"].delay_s = 0.1
        waiting = [asyncio.ensure_future(ledger.submit(word)) for word in (b"one", b"two")]
        await asyncio.sleep(0)
        await ledger.close()
        assert len(await asyncio.gather(*waiting)) == 2
        with pytest.raises(LedgerFailed, match="closed"):
            await ledger.submit(b"three")

    play(script)


def test_a_store_without_transactions_is_asked_once_per_slot_and_once_per_round() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        lab.store.requests.clear()
        for number in range(10):
            await say(ledger, str(number))
            await ledger.confirm()
        assert sorted(lab.store.requests) == ["check"] * 10 + ["put"] * 10

    play(script, bound=False)


@pytest.mark.parametrize("bound", [True, False])
def test_a_store_that_lost_everything_ends_the_log_in_one_clear_line(bound: bool) -> None:
    async def script(lab: Lab) -> None:
        first = await lab.open("a")
        await say(first, "one")
        lab.forget()
        await asyncio.sleep(6.0 if not bound else 0.0)
        assert await outcome_of(first, "two") in ("unknown", "NotPrimary")
        assert isinstance(first.failure, LogLost)
        assert "lost data" in str(first.failure)
        assert "submit them again" in str(first.failure)
        words = Words()
        # The record of the election is lost as well: an agent that starts now leads in epoch 1.
        await asyncio.sleep(1.0)
        second = await lab.open("b", words, term=Leave(1))
        assert second.group != first.group
        assert second.fence > first.fence and second.fence.epoch > first.fence.epoch
        await say(second, "three")
        third = await lab.open("c", term=Leave(2))
        assert third.fence > second.fence
        assert words.words == ["three"]

    play(script, bound=bound)


def test_a_newer_version_in_the_log_is_refused_and_kept() -> None:
    async def script(lab: Lab) -> None:
        newer = await lab.open("a", Words(version=3))
        assert newer.active_version == 3
        await newer.submit(b"one", version=3)
        with pytest.raises(LedgerFailed, match="start the newer one"):
            await lab.open("b", term=Leave(2))
        words = Words(version=3)
        await lab.open("c", words, term=Leave(3))
        assert words.words == ["one"]

    play(script)


def test_a_version_that_is_not_active_waits() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        with pytest.raises(TryLater, match="not active"):
            await ledger.submit(b"one", version=2)

    play(script)


def test_a_bug_in_the_machine_ends_the_ledger() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        with pytest.raises(OutcomeUnknown):
            await ledger.submit(b"raise")
        assert ledger.failure is not None
        assert not ledger.is_primary

    play(script)


def test_an_opening_waits_for_the_store_and_ends_with_the_term() -> None:
    async def script(lab: Lab) -> None:
        term = Leave()
        lab.runtime("a")
        await (await lab.open("a")).close()
        lab.faults["a"].down = True
        opening = asyncio.ensure_future(lab.open("a", term=term))
        await asyncio.sleep(5.0)
        assert not opening.done()
        term.valid = False
        with pytest.raises(LedgerFailed, match="term"):
            await opening

    play(script)


def test_settings_that_are_unsafe_are_refused() -> None:
    with pytest.raises(ConfigError, match="retain_s"):
        msgspec.structs.replace(SMALL, retain_s=40.0)
