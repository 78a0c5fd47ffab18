"""`squall coord doctor` names causes, `--production` goes through the list, and commands leave
no trace, on the stores that another process can open."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from squall.coordination import Coordinator, Term
from squall.coordination.operations.doctor import examine
from squall.coordination.operations.findings import Finding
from squall.coordination.operations.production_checklist import ALERTS
from squall.coordination.records import keys
from squall.coordination.records.schemas import LeaseRecord, MemberRecord, Tombstone
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import ANY, Fence, Put, Store
from tests.lab.programs import ROOT
from tests.services.coordination.lab.coord_command import (
    CODEC,
    FAST,
    coord,
    play,
    populate,
    running,
    secret,
    shared,
    verdicts,
    write,
)
from tests.services.coordination.lab.places import Place
from tests.services.coordination.programs.member import scaled

__all__ = ["secret", "shared"]
DEPLOYED = ROOT / "deploy" / "coordination"


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_causes_are_named(shared: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def spoil(store: Store) -> None:
        await populate(store)
        now = await store.now_ms() / 1000.0
        (held,) = await store.get(keys.LEADER)
        assert held is not None
        lease = LeaseRecord(
            epoch=held.epoch,
            member_id="one",
            boot=2,
            token="one.2.1",
            elected_at=now,
            renewals=0,
            lease_ttl=15.0,
            term_ends_at=now + 300.0,
            recent=tuple(now - 50.0 * each for each in range(5, -1, -1)),
        )
        put = Put(keys.LEADER, CODEC.encode(lease), expect=held.version, ttl_s=None)
        await store.write(put, fence=Fence(keys.LEADER, held.epoch))
        for name, status, died_s in (("paused", "alive", 30.0), ("left-over", "dead", 3000.0)):
            tomb = Tombstone(
                member_id=name,
                boot=2,
                death_id=f"{name}.2",
                epoch=5,
                died_at=now - died_s,
                reason="silence",
                consecutive_warnings=3,
                announced=True,
            )
            back_ms = round((now - died_s + 2.0) * 1000.0) if status == "alive" else 2
            record = MemberRecord(member_id=name, boot=back_ms, status=status)
            await store.write(
                Put(keys.tombstone(name), CODEC.encode(tomb), expect=ANY, ttl_s=600.0),
                Put(keys.member(name), CODEC.encode(record), expect=ANY, ttl_s=600.0),
            )

    write(shared, spoil)
    coord(shared, "doctor", "--json")
    found = json.loads(capsys.readouterr().out)["findings"]
    texts = {each["about"]: each["text"] + each["advice"] for each in found}
    assert "6 elections in 250 s" in texts["changes"] and "lease_ttl" in texts["changes"]
    assert "paused" in texts["false deaths"] and "heartbeat_ttl" in texts["false deaths"]
    assert "left-over" in texts["leftovers"] and "auto_cleanup" in texts["leftovers"]


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_a_coordinator_that_does_no_work_is_named(shared: Place) -> None:
    broken = asyncio.Event()

    async def fail(term: Term) -> None:
        if broken.is_set():
            raise KeyError("no such table")

    async def work_of(member: Coordinator) -> Finding | None:
        guarded = member.parts.patient
        found = await examine(guarded, await guarded.now_ms() / 1000.0)
        return next((each for each in found if each.about == "work"), None)

    async def script() -> None:
        store = await Place(shared.kind, shared.url, shared.prefix).open()
        options = {"profile": scaled(1.0), "unsafe_timings": True, "secret": generate_secret()}
        async with Coordinator(store, member_id="one", work=fail, **options) as member:
            await member.ensure_coordinator(timeout_s=60.0)
            assert await work_of(member) is None, "nothing has failed"
            broken.set()
            async with asyncio.timeout(30.0):
                while (found := await work_of(member)) is None:
                    await asyncio.sleep(0.1)
            assert (
                found.verdict == "bad" and "one leads, but application keeps failing" in found.text
            )
            assert "coordinator_work" in found.advice
        await store.close()

    play(shared, script)


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_one_that_has_the_lease_and_does_not_lead_is_named(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    write(shared, populate)
    coord(shared, "doctor", "--json")
    found = json.loads(capsys.readouterr().out)["findings"]
    (text,) = (each["text"] + each["advice"] for each in found if each["about"] == "work")
    assert "one has the lease, but its heartbeat says that it does not lead" in text


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_production_goes_through_the_list(
    shared: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(shared, populate)
    files = ("--rules", str(DEPLOYED / "rules.yml"), "--dashboard", DEPLOYED / "dashboard.json")
    coord(shared, "doctor", "--json", "--production", *map(str, files))
    found = verdicts(capsys.readouterr().out)
    listed = ("waits", "signals", "store calls", "alerts", "dashboard")
    assert {found[about] for about in listed} == {"good"}
    assert "timing" in found and ("scans" in found) == (shared.kind == "redis")
    (tmp_path / "rules.yml").write_text("groups: []\n")
    (tmp_path / "other.json").write_text('{"expr": "coordination_made_up_total"}')
    files = ("--rules", tmp_path / "rules.yml", "--dashboard", tmp_path / "other.json")
    assert coord(shared, "doctor", "--json", "--production", *map(str, files)) == 1
    found = verdicts(capsys.readouterr().out)
    assert found["alerts"] == found["dashboard"] == "bad"
    coord(shared, "doctor", "--production")
    shown = capsys.readouterr().out
    assert "a beat every" in shown and "10 failures open the circuit for 60 s" in shown
    assert coord(shared, "doctor", "--production", "--rules", "/nowhere/rules.yml") == 104


def test_the_list_has_every_alert_of_the_rules() -> None:
    text = (DEPLOYED / "rules.yml").read_text()
    named = [line.split()[-1] for line in text.splitlines() if "alert:" in line]
    assert sorted(named) == sorted(ALERTS)


def test_commands_leave_no_trace(shared: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def keys_of_shells(store: Store) -> list[str]:
        found: list[str] = []
        for kind in await store.count():
            after = ""
            while True:
                page = await store.list(kind, after=after, limit=1000)
                found += [entry.key for entry in page.entries if "/shell-" in entry.key]
                after = page.after
                if not after:
                    break
        return found

    async def script() -> None:
        async with running(shared) as member:

            async def take(delivery: Delivery) -> None:
                assert delivery.signal.sender_id.startswith("shell-")

            member.on_signal("job", take)
            commands = (
                ("signal", "send", "worker", "job", *FAST),
                ("elect", *FAST),
                ("wait", *FAST, "--within", "0.3"),
            )
            codes = [await asyncio.to_thread(coord, shared, *words) for words in commands]
            assert codes == [0, 0, 1], capsys.readouterr().err
            assert await keys_of_shells(member.store) == []
            assert await member.active_workers() == ("worker",)

    play(shared, script)
