"""A command with another secret than the members' reports this instead of waiting for answers
that cannot come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from squall.cli.main import main
from squall.coordination.members.housekeeping import NamespaceMeta
from squall.coordination.options import Options
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, LeaseRecord, MemberRecord
from squall.coordination.secrets.signing import Keyring
from squall.coordination.stores.interface import ANY, Fence, Put, Store
from tests.services.coordination.lab.places import Place

OURS = "9f3c2a71b5d84e06a1c7f29e5b380d64e7a1905cf2836bd41097aef5c3d2b816"
THEIRS = "d02746e8fe001fc518d7ee0ec726c0a4fc469d42ee7aa55dddb1676f7baedc1f"
COMMANDS = (
    ("elect", "--within", "3"),
    ("elect", "--force", "--within", "3"),
    ("signal", "send", "one", "wake"),
    ("wait", "--within", "3"),
    ("wait", "--as", "shell", "--within", "3"),
    ("queue", "requeue", "mail", "--all"),
)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKING_COORDINATION_SECRET", OURS)
    monkeypatch.delenv("COORD_ENVIRONMENT", raising=False)


def coord(place: Place, *words: str) -> int:
    return main(["coord", *words, "--store", place.url, "--prefix", place.prefix])


def put(place: Place, work: Callable[[Store], Awaitable[object]]) -> None:
    async def run() -> None:
        other = Place(place.kind, place.url, place.prefix)
        await work(await other.open())
        await other.close()

    asyncio.run(run())


def a_coordinator(secret: str, *, released: bool = False) -> Callable[[Store], Awaitable[object]]:
    codec = Codec(Keyring.of([secret], "staging", "default"))
    lease = LeaseRecord(
        epoch=3,
        member_id="one",
        boot=1,
        token="one.1.1",
        elected_at=0.0,
        renewals=0,
        lease_ttl=600.0,
        term_ends_at=0.0,
        released=released,
    )
    member = MemberRecord(member_id="one", boot=1)

    async def work(store: Store) -> None:
        held = Put(keys.LEADER, codec.encode(lease), expect=ANY, ttl_s=None)
        await store.write(held, fence=Fence(keys.LEADER, lease.epoch))
        await store.write(Put(keys.member("one"), codec.encode(member), expect=ANY, ttl_s=600.0))

    return work


@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_another_secret_is_reported_at_once(
    place: Place, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    put(place, a_coordinator(THEIRS))
    assert coord(place, *words, "--profile", "fast") == 104
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("secret is not the one of this namespace: its leader one signs")
    assert OURS not in told and THEIRS not in told


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_right_secret_and_a_group_without_a_coordinator_are_let_in(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    put(place, a_coordinator(OURS))
    assert coord(place, "wait", "--within", "0.1", "--profile", "fast") == 1
    put(place, a_coordinator(THEIRS, released=True))
    assert coord(place, "wait", "--within", "0.1", "--profile", "fast") == 1
    assert "in vain" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_receiver_whose_registration_cannot_be_verified_is_not_called_unknown(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(place, a_coordinator(THEIRS, released=True))
    for name, value in (("ack_timeout", 0.1), ("retry_base", 0.01)):
        monkeypatch.setitem(Options.__init__.__kwdefaults__, name, value)
    assert coord(place, "signal", "send", "one", "wake", "--profile", "fast") == 1
    assert "signed with another secret" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_another_environment_is_not_called_another_secret(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    put(place, a_coordinator(THEIRS))
    meta = msgspec.json.encode(NamespaceMeta(environment="staging"))
    put(place, lambda store: store.write(Put(keys.META, meta, expect=ANY, ttl_s=None)))
    words = ("elect", "--within", "3", "--environment", "development", "--profile", "fast")
    assert coord(place, *words) == 104
    assert capsys.readouterr().err.startswith("environment is 'development': this store belongs")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_wrong_secret_leaves_no_trace(place: Place) -> None:
    put(place, a_coordinator(THEIRS))
    assert coord(place, "elect", "--within", "3", "--profile", "fast") == 104
    found: list[NamespaceMeta] = []

    async def look(store: Store) -> None:
        (record,) = await store.get(keys.META)
        assert record is not None
        found.append(msgspec.json.decode(record.value, type=NamespaceMeta))
        assert (await store.list(keys.HEARTBEAT)).entries == ()

    put(place, look)
    assert [dict(each.keys_seen_ms) for each in found] == [{}]
