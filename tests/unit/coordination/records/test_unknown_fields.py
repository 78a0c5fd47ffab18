"""Fields of a newer version survive when this version changes a record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from squall.coordination.members.housekeeping import read_meta, write_meta
from squall.coordination.records.schemas import (
    Codec,
    HeartbeatPace,
    LeaseRecord,
    Tombstone,
    WaitStates,
)
from squall.coordination.records.unknown_fields import has_unknown, keep_unknown
from squall.coordination.scheduler.records import JobRecord, RunHistory, RunRecord, Schedules
from squall.coordination.secrets.signing import Keyring
from tests.fakes.coordination_records import newer, tombstone

CODEC = Codec(Keyring.of(["5ec2e7" * 12], "staging", "default"))
TOMB = tombstone("a", 1)


def changed(record: Any, over: bytes) -> dict[str, Any]:
    """Written back, verified, and as it stands there."""
    value = CODEC.encode(record, over=over)
    assert not isinstance(CODEC.decode(type(record), value), str)
    return msgspec.json.decode(value)


def test_a_change_keeps_what_it_does_not_know_and_wins_in_what_it_does() -> None:
    over = newer(CODEC, TOMB, grave="north", flowers=["rose"], announced=False)
    fields = changed(msgspec.structs.replace(TOMB, announced=True), over)
    assert (fields["grave"], fields["flowers"], fields["announced"]) == ("north", ["rose"], True)
    assert "grave" not in msgspec.json.decode(CODEC.encode(TOMB))


def test_nested_records_keep_theirs_and_removed_ones_stay_away() -> None:
    jobs = {"one": {"every": 5.0, "colour": "blue"}, "two": {"every": 7.0, "colour": "red"}}
    over = newer(CODEC, Schedules(), jobs=jobs, owner="x")
    kept = {"one": JobRecord(every=5.0, decided=9.0), "new": JobRecord(every=1.0)}
    fields = changed(Schedules(jobs=kept), over)
    assert fields["owner"] == "x"
    assert fields["jobs"] == {
        "one": {"every": 5.0, "decided": 9.0, "colour": "blue"},
        "new": {"every": 1.0},
    }


def test_records_in_an_order_are_found_again_when_others_come_and_go() -> None:
    runs = [{"job": "j", "slot": f"{each}", "due": 1.0, "host": f"h{each}"} for each in range(3)]
    over = newer(CODEC, RunHistory(), runs=runs)
    kept = [RunRecord(job="j", slot=each, due=1.0) for each in ("1", "2", "3")]
    fields = changed(RunHistory(runs=tuple(kept)), over)
    assert [each.get("host") for each in fields["runs"]] == ["h1", "h2", None]


def test_a_record_within_another_keeps_its_own() -> None:
    pace = {"profile": "normal", "beats": "normal", "target": "normal", "since": 1.0, "why": "?"}
    lease = LeaseRecord(
        epoch=1,
        member_id="a",
        boot=1,
        token="t",
        elected_at=0.0,
        renewals=0,
        lease_ttl=15.0,
        term_ends_at=60.0,
        pace=HeartbeatPace(profile="large", beats="normal", target="large", since=2.0),
    )
    fields = changed(lease, newer(CODEC, lease, pace=pace))
    assert fields["pace"] | {"profile": "large", "why": "?"} == fields["pace"]


@pytest.mark.parametrize("before", [None, [], "text", 7])
def test_what_is_no_record_has_nothing_to_keep(before: Any) -> None:
    fields = {"waits": {}}
    keep_unknown(WaitStates, fields, before)
    assert fields == {"waits": {}}
    assert has_unknown(Tombstone, newer(CODEC, TOMB, grave="north"))
    assert not has_unknown(Tombstone, newer(CODEC, TOMB))


def test_the_meta_record_keeps_its_own() -> None:
    over = msgspec.json.encode({"environment": "staging", "v": 1, "region": "eu"})
    meta = read_meta(over)
    assert meta is not None
    again = msgspec.structs.replace(meta, keys_seen_ms={"k": 1})
    found = msgspec.json.decode(write_meta(again, over))
    assert found["region"] == "eu" and found["keys_seen_ms"] == {"k": 1}
    assert "region" not in msgspec.json.decode(write_meta(again, None))
