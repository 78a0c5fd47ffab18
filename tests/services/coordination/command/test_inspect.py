"""`squall coord leader | epoch | signals | events | schedule | signal | wait | cost`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import uuid
from datetime import datetime
from pathlib import Path

import pytest

from squall.cli.main import main
from squall.coordination.records import keys
from squall.coordination.records.schemas import (
    HeartbeatRecord,
    MemberRecord,
    Signal,
    Tombstone,
    WaitState,
    WaitStates,
)
from squall.coordination.scheduler.plugin import Scheduler
from squall.coordination.scheduler.records import RunRecord
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ANY, Append, Put, Store
from tests.lab.machine import factor
from tests.services.coordination.lab.coord_command import (
    CODEC,
    FAST,
    beat,
    coord,
    play,
    populate,
    running,
    secret,
    shared,
    write,
)
from tests.services.coordination.lab.places import Place, forget_redis

__all__ = ["secret", "shared"]
PROBE = "probe"


def a_signal(number: int, now: float) -> Signal:
    return Signal(
        signal_id=f"s{number}",
        correlation_id="job-7",
        sender_id="one",
        sender_boot=2,
        receiver_id="two",
        type="wake",
        payload={"number": number},
        timestamp=now,
        expires_at=now + 60.0,
    )


async def correspond(store: Store) -> None:
    """Two unread signals and one that was refused, a wait, a death."""
    await populate(store)
    now = await store.now_ms() / 1000.0
    for name, status in (("one", "alive"), ("two", "alive"), ("three", "dead")):
        record = MemberRecord(member_id=name, boot=2, status=status, hostname="h", pid=1)
        put = Put(keys.member(name), CODEC.encode(record), expect=ANY, ttl_s=600.0)
        await store.write(put)
    for number in (1, 2):
        value = CODEC.encode(a_signal(number, now))
        await store.write(Append(keys.inbox("two"), f"s{number}", value, ttl_s=600.0))
    wait = WaitState(
        member_id="two",
        correlation_id="job-8",
        awaiting=("one",),
        started_at=now - 10.0,
        deadline=now + 100.0,
    )
    tomb = Tombstone(
        member_id="three",
        boot=2,
        death_id="three.2",
        epoch=5,
        died_at=now - 30.0,
        reason="no heartbeat for 120.0 s",
        consecutive_warnings=3,
    )
    await store.write(
        Put(keys.quarantine("two", "s0"), b"forged", expect=ANY, ttl_s=600.0),
        Put(keys.state("two"), CODEC.encode(WaitStates(waits={"x": wait})), expect=ANY, ttl_s=60.0),
        Put(keys.tombstone("three"), CODEC.encode(tomb), expect=ANY, ttl_s=600.0),
    )


def test_each_part_of_a_namespace_is_shown(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    write(shared, correspond)
    assert coord(shared, "signals", "two", "--json") == 0
    letters = json.loads(capsys.readouterr().out)
    assert [(each["signal_id"], each["state"]) for each in letters["letters"]] == [
        ("s1", "unread"),
        ("s2", "unread"),
        ("s0", "refused"),
    ]
    assert letters["letters"][1]["payload"] == {"number": 2}
    assert letters["waits"][0]["awaiting"] == ["one"]
    assert coord(shared, "events", "--json", "--last", "100") == 0
    past = json.loads(capsys.readouterr().out)
    told = {(each["event"], each["who"]) for each in past}
    assert {
        ("coord:coordinator-elected", "one"),
        ("member:joined", "two"),
        ("coordinator:dead", "three"),
    } <= told
    assert ("member:joined", "three") not in told
    ages = [each["ago_s"] for each in past]
    assert ages == sorted(ages, reverse=True)
    read_at = time.time()
    for each in past:
        at = datetime.fromisoformat(each["at"]).timestamp()
        assert abs(read_at - each["ago_s"] - at) < 5.0, each
    if shared.kind != "s3":
        check_the_rest(shared, capsys)


def check_the_rest(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The same code on every store; S3 is slow."""
    assert coord(place, "leader") == 0
    assert capsys.readouterr().out.startswith("one leads in epoch 5\n")
    assert coord(place, "leader", "--json") == 0
    assert json.loads(capsys.readouterr().out)["renewals"] == 3
    assert coord(place, "epoch") == 0
    assert capsys.readouterr().out == "epoch 5, held by one\n2 members saw 0\n"
    assert coord(place, "signals", "--json") == 0
    inboxes = {each["member_id"]: each for each in json.loads(capsys.readouterr().out)}
    # Of the dead only what is left would be shown.
    assert list(inboxes) == ["one", "two"]
    assert (inboxes["two"]["unread"], inboxes["two"]["refused"]) == (2, 1)
    assert (inboxes["two"]["waits"], inboxes["one"]["unread"]) == (1, 0)
    assert coord(place, "signals", "two") == 0
    text = capsys.readouterr().out
    assert "waits for job-8 from one" in text and "wake" in text
    assert coord(place, "signals") == 0
    assert "UNREAD" in capsys.readouterr().out
    assert coord(place, "events", "--last", "1") == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_without_a_leader_the_exit_code_is_1(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    async def touch(store: Store) -> None:
        ahead = HeartbeatRecord(member_id="ahead", boot=2, sequence=7, timestamp=0.0, epoch=9)
        name = keys.heartbeat("ahead")
        await store.write(Put(name, CODEC.encode(ahead), expect=ANY, ttl_s=600.0), beat("one"))

    if shared.kind == "s3":
        pytest.skip("the same code, and slower")
    write(shared, touch)
    assert coord(shared, "leader") == 1
    assert capsys.readouterr().out == "no member leads, and none ever did\n"
    assert coord(shared, "leader", "--json") == 1
    assert json.loads(capsys.readouterr().out) is None
    # A member that saw more than the store has: data was lost.
    assert coord(shared, "epoch") == 1
    assert "the store lost data" in capsys.readouterr().out
    assert coord(shared, "epoch", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["epoch"], found["lost"], found["held_by"]) == (0, True, None)
    assert coord(shared, "schedule", "list") == 0
    assert capsys.readouterr().out == "no jobs\n"
    assert coord(shared, "signals") == 0
    assert capsys.readouterr().out == "no members\n"


def test_a_signal_goes_from_a_shell_to_a_member_and_back(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script() -> None:
        got: list[object] = []
        async with running(shared) as member:

            async def answer(delivery: Delivery) -> None:
                got.append(delivery.signal.payload)
                said = {"correlation_id": delivery.signal.correlation_id, "payload": "done"}
                await member.send_signal("shell", "completion", allow_unknown=True, **said)

            member.on_signal("job", answer)
            send = ("signal", "send", "worker", "job", *FAST, "--correlation", "job-7")
            code = await asyncio.to_thread(coord, shared, *send, "--payload", '{"a": 1}', "--json")
            assert code == 0
            sent = json.loads(capsys.readouterr().out)
            assert sent["acknowledged"] is True and got == [{"a": 1}]
            wait = ("wait", "--as", "shell", "--correlation", "job-7", "--type", "completion")
            code = await asyncio.to_thread(
                coord, shared, *wait, "--from", "worker", *FAST, "--within", "30"
            )
            assert code == 0
            assert capsys.readouterr().out == 'completion from worker about job-7\n"done"\n'
            # No consumer takes it: it stays in the inbox, as requested.
            code = await asyncio.to_thread(
                coord, shared, "signal", "send", "worker", "other", "--no-ack", *FAST
            )
            assert code == 0 and "in the inbox of worker" in capsys.readouterr().out
            code = await asyncio.to_thread(coord, shared, "wait", *FAST, "--within", "0.3")
            assert code == 1
            shown = capsys.readouterr().err.splitlines()
            assert shown[0].startswith("waiting as shell-") and "in vain" in shown[1]
            code = await asyncio.to_thread(coord, shared, "wait", "--as", "worker", *FAST)
            assert code == 104 and "is already alive" in capsys.readouterr().err

    play(shared, script)


def test_jobs_are_shown_paused_ordered_and_removed(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script() -> None:
        scheduler = Scheduler()
        ran: list[str] = []

        @scheduler.every(0.5, name="tick")
        async def tick(run: RunRecord) -> None:
            ran.append(run.slot)

        @scheduler.cron("30 2 * * *", zone="Europe/Berlin", name="report")
        async def report(run: RunRecord) -> None:
            raise ValueError("no paper")

        async with running(shared, scheduler):

            async def asked(*words: str) -> str:
                assert await asyncio.to_thread(coord, shared, "schedule", *words) == 0
                return capsys.readouterr().out

            async with asyncio.timeout(30.0):
                while not ran:
                    await asyncio.sleep(0.05)
            text = await asked("list")
            assert "every 500ms" in text and "30 2 * * * Europe/Berlin" in text
            assert await asked("pause", "tick", *FAST) == "tick is paused\n"
            jobs = {each["job"]: each for each in json.loads(await asked("list", "--json"))}
            assert jobs["tick"]["enabled"] is False and jobs["tick"]["next_due"] is None
            assert jobs["report"]["next_due"] > 0.0
            paused = len(ran)
            ordered = json.loads(await asked("run", "report", *FAST, "--json"))
            async with asyncio.timeout(30.0):
                while "failed" not in (history := await asked("history", "report")):
                    await asyncio.sleep(0.1)
            assert "ValueError: no paper" in history and ordered["slot"].startswith("now-")
            assert len(ran) <= paused + 1
            assert await asked("resume", "tick", *FAST) == "tick is resumed\n"
            async with asyncio.timeout(30.0):
                while len(ran) <= paused + 1:
                    await asyncio.sleep(0.05)
            assert await asked("remove", "tick", *FAST) == "tick is removed\n"
            assert [each["job"] for each in json.loads(await asked("list", "--json"))] == ["report"]

    play(shared, script)


def test_what_happens_is_followed(shared: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def script() -> None:
        lasts = ("--for", f"{8.0 * factor():g}")
        words = ("events", "--follow", *lasts, "--every", "0.1", "--last", "0", "--json")
        following = asyncio.ensure_future(asyncio.to_thread(coord, shared, *words))
        shown = await until_it_follows(shared, following, capsys)
        async with running(shared):
            # It must be seen to lead before it leaves.
            while "leader:changed" not in shown:
                assert not following.done(), shown
                await asyncio.sleep(0.05)
                shown += capsys.readouterr().out
        assert await following == 0
        shown += capsys.readouterr().out
        told = [json.loads(line) for line in shown.splitlines()]
        told = [each for each in told if not each.get("coordinator_id", "").startswith(PROBE)]
        joined = [each for each in told if each["event"] == "member:joined"]
        changes = [each for each in told if each["event"] == "leader:changed"]
        assert [each["coordinator_id"] for each in joined] == ["worker"]
        assert [(each["old"], each["new"]) for each in changes] == [("", "worker"), ("worker", "")]
        assert [each["event"] for each in told][-1] in ("member:left", "leader:changed")

    write(shared, _nothing)
    play(shared, script)


async def until_it_follows(
    place: Place, following: asyncio.Future[int], capsys: pytest.CaptureFixture[str]
) -> str:
    """Its first look shows nothing. So members join until it shows one; returns what it showed."""
    other = Place(place.kind, place.url, place.prefix)
    store = await other.open()
    shown, number = "", 0
    while PROBE not in shown:
        assert not following.done(), shown
        number += 1
        await store.write(beat(f"{PROBE}{number}"))
        await asyncio.sleep(0.05)
        shown += capsys.readouterr().out
    await other.close()
    return shown


async def _nothing(store: Store) -> None:
    """Members create the file of a store; a command that only reads does not."""
    await store.write(Put("made/here", b"", expect=ANY, ttl_s=60.0))


def test_ctrl_c_is_how_following_ends(redis_url: str) -> None:
    place = Place("redis", redis_url, f"test.{uuid.uuid4().hex[:12]}")
    write(place, populate)
    program = Path(sys.executable).with_name("squall")
    words = ("coord", "events", "--follow", "--store", place.url, "--prefix", place.prefix)
    try:
        with subprocess.Popen(
            [program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            try:
                assert b"coord:coordinator-elected" in process.stdout.readline()
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60.0)
            finally:
                process.kill()
        assert (process.returncode, errors) == (0, b"")
    finally:
        forget_redis(place.url, place.prefix)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("signal", "send", "w", "wake", "--payload", "{a"), 2, "write JSON"),
        (("signal", "send", "w", "wake", "--iteration", "x"), 2, "--iteration x"),
        (("signal", "send", "nobody", "wake"), 1, "--allow-unknown"),
        (("signal", "send", "a:b", "wake"), 104, "a:b"),
        (("wait", "--within", "0"), 2, "--within 0"),
        (("wait", "--as", "a/b"), 104, "a/b"),
        (("schedule", "pause", "nope"), 104, "no job 'nope'"),
        (("schedule", "history", "nope"), 104, "no job 'nope'"),
        (("events", "--last", "-1"), 2, "--last"),
        (("events", "--every", "1"), 2, "--follow"),
        (("events", "--follow", "--for", "soon"), 2, "--for soon"),
        (("signals", "a:b"), 104, "a:b"),
        (("signals", "nobody"), 1, "no member nobody ever registered"),
    ],
)
def test_a_mistake_in_a_look_is_one_line(
    redis_url: str, words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = f"test.{uuid.uuid4().hex[:12]}"
    try:
        assert main(["coord", *words, "--store", redis_url, "--prefix", prefix]) == code
    finally:
        forget_redis(redis_url, prefix)
    shown = capsys.readouterr().err
    assert text in shown and shown.count("\n") == 1
