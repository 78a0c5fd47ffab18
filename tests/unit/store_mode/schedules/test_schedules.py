"""Scheduled load tests: one job per due time, whichever agent coordinates, and what is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace as replaced
from typing import Any

import msgspec
import pytest

from squall.api.errors import UsageError
from squall.cluster.wire.seal.secrets import Secrets
from squall.coordination.errors import StoreUnavailableError
from squall.coordination.scheduler.records import JobRecord
from squall.coordination.stores.interface import ANY, Put, Record
from squall.coordination.stores.memory.store import MemoryStore
from squall.stats.verdict import Verdict
from squall.store_mode.schedules.client import ScheduleRequest, check_request
from squall.store_mode.schedules.current_run import GIVE_UP_S
from squall.store_mode.schedules.records import INDEX, ScheduledRun, ScheduleIndex
from squall.store_mode.schedules.runner import COLLECT_S
from tests.unit.store_mode.lab.schedules import (
    HUSH,
    MINUTE,
    SECRET,
    FakeDesk,
    ScheduleLab,
    played,
    result_of,
    submission_of,
)

BOTH = pytest.mark.parametrize("bound", [True, False], ids=["transactions", "none"])


def states(runs: list[ScheduledRun]) -> list[str]:
    return [run.state for run in runs]


def assert_one_job_each(submitter: FakeDesk, times: int) -> None:
    assert len(submitter.jobs) == len(set(submitter.asked)) == times


# Due times.


def test_each_due_time_is_one_job_with_what_was_submitted() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        await lab.lead("a1", 1)
        await lab.until_due()
        await lab.wait(4 * MINUTE)
        runs = await lab.runs()
        assert states(runs) == ["completed"] * 5
        assert [run.due % MINUTE for run in runs] == [0.0] * 5
        assert [run.exit_code for run in runs] == [0] * 5
        assert_one_job_each(lab.submitter, 5)
        submission, bundle = submission_of()
        assert lab.submitter.submissions == [submission] * 5
        assert lab.submitter.bundles == [bundle.data] * 5
        assert set(lab.submitter.principals) == {"ann"}

    played(script)


def test_a_cron_text_has_its_own_zone() -> None:
    async def script(lab: ScheduleLab) -> None:
        # The world begins at 22:13:20 UTC on a day in November.
        await lab.add(cron="15 23 * * *", zone="Europe/Berlin", every=0.0)
        entry = await lab.book().entry("shop")
        assert round(entry.next_due - lab.now()) == 100
        await lab.lead("a1", 1)
        await lab.wait(103.0)
        assert states(await lab.runs()) == ["completed"]

    played(script)


@BOTH
def test_two_agents_that_both_coordinate_make_one_job_of_a_due_time(bound: bool) -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        await lab.lead("a1", 1)
        await lab.until_due()
        for number in range(2, 6):
            # The former one does not notice, and continues as long as the store lets it.
            await lab.lead(f"a{number}", number)
            await lab.wait(MINUTE)
        assert states(await lab.runs()) == ["completed"] * 5
        assert_one_job_each(lab.submitter, 5)

    played(script, bound=bound)


def test_who_wakes_up_late_changes_nothing_even_where_no_fence_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        former = await lab.elected("a1", 1)
        await lab.until_due()
        await former.turn()
        await former.turn()
        write = lab.store.write

        async def unfenced(*writes: Any, fence: Any = None) -> Any:
            return await write(*writes)

        await lab.lead("a2", 2)
        monkeypatch.setattr(lab.store, "write", unfenced)
        await lab.wait(3 * MINUTE)
        known = await lab.runs()
        assert states(known) == ["completed"] * 4
        await former.turn()
        assert await lab.runs() == known
        await lab.wait(MINUTE)
        await former.turn()
        assert states(await lab.runs()) == ["completed"] * 5
        assert_one_job_each(lab.submitter, 5)

    played(script)


@BOTH
@pytest.mark.parametrize("misfire", ["run_once", "run_all"])
def test_a_due_time_that_was_decided_and_not_handed_in_is_handed_in_by_the_next(
    bound: bool, misfire: str
) -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add(every=60 * MINUTE, misfire=misfire)
        lab.submitter.stuck = asyncio.Event()
        crash = await lab.lead("a1", 1)
        await lab.until_due(60 * MINUTE)
        assert len(lab.submitter.asked) == 1 and not lab.submitter.jobs
        await crash()
        lab.submitter.stuck = None
        await lab.wait(10 * MINUTE)
        await lab.lead("a2", 2)
        await lab.wait(2.0)
        (run,) = await lab.runs()
        assert (run.state, run.job) == ("completed", "j-1")
        assert lab.submitter.asked[0] == lab.submitter.asked[1]

    played(script, bound=bound)


@pytest.mark.parametrize("handed_in", [True, False])
def test_without_catching_up_nothing_starts_late_but_what_started_is_noted(
    handed_in: bool,
) -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add(every=60 * MINUTE)
        if handed_in:
            lab.submitter.loses_answers = 10**6
        else:
            lab.submitter.stuck = asyncio.Event()
        crash = await lab.lead("a1", 1)
        await lab.until_due(60 * MINUTE)
        await crash()
        lab.submitter.loses_answers, lab.submitter.stuck = 0, None
        await lab.wait(10 * MINUTE)
        await lab.lead("a2", 2)
        await lab.wait(2.0)
        (run,) = await lab.runs()
        assert (run.state, run.job) == (("completed", "j-1") if handed_in else ("missed", ""))
        assert len(lab.submitter.jobs) == handed_in

    played(script)


def test_a_job_whose_answer_was_lost_is_not_made_twice() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        lab.submitter.loses_answers = 3
        await lab.lead("a1", 1)
        await lab.until_due()
        await lab.wait(10.0)
        assert len(lab.submitter.asked) == 4
        assert_one_job_each(lab.submitter, 1)
        assert states(await lab.runs()) == ["completed"]

    played(script)


def test_the_end_of_a_job_is_seen_by_the_next_coordinator() -> None:
    async def script(lab: ScheduleLab) -> None:
        lab.submitter.ends_at_once = False
        await lab.add()
        crash = await lab.lead("a1", 1)
        await lab.until_due()
        await crash()
        lab.submitter.end("j-1", exit_code=99)
        await lab.lead("a2", 2)
        await lab.wait(2.0)
        (run,) = await lab.runs()
        assert (run.state, run.job, run.exit_code, run.verdict) == ("completed", "j-1", 99, "VALID")
        assert_one_job_each(lab.submitter, 1)

    played(script)


@pytest.mark.parametrize(
    ("misfire", "jobs", "expected"),
    [
        ("skip", 0, ["missed"]),
        ("run_once", 1, ["missed", "completed"]),
        ("run_all", 5, ["completed"] * 5),
    ],
)
def test_missed_due_times_are_made_up_for_as_was_wished(
    misfire: str, jobs: int, expected: list[str]
) -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add(every=10 * MINUTE, misfire=misfire)
        await lab.until_due(10 * MINUTE)
        await lab.wait(45 * MINUTE)
        await lab.lead("a1", 1)
        await lab.wait(10.0)
        runs = await lab.runs()
        assert states(runs) == expected
        assert_one_job_each(lab.submitter, jobs)
        if "missed" in expected:
            assert "no agent coordinated at" in runs[0].reason

    played(script)


def test_a_short_absence_misses_nothing() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add(every=10 * MINUTE)
        await lab.until_due(10 * MINUTE, plus_s=100.0)
        await lab.lead("a1", 1)
        await lab.wait(2.0)
        assert states(await lab.runs()) == ["completed"]

    played(script)


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [("skip", ["completed", "skipped", "skipped", "completed"]), ("run_all", ["completed"] * 4)],
)
def test_runs_of_a_schedule_never_overlap(misfire: str, expected: list[str]) -> None:
    async def script(lab: ScheduleLab) -> None:
        lab.submitter.ends_at_once = False
        await lab.add(misfire=misfire)
        await lab.lead("a1", 1)
        await lab.until_due()
        await lab.wait(2 * MINUTE + 5.0)
        assert len(lab.submitter.jobs) == 1
        lab.submitter.end("j-1")
        lab.submitter.ends_at_once = True
        await lab.wait(MINUTE)
        runs = await lab.runs()
        assert states(runs) == expected
        assert [run.due for run in runs] == sorted(run.due for run in runs)
        assert all("j-1" in run.reason for run in runs if run.state == "skipped")

    played(script)


# What goes wrong.


def test_what_is_refused_is_noted_and_the_next_due_time_comes() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        lab.submitter.refuses = "the file holds no workflow to run"
        await lab.lead("a1", 1)
        await lab.until_due()
        lab.submitter.refuses = ""
        await lab.wait(MINUTE)
        refused, after = await lab.runs()
        assert (refused.state, refused.reason) == ("refused", "the file holds no workflow to run")
        assert after.state == "completed"

    played(script)


def test_a_job_that_no_manager_knows_any_more_is_lost() -> None:
    async def script(lab: ScheduleLab) -> None:
        lab.submitter.ends_at_once = False
        await lab.add()
        await lab.lead("a1", 1)
        await lab.until_due()
        lab.submitter.seen.clear()
        await lab.wait(2.0)
        (run,) = await lab.runs()
        assert (run.state, run.job) == ("lost", "j-1")

    played(script)


def test_what_could_not_be_handed_in_for_hours_is_given_up() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add(every=86_400.0, misfire="run_once")
        lab.submitter.stuck = asyncio.Event()
        await lab.until_due(86_400.0)
        crash = await lab.lead("a1", 1)
        await lab.wait(2.0)
        await crash()
        await lab.wait(GIVE_UP_S + MINUTE)
        lab.submitter.stuck = None
        await lab.lead("a2", 2)
        await lab.wait(2.0)
        assert states(await lab.runs()) == ["missed"]
        assert len(lab.submitter.asked) == 1, "the managers may not know its key any more"

    played(script)


def test_nothing_is_decided_before_the_manager_is_ready() -> None:
    async def script(lab: ScheduleLab) -> None:
        lab.submitter.is_open = False
        await lab.add()
        await lab.lead("a1", 1)
        await lab.until_due()
        assert not lab.submitter.asked
        lab.submitter.is_open = True
        await lab.wait(2.0)
        assert states(await lab.runs()) == ["completed"]

    played(script)


def test_a_store_that_is_away_delays_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        await lab.lead("a1", 1)
        await lab.until_due()
        get, write = lab.store.get, lab.store.write

        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError("away")

        monkeypatch.setattr(lab.store, "get", away)
        monkeypatch.setattr(lab.store, "write", away)
        await lab.wait(MINUTE + 10.0)
        monkeypatch.setattr(lab.store, "get", get)
        monkeypatch.setattr(lab.store, "write", write)
        await lab.wait(5.0)
        assert states(await lab.runs()) == ["completed"] * 2
        assert_one_job_each(lab.submitter, 2)
        told = [each for each in lab.sink.records if each.event == "schedule_trouble"]
        assert 1 <= len(told) <= 3, "the same error is reported once"

    played(script)


def test_one_broken_schedule_does_not_stop_another() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add("first")
        await lab.add("second")
        await lab.store.write(Put("loadtest/first", b"\xc1", expect=ANY, ttl_s=None))
        await lab.lead("a1", 1)
        await lab.until_due()
        assert states(await lab.runs("second")) == ["completed"]

    played(script)


# History, comparison, retention.


def test_each_run_is_compared_with_the_last_one_that_is_worth_it() -> None:
    latencies = {"j-1": 0.010, "j-2": 0.030, "j-3": 0.030, "j-4": 0.030}

    def made(job: str) -> Any:
        result = result_of(job, latencies[job])
        if job == "j-2":
            result.verdict = Verdict(state="INVALID", reasons=["the generator was slow"])
        return result

    async def script(lab: ScheduleLab) -> None:
        lab.submitter.makes = made
        await lab.add(compare_to="last")
        await lab.lead("a1", 1)
        await lab.until_due()
        await lab.wait(3 * MINUTE)
        first, invalid, slow, same = await lab.runs()
        assert first.comparison is None
        assert invalid.verdict == "INVALID" and invalid.reason == "the generator was slow"
        assert invalid.comparison is not None and not invalid.comparison.judged
        assert "INVALID" in invalid.comparison.text
        assert slow.comparison is not None and slow.comparison.to == "j-1"
        assert slow.comparison.worse > 0
        change = slow.comparison.changes[0]
        assert (change.step, change.column, change.judgement) == ("home", "p50", "worse")
        assert change.after > 2.5 * change.before
        assert same.comparison is not None and same.comparison.to == "j-3"
        assert (same.comparison.worse, same.comparison.changes) == (0, ())
        kept = await lab.book().result("shop", "j-3")
        assert kept == made("j-3")
        assert (await lab.book().result("shop")).job == "j-4"
        with pytest.raises(UsageError, match="no run j-9"):
            await lab.book().result("shop", "j-9")

    played(script)


def test_runs_are_not_compared_unless_it_was_wished() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        await lab.lead("a1", 1)
        await lab.until_due()
        await lab.wait(MINUTE)
        assert [run.comparison for run in await lab.runs()] == [None, None]

    played(script)


def test_results_are_kept_for_their_time_and_the_last_one_to_compare_with_beyond() -> None:
    hour = 60 * MINUTE

    async def blobs(lab: ScheduleLab) -> int:
        return len((await MemoryStore.list(lab.store, "blob", limit=1000)).entries)

    async def script(lab: ScheduleLab) -> None:
        await lab.add(every=hour / 2, keep_s=1.25 * hour, compare_to="last")
        await lab.lead("a1", 1)
        await lab.until_due(hour / 2)
        await lab.wait(2 * hour)
        runs = await lab.runs()
        assert len(runs) == 3 and runs[-1].comparison is not None
        assert len(lab.submitter.jobs) == 5
        assert await blobs(lab) == 2 + 5, "what nothing refers to stays for a while"
        lab.submitter.refuses = "enough"
        await lab.wait(4 * COLLECT_S)
        assert set(states(await lab.runs())) == {"refused"}
        assert await blobs(lab) == 2 + 1, "bundle, submission, and what the next is compared to"
        lab.submitter.refuses = ""
        await lab.wait(hour / 2)
        (*_, run) = await lab.runs()
        assert run.comparison is not None and run.comparison.to == "j-5"

    played(script)


def test_a_removed_schedule_leaves_nothing_and_its_name_can_be_used_again() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        await lab.lead("a1", 1)
        await lab.until_due()
        removed = await lab.book().remove("shop")
        assert states(list(removed.progress.runs)) == ["completed"]
        await lab.wait(5 * MINUTE)
        assert_one_job_each(lab.submitter, 1)
        await lab.wait(3 * COLLECT_S)
        assert not (await MemoryStore.list(lab.store, "blob", limit=10)).entries
        assert not (await MemoryStore.list(lab.store, "loadtest", limit=10)).entries
        await lab.add()
        await lab.until_due()
        runs = await lab.runs()
        assert states(runs) == ["completed"] and runs[0].job == "j-2"

    played(script)


def test_an_index_with_nothing_in_it_costs_one_read_a_look() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.lead("a1", 1)
        await lab.wait(1.0)
        lab.store.requests.clear()
        await lab.wait(100.0)
        assert set(lab.store.requests) == {f"get {INDEX}"}
        assert 90 <= len(lab.store.requests) <= 101

    played(script)


# People.


def test_a_name_is_given_once_and_unknown_ones_are_said() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add("shop")
        await lab.add("api")
        for call in (lab.add("shop"), lab.book().refuse_taken("shop")):
            with pytest.raises(UsageError, match="schedule shop already exists"):
                await call
        for call in (lab.book().remove("nightly"), lab.book().entry("nightly")):
            with pytest.raises(
                UsageError, match="there is no schedule nightly; schedules here: api, shop"
            ):
                await call
        assert [each.schedule.name for each in await lab.book().entries()] == ["api", "shop"]

    played(script)


@pytest.mark.parametrize(
    ("changes", "times", "said"),
    [
        ({}, {"cron": "61 * * * *"}, "as minute"),
        ({}, {"cron": "* * *"}, "five fields"),
        ({}, {"cron": "0 0 30 2 *"}, "no such day"),
        ({}, {"cron": "0 3 * * *", "zone": "Mars/Base"}, "no such time zone"),
        ({"name": "a b"}, {"every": 60.0}, "--name 'a b'"),
        ({"name": "x" * 65}, {"every": 60.0}, "at most 64"),
    ],
)
def test_what_cannot_be_a_schedule_is_said(
    changes: dict[str, Any], times: dict[str, Any], said: str
) -> None:
    request = replaced(ScheduleRequest(name="shop", times=JobRecord(**times)), **changes)
    with pytest.raises(UsageError, match=said):
        check_request(request)


def test_secrets_lie_in_the_store_only_sealed_and_what_was_changed_does_not_run() -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        for kind in ("blob", "loadtest", "loadtests"):
            for entry in (await MemoryStore.list(lab.store, kind, limit=100)).entries:
                (found,) = await lab.store.get(entry.key)
                assert found is not None and HUSH.encode() not in found.value
        (found,) = await lab.store.get(INDEX)
        assert found is not None
        await _changed(lab, found, bundle="0" * 64)
        await lab.lead("a1", 1)
        await lab.until_due()
        (run,) = await lab.runs()
        assert run.state == "refused" and "no longer accept" in run.reason
        assert not lab.submitter.asked

    played(script)


async def _changed(lab: ScheduleLab, found: Record, **changes: Any) -> None:
    """As an attacker would who can write to the store but has no secret."""
    (schedule,) = msgspec.msgpack.decode(found.value, type=ScheduleIndex).schedules
    other = ScheduleIndex(schedules=(msgspec.structs.replace(schedule, **changes),))
    value = msgspec.msgpack.encode(other)
    await lab.store.write(Put(INDEX, value, expect=ANY, ttl_s=None))


@pytest.mark.parametrize(("accepted", "state"), [((SECRET,), "completed"), ((), "refused")])
def test_a_schedule_survives_a_change_of_the_secret_while_the_old_one_is_accepted(
    accepted: tuple[str, ...], state: str
) -> None:
    async def script(lab: ScheduleLab) -> None:
        await lab.add()
        await lab.lead("a1", 1, secrets=Secrets.of_node("another secret of tests", accepted))
        await lab.until_due()
        assert states(await lab.runs()) == [state]

    played(script)
