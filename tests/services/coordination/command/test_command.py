"""`squall coord` against the stores that another process can open."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from squall.cli.main import main
from squall.coordination.coordinator import Coordinator
from squall.coordination.members.cleanup import GUARD
from squall.coordination.queue.plugin import Queue
from squall.coordination.stores.interface import ABSENT, Put, Store
from tests.lab.programs import ROOT
from tests.services.coordination.lab.coord_command import (
    SECRET,
    beat,
    coord,
    populate,
    secret,
    shared,
    write,
)
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET, Place, forget_redis
from tests.services.coordination.lab.processes import Lab

__all__ = ["secret", "shared"]


def test_status_and_members_show_what_is_there(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    write(shared, populate)
    assert coord(shared, "status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["leader"]["worker_id"] == "one" and status["leader"]["epoch"] == 5
    assert status["leader"]["holds"] is True
    assert status["members"] == {"healthy": 2, "unreadable": 1}
    assert status["keys"]["heartbeat"] == 3
    assert coord(shared, "members", "--json") == 0
    members = json.loads(capsys.readouterr().out)
    assert [(each["member_id"], each["pid"]) for each in members] == [
        ("odd", 0),
        ("one", 4711),
        ("two", 4711),
    ]
    assert coord(shared, "status") == 0 and coord(shared, "members") == 0
    text = capsys.readouterr().out
    assert "one in epoch 5" in text and "unreadable" in text


def test_cleanup_says_what_it_would_do_does_it_and_never_twice_at_once(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    async def age(store: Store) -> None:
        await store.write(beat("gone"))
        await asyncio.sleep(2.2)

    write(shared, age)
    stale = ("--stale", "1")
    assert coord(shared, "cleanup", "--once", "--dry-run", *stale) == 0
    assert "would remove gone" in capsys.readouterr().out
    assert coord(shared, "cleanup", "--once", "--json", *stale) == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["member_id"] for each in report["members"]] == ["gone"]
    assert coord(shared, "members") == 0 and "no members" in capsys.readouterr().out

    async def guard(store: Store) -> None:
        await store.write(Put(GUARD, b"{}", expect=ABSENT, ttl_s=60.0))

    write(shared, guard)
    assert coord(shared, "cleanup", "--once") == 0
    assert capsys.readouterr().out == "already running\n"


def test_elect_moves_the_lead_of_running_members(
    shared: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Which members `elect` counts as live depends on its own profile: with `fast` a member on S3
    # is not live once one of its beats takes two seconds.
    is_slow = shared.kind == "s3"
    profile = "small" if is_slow else "fast"
    folder = tmp_path / "journals"
    folder.mkdir()
    lab = Lab(shared.url, shared.prefix, folder, ["a", "b"], 3.0 if is_slow else 1.0)
    try:
        lab.start("a")
        lab.start("b")
        lab.until(lambda: len(lab.lines("started")) == 2, 60.0, "both have started")
        lab.until_acts(0.0, within_s=60.0)
        leader = lab.leader()
        other = "b" if leader == "a" else "a"
        assert coord(shared, "elect", "--json", "--profile", profile) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["coordinator"] == leader
        assert coord(shared, "elect", "--force", "--to", "nobody", "--profile", profile) == 104
        assert "'nobody'" in capsys.readouterr().err
        words = ("elect", "--force", "--to", other, "--json", "--profile", profile)
        assert coord(shared, *words, "--within", "200") == 0
        moved = json.loads(capsys.readouterr().out)
        assert moved["coordinator"] == other and moved["epoch"] > found["epoch"]
    finally:
        lab.close()
    lab.check()


def test_dead_letters_are_shown_and_get_new_tries(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(store: Store) -> None:
        queue = Queue("mail", max_attempts=1)
        async with Coordinator(store, queue, profile="fast", unsafe_timings=True, secret=SECRET):
            await queue.enqueue({"to": "ada"})
            async for ticket in queue.claim():
                await ticket.fail("no such address")
                return

    write(shared, fail)
    assert coord(shared, "queue", "list", "mail", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["dead_letters"] == 1 and listed["pending"] == 0
    assert coord(shared, "queue", "dead", "mail", "--json") == 0
    (letter,) = json.loads(capsys.readouterr().out)
    assert letter["payload"] == {"to": "ada"} and letter["error"] == "no such address"
    requeue = ("queue", "requeue", "mail", "--profile", "fast")
    assert coord(shared, *requeue, "--ticket", "no-such-ticket") == 1
    assert "has no dead letter" in capsys.readouterr().err
    assert coord(shared, *requeue, "--all") == 0
    assert "1 ticket enqueued again" in capsys.readouterr().out
    assert coord(shared, "queue", "list", "mail", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["dead_letters"] == 0 and listed["pending"] == 1


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("status",), 2, "no store named"),
        (("status", "--store", "redis://127.0.0.1:1/0"), 3, "redis://127.0.0.1:1/0"),
        (("status", "--store", "ftp://x"), 104, "ftp: is not a store"),
        (("status", "--store", "memory:"), 104, "one process"),
        (("status", "--store", "sqlite:///no-such-folder/x.db"), 104, "there is no file"),
        (("cleanup", "--store", "redis://127.0.0.1:1/0", "--stale", "-1"), 2, "--stale -1"),
        (("members", "--store", "redis://127.0.0.1:1/0", "--namespace", "a:b"), 104, "a:b"),
        (("elect", "--store", "redis://127.0.0.1:1/0", "--to", "x"), 2, "--force"),
        (("queue", "requeue", "q", "--store", "redis://127.0.0.1:1/0"), 2, "--all"),
    ],
)
def test_a_mistake_is_one_line(
    redis_url: str, words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [redis_url if word.endswith(":1/0") and code != 3 else word for word in words]
    assert main(["coord", *named]) == code
    shown = capsys.readouterr().err
    assert text in shown and shown.count("\n") == 1


def test_a_reading_command_creates_no_tables_in_a_foreign_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE users (name TEXT)")
    before = path.read_bytes()
    assert main(["coord", "status", "--store", f"sqlite:///{path}"]) == 104
    assert "no member ever used this store" in capsys.readouterr().err
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_orders_need_a_secret(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BLOCKING_COORDINATION_SECRET")
    assert main(["coord", "elect", "--store", redis_url]) == 104
    assert "--secret-source" in capsys.readouterr().err


def test_a_store_without_conditions_is_refused_with_the_reason(
    s3_endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy = FaultyS3(s3_endpoint)
    proxy.ignored_header = "if-none-match"
    try:
        url = f"s3://{BUCKET}/refused?endpoint={proxy.endpoint}&region=us-east-1"
        assert main(["coord", "status", "--store", url]) == 104
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1 and "create" in shown
    finally:
        proxy.close()


def test_the_files_for_systemd_and_cron_call_what_exists(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUALL_COORD_STORE", redis_url)
    deploy = ROOT / "deploy" / "coordination"
    unit = (deploy / "systemd" / "squall-coord-cleanup.service").read_text()
    cron = (deploy / "cleanup.cron").read_text()
    commands = re.findall(r"squall (coord .+)", unit) + re.findall(
        r"squall squall (coord .+) 2>&1", cron
    )
    assert len(commands) == 2
    prefix = f"test.{uuid.uuid4().hex[:12]}"
    for command in commands:
        assert main([*shlex.split(command), "--prefix", prefix]) == 0
        assert "0 members removed" in capsys.readouterr().out
    forget_redis(redis_url, prefix)


def test_a_secret_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coord", "secret", "generate"]) == 0
    made = capsys.readouterr().out.strip()
    assert len(bytes.fromhex(made)) == 32
