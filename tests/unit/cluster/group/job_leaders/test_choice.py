"""The leader of a job: spread over the members, stable, and the primary if the leader is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from squall.cluster.datacenter.commands import Accepted, LeadJobs
from squall.cluster.group.job_leaders.choice import JobLeaders, able, chosen
from squall.cluster.group.member_watch import GroupWatch, ReceivedNote
from squall.cluster.ledger.interface import NotPrimary
from squall.cluster.protocol.group_messages import MemberNote
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode

NAMES = ["m1", "m2", "m3"]
KEYS = [f"key-{number}" for number in range(300)]


def test_jobs_spread_over_the_members_and_move_only_with_their_own() -> None:
    before = {key: chosen(key, NAMES) for key in KEYS}
    assert all(count > 60 for count in Counter(before.values()).values())
    assert len(Counter(before.values())) == 3
    after = {key: chosen(key, ["m1", "m3"]) for key in KEYS}
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == "m2"}


class Known:
    """What one manager knows: its log, the others, their addresses."""

    def __init__(self, node: str, *, primary: str | None, heard: set[str]) -> None:
        self.node = node
        self.primary = primary
        self.is_primary = primary == node
        self.heard = heard
        self.transport = None
        self.commands: list[LeadJobs] = []

    def address_of(self, node: str | None) -> str:
        return f"{node}:1" if node else ""

    def answer(self, error: NotPrimary) -> RemoteError:
        where = self.address_of(error.primary)
        return RemoteError(ErrorCode.NOT_PRIMARY, str(error), primary=where)

    async def commit(self, command: LeadJobs) -> Accepted:
        self.commands.append(command)
        return Accepted()

    def info(self, *_: object, **__: object) -> None: ...


class Job:
    over = False

    def __init__(self, leader: str, key: str = "k") -> None:
        self.job = f"job-{key}"
        self.key = key
        self.leader = leader


class Tables:
    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = {job.job: job for job in jobs}
        self.active = dict.fromkeys(self.jobs)


def leaders(known: Known, jobs: list[Job] | None = None) -> JobLeaders[LeadJobs]:
    class Heard(JobLeaders[LeadJobs]):
        def live(self) -> list[str]:
            return sorted({known.node, *known.heard})

    anything = cast("Any", known)
    machine = cast("Any", type("Machine", (), {"tables": Tables(jobs or [])}))
    return Heard(
        machine=machine,
        ledger=anything,
        watch=anything,
        committer=anything,
        lead_jobs=lambda leaders: LeadJobs(leaders=leaders),
        log=anything,
    )


class Notes:
    """The notes of the other members, and their age."""

    def __init__(self, **told: tuple[float, MemberNote]) -> None:
        self.heard = {name: ReceivedNote(note, "boot", 0.0) for name, (_, note) in told.items()}
        self._silent_s = {name: silent_s for name, (silent_s, _) in told.items()}

    def silent_s(self, node: str) -> float:
        return self._silent_s.get(node, -1.0)


def note(storage: str, status: str = "normal") -> MemberNote:
    return MemberNote(address="a:1", storage=storage, status=status)


def test_a_member_that_lives_with_an_empty_disk_leads_no_job() -> None:
    names = ("fine", "wiped", "forming", "mending", "silent", "never")
    told = Notes(
        fine=(0.1, note("old")),
        wiped=(0.1, note("new", "learner")),
        forming=(0.1, note("", "forming")),
        mending=(0.1, note("old", "mending")),
        silent=(9.0, note("old")),
    )
    assert list(able(dict.fromkeys(names, "old"), cast("GroupWatch", told))) == ["fine"]


def job(leader: str) -> Any:
    return Job(leader)


def test_every_member_names_the_one_that_the_log_names() -> None:
    follower = leaders(Known("m2", primary="m1", heard={"m1", "m3"}))
    assert follower.elsewhere(job("m3")) == "m3:1"
    assert follower.elsewhere(job("m2")) == ""
    primary = leaders(Known("m1", primary="m1", heard={"m2", "m3"}))
    assert primary.elsewhere(job("m3")) == "m3:1"
    assert primary.elsewhere(job("m1")) == ""


def test_the_primary_stands_in_for_a_leader_that_it_does_not_hear() -> None:
    assert leaders(Known("m1", primary="m1", heard={"m2"})).elsewhere(job("m3")) == ""
    # Only the primary replaces a leader that is gone.
    assert leaders(Known("m2", primary="m1", heard={"m1"})).elsewhere(job("m3")) == "m3:1"


def test_a_member_that_hears_no_primary_leads_nothing() -> None:
    with pytest.raises(RemoteError) as told:
        leaders(Known("m2", primary=None, heard=set())).elsewhere(job("m2"))
    assert told.value.code == ErrorCode.NOT_PRIMARY


def test_who_does_not_know_a_job_yet_names_the_primary() -> None:
    assert leaders(Known("m2", primary="m1", heard={"m1"})).elsewhere(None) == "m1:1"
    assert leaders(Known("m1", primary="m1", heard={"m2"})).elsewhere(None) == ""


def test_only_the_primary_names_others_and_only_for_orphans() -> None:
    jobs = [Job("m3", key) for key in KEYS[:5]] + [Job("m2", "other")]
    follower = Known("m2", primary="m1", heard={"m1"})
    asyncio.run(leaders(follower, jobs).replace_lost())
    assert follower.commands == []
    primary = Known("m1", primary="m1", heard={"m2"})
    asyncio.run(leaders(primary, jobs).replace_lost())
    (command,) = primary.commands
    assert [name for name, _ in command.leaders] == [each.job for each in jobs[:5]]
    assert {leader for _, leader in command.leaders} <= {"m1", "m2"}
    whole = Known("m1", primary="m1", heard={"m2", "m3"})
    asyncio.run(leaders(whole, jobs).replace_lost())
    assert whole.commands == []
