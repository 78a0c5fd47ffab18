"""`squall group`, `recover`, `backup`, `restore`: arguments, output, and what is refused."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import cast

import pytest

from squall.api.errors import ConfigError, UsageError
from squall.cli.cluster.group import (
    NEEDS_SECRET,
    best_view,
    change_of,
    clock_lines,
    operator_access,
    status_lines,
    unheard_lines,
)
from squall.cli.cluster.members import members_of
from squall.cli.cluster.recover import RecoveredGroup, lines_of
from squall.cli.main import build_parser, main
from squall.cluster.client.access import ClusterAccess
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.ledger.recover import Recovery
from squall.cluster.protocol.group_messages import (
    AskGroup,
    ChangeMembers,
    GroupView,
    HandOver,
    MemberNote,
    MemberView,
)
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from tests.unit.cluster.ledger.lab.ledgers import open_alone

SECRET = "a secret of the group tests"


def parsed(*words: str) -> Namespace:
    return build_parser().parse_args(words)


def test_the_words_say_which_members_shall_be() -> None:
    assert change_of(parsed("group", "replace", "m3", "m4=10.0.0.4:7400")) == ChangeMembers(
        gone=["m3"], added={"m4": "10.0.0.4:7400"}
    )
    assert change_of(parsed("group", "add", "m4=a:1", "m5=b:2")) == ChangeMembers(
        added={"m4": "a:1", "m5": "b:2"}
    )
    assert change_of(parsed("group", "remove", "m4", "m5")) == ChangeMembers(gone=["m4", "m5"])
    assert change_of(parsed("group", "status")) is None


@pytest.mark.parametrize(
    "words",
    [
        ("group", "replace", "m3", "m4"),
        ("group", "replace", "m3", "m4=10.0.0.4"),
        ("group", "replace", "m3", "=10.0.0.4:7400"),
        ("group", "add", "m4=a:1", "m4=b:2"),
        ("group", "remove", "m4", "m4"),
    ],
)
def test_wrong_words_are_one_line_before_anything_is_sent(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError):
        change_of(parsed(*words))
    assert main(list(words)) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_to_change_the_group_takes_the_clusters_own_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    arguments = parsed("group", "handover", "--to", "127.0.0.1:1", "--secret-file", str(file))
    client = Secrets.of_credential(client_credential(SECRET, "ann"), [])
    access = ClusterAccess((("127.0.0.1", 1),), client, "lab")
    file.write_text(client_credential(SECRET, "ann"))
    with pytest.raises(ConfigError, match="own secret") as refused:
        operator_access(arguments, access)
    assert str(refused.value) == NEEDS_SECRET
    file.write_text(SECRET)
    assert operator_access(arguments, access).secrets.role is Role.NODE


def member(name: str, state: str, **more: object) -> MemberView:
    facts: dict[str, object] = {"storage": f"{name}-disk-id", "heard_s": 0.1}
    return MemberView(name=name, address=f"{name}:7400", state=state, **(facts | more))  # pyright: ignore[reportArgumentType]


def shown(
    *members: MemberView, leader: str = "m1", alarms: tuple[str, ...] = (), region: str = ""
) -> str:
    stored = [each for each in members if each.is_member]
    view = GroupView(
        group="lab/eu", reported_by="m1", leader=leader, epoch=2, view=7,
        quorum=len(stored) // 2 + 1, members=list(members), alarms=list(alarms),
        degraded_durability=region,
    )  # fmt: skip
    return "\n".join(status_lines(view))


def test_a_sound_group_has_no_warning() -> None:
    text = shown(member("m1", "leads"), member("m2", "follows"), member("m3", "follows"))
    assert "3 managers, led by m1, epoch 2, view 7" in text
    assert not any(word in text for word in ("QUORUM", "DEGRADED", "ALARM", "waits"))


def test_what_is_missing_is_said_with_what_may_still_fail() -> None:
    three = [member("m1", "leads"), member("m2", "follows"), member("m3", "silent")]
    assert "DEGRADED: 1 of 3 are missing; no other may fail" in shown(*three)
    five = [*three, member("m4", "follows"), member("m5", "follows")]
    assert "DEGRADED: 1 of 5 are missing; 1 more may fail" in shown(*five)
    lost = [member("m1", "electing"), member("m2", "silent"), member("m3", "failed")]
    text = shown(*lost, leader="")
    assert "no leader" in text
    assert "NO QUORUM: 1 of 3 answer, 2 are needed" in text and "squall recover" in text


def test_a_region_that_holds_a_quorum_is_named() -> None:
    follows = (member("g2", "follows", region="eu"), member("g3", "follows", region="us"))
    text = shown(member("g1", "leads", region="eu"), *follows, region="eu")
    assert (
        "DEGRADED DURABILITY: region eu holds 2 of 3, a quorum: without it the group stops, and "
        "may lose its last jobs"
    ) in text


def test_a_waiting_manager_gets_advice_how_to_be_admitted_and_does_not_count() -> None:
    wiped = [member("m1", "leads"), member("m2", "waits"), member("m3", "silent")]
    text = shown(*wiped)
    assert "squall group replace m2 m2=m2:7400" in text and "NO QUORUM" in text
    stranger = member("m4", "waits", is_member=False)
    text = shown(member("m1", "leads"), member("m2", "follows"), member("m3", "silent"), stranger)
    assert "squall group replace OLD m4=m4:7400" in text
    assert "3 managers" in text and "DEGRADED: 1 of 3" in text


def test_alarms_are_shown_of_the_teller_by_text_and_of_others_by_number() -> None:
    text = shown(
        member("m1", "leads", alarms=1), member("m2", "follows", alarms=2), alarms=("it differs",)
    )
    assert "ALARM it differs" in text
    assert "m2 raised 2 alarms: see its log" in text and "m1 raised" not in text


def test_a_wrong_wall_clock_is_named_with_its_distance() -> None:
    off, on_time = {"clock_s": 3600.04}, {"clock_s": -0.4}
    text = shown(
        member("m1", "leads"), member("m2", "follows", **off), member("m3", "follows", **on_time)
    )
    lines = [line for line in text.splitlines() if line.startswith("CLOCK")]
    assert len(lines) == 1
    assert "m2 is 3,600.0 s ahead of the other managers'" in lines[0]
    behind = clock_lines({"m1": -2.0})
    assert len(behind) == 1 and "m1 is 2.0 s behind the other managers'" in behind[0]


def test_a_member_that_was_never_heard_shows_no_numbers() -> None:
    row = shown(member("m1", "leads"), member("m2", "silent", heard_s=-1.0)).splitlines()[3]
    assert row.split() == ["m2", "m2:7400", "silent", "m2-disk-", "-", "-", "-", "never", "-"]


def test_before_there_is_a_group_the_advice_is_not_to_recover() -> None:
    members = [member("m1", "forming"), member("m2", "silent"), member("m3", "silent")]
    view = GroupView(group="", reported_by="m1", quorum=2, members=members)
    text = "\n".join(status_lines(view))
    assert "(not formed yet)" in text and "the group forms once all" in text
    assert "QUORUM" not in text and "recover" not in text


def view_of(reported_by: str, leader: str, view: int, epoch: int = 0, **states: str) -> GroupView:
    members = [member(name, state) for name, state in states.items()]
    return GroupView(
        group="lab/eu", reported_by=reported_by, leader=leader, epoch=epoch, view=view,
        quorum=len(members) // 2 + 1, members=members,
    )  # fmt: skip


def test_what_a_manager_that_is_cut_off_says_is_not_how_the_group_is() -> None:
    alone = view_of("m1", "", 3, m1="electing", m2="silent", m3="silent")
    others = [
        view_of("m2", "m2", 4, m1="silent", m2="leads", m3="follows"),
        view_of("m3", "m2", 4, m1="silent", m2="leads", m3="follows"),
    ]
    for views in ([alone, *others], [*others, alone], [others[1], alone]):
        best = best_view(views)
        assert best in others and best.leader == "m2"
        assert "NO QUORUM" not in "\n".join(status_lines(best))
        [line] = unheard_lines(best, views)
        assert line.startswith(f"m1 answers here, but {best.reported_by} does not hear it")
    assert best_view([alone, *others]).reported_by == "m2", "the leader's view counts"
    assert "NO QUORUM" in "\n".join(status_lines(best_view([alone])))


def test_of_two_majorities_the_later_epoch_and_view_is_shown() -> None:
    left = view_of("m1", "m2", 9, m1="follows", m2="leads", m3="silent")
    now = view_of("m4", "m4", 2, epoch=1, m2="follows", m3="follows", m4="leads")
    later = view_of("m2", "m2", 4, epoch=1, m2="leads", m3="follows", m4="follows")
    assert best_view([left, now]) is now
    assert best_view([left, later, now]) is later
    assert unheard_lines(now, [left, now]) == []


def test_a_member_that_is_mending_does_not_count() -> None:
    text = shown(member("m1", "leads"), member("m2", "follows"), member("m3", "mending"))
    assert "DEGRADED: 1 of 3 are missing" in text and "mending" in text


def test_only_managers_and_operators_may_send_what_changes_a_group() -> None:
    for struct in (MemberNote, HandOver, ChangeMembers):
        assert CATALOGUE.by_struct[struct].senders == {Role.NODE}
    assert Role.CLIENT in CATALOGUE.by_struct[AskGroup].senders
    assert all(160 <= CATALOGUE.by_struct[each].number < 180 for each in (MemberNote, AskGroup))


def test_a_joining_manager_may_name_any_number_of_managers() -> None:
    assert len(members_of(["m1=a:1,m4=b:2"], any_size=True)) == 2
    with pytest.raises(UsageError, match="survives no failure"):
        members_of(["m1=a:1,m4=b:2"])


def test_recovery_says_what_is_kept_and_what_is_lost() -> None:
    recovery = Recovery("m2", "lab/eu", ("m1", "m2", "m3"), "9f3a", 1002, 40, 37, "ledger.former-1")
    text = "\n".join(lines_of(RecoveredGroup(recovery, {"completed": 2}, 1)))
    assert "new group 9f3a: m2 alone, epoch 1002; it was lab/eu of m1, m2, m3" in text
    assert (
        "all 40 commands" in text
        and "2 completed" in text
        and "may not have accepted the last 3" in text
    )
    assert "lost: whatever the other managers accepted" in text and "1 blob" in text
    alone = Recovery("m1", "9f3b", ("m1",), "9f3a", 1000, 40, 40, "ledger.former-1")
    text = "\n".join(lines_of(RecoveredGroup(alone, {}, 0)))
    assert "lost:" not in text and "not known" not in text and "missing" not in text


def test_disks_are_not_touched_without_being_sure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m1" / "ledger").mkdir(parents=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "m1" / "ledger" / "storage").write_text("x")
    for words in (
        ("recover", str(tmp_path / "nothing"), "--force"),
        ("recover", str(tmp_path / "m1")),
        ("backup", str(tmp_path / "nothing"), str(tmp_path / "to")),
        ("backup", str(tmp_path / "m1"), str(tmp_path / "full")),
        ("restore", str(tmp_path / "m1"), str(tmp_path / "to")),
    ):
        assert main(list(words)) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "m1"]


def test_a_backup_is_refused_when_a_byte_of_it_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def made() -> None:
        runtime = RealRuntime("m1", data_dir=tmp_path / "m1")
        ledger = await open_alone(cast("Runtime", runtime), Datacenter())
        await ledger.blobs.put(b"a result")
        await ledger.submit(b"no command at all")
        # The directory is in use: a backup does not need it to be stopped.
        assert await asyncio.to_thread(main, ["backup", str(tmp_path / "m1"), str(copy)]) == 0
        await ledger.close()
        await runtime.close()

    (tmp_path / "m1").mkdir()
    copy, target = tmp_path / "copy", tmp_path / "target"
    asyncio.run(made())
    assert "checked" in capsys.readouterr().out
    files = [path for path in copy.rglob("*") if path.is_file() and path.name != "backup.json"]
    assert len(files) >= 3
    for path in files:
        sound = path.read_bytes()
        path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
        assert main(["restore", str(copy), str(target)]) == 1
        assert "differs from what was backed up" in capsys.readouterr().err
        assert not target.exists()
        path.write_bytes(sound)
    assert main(["restore", str(copy), str(target)]) == 0
    assert "m1 alone, epoch " in capsys.readouterr().out
