"""What running shares reported outlives the manager that heard it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.api.errors import SquallError
from squall.cluster.group.job_leaders import report_copies as copies_module
from squall.cluster.group.job_leaders.report_copies import MemberCopies
from squall.cluster.group.telemetry.report_store import ReportMemory, RunningRecord
from squall.cluster.protocol.encoded_reports import TimedReport, encode_report
from squall.cluster.protocol.group_messages import AskCut, Cut, StoreCopies
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.stats.attempt_record import AttemptRecord
from squall.stats.record_builder import encode_record
from squall.stats.reports import ErrorSample, RequestsDelta, RowDelta, WindowReport

JOB = JobId("g-1")
KEY = AttemptKey(JOB, "Load", 0, Attempt(1))
NOBODY = cast("Any", None)


def window(second: int, sent: int = 10) -> WindowReport:
    row = RowDelta("get", started=sent, outcomes=[])
    requests = RequestsDelta(sent=sent, answered=sent)
    return WindowReport(
        workflow="Load",
        share=0,
        window=second,
        rows=[row],
        iteration=RowDelta("iteration", "", started=sent),
        requests=requests,
    )


class Heard:
    """The leader's side: what reached it of one attempt."""

    def __init__(self) -> None:
        record = AttemptRecord(workflow="Load", share=0, attempt=1, worker="w1")
        self.memory = ReportMemory()
        self.built: RunningRecord | None = RunningRecord(record, self.memory)

    def running_record(self, key: AttemptKey) -> RunningRecord | None:
        return self.built

    def record(self, key: AttemptKey) -> AttemptRecord | None:
        return self.built.record if self.built is not None else None


class Group:
    """All members, each with its copies; a message passes at once, or not at all."""

    def __init__(self, *names: str) -> None:
        self.up = set(names)
        self.members = {name: Member(name, self) for name in names}
        self.parts: list[int] = []

    async def ask(self, name: str, message: Any) -> Any:
        if name not in self.up:
            raise RemoteError(ErrorCode.RETRY_LATER, f"no link to {name}")
        member = self.members[name]
        if isinstance(message, StoreCopies):
            self.parts += [len(part) for part in message.parts]
            return member.copies.keep(message, NOBODY)
        assert isinstance(message, AskCut)
        record = member.copies.best(message.key)
        return Cut(encode_record(record) if record is not None else b"")


class Member:
    def __init__(self, name: str, group: Group) -> None:
        self.node = name
        self.group = group
        self.seen = True
        self.heard = Heard()
        options = SimpleNamespace(warmup_s=0.0)
        job = SimpleNamespace(
            key="k", started_ms=1, over=False, submission=SimpleNamespace(options=options)
        )
        self.state = "live"
        self.tables = SimpleNamespace(
            active={JOB: None}, jobs={JOB: job}, live_of=self.live_of, attempt=lambda key: self
        )
        machine = cast("Any", SimpleNamespace(tables=self.tables))
        self.copies = MemberCopies(machine, cast("Any", self.heard), cast("Any", self))
        if name != "m1":
            self.heard.built = None

    def live_of(self, job: JobId) -> list[tuple[AttemptKey, None]]:
        return [(KEY, None)]

    # As the node's `JobLeaders`.

    def live(self) -> list[str]:
        return sorted(self.group.up) if self.seen else [self.node]

    def leads(self, job: object) -> bool:
        return self.node == "m1"

    async def ask(self, name: str, message: Any) -> Any:
        return await self.group.ask(name, message)


def sent(record: AttemptRecord | None) -> int:
    return sum(report.requests.sent for report in record.reports) if record is not None else -1


def observe(group: Group, *seconds: int) -> None:
    built = group.members["m1"].heard.built
    assert built is not None
    for second in seconds:
        built.add_window(TimedReport(second, encode_report(window(second))))


@pytest.mark.asyncio
async def test_a_copy_has_what_the_leader_heard_and_grows_by_what_is_new() -> None:
    group = Group("m1", "m2", "m3")
    leader = group.members["m1"].copies
    observe(group, *range(40))
    await leader.give()
    observe(group, 40, 41)
    await leader.give()
    await leader.give()
    assert len(group.parts) == 2 and group.parts[1] < group.parts[0] / 5
    group.up.remove("m1")
    found = await group.members["m2"].copies.find("w1", KEY)
    assert found is not None and found.silent_from_s == 42.0 and found.worker == "w1"
    assert sent(found) == 420 and len(found.reports) == 42
    # Whichever of those that are left asks.
    assert sent(await group.members["m3"].copies.find("w1", KEY)) == 420


@pytest.mark.asyncio
async def test_when_its_holder_dies_another_gets_the_whole() -> None:
    group = Group("m1", "m2", "m3")
    observe(group, *range(5))
    await group.members["m1"].copies.give()
    holder = next(n for n in ("m2", "m3") if group.members[n].copies.best(KEY) is not None)
    other = "m3" if holder == "m2" else "m2"
    group.up.remove(holder)
    observe(group, 5)
    await group.members["m1"].copies.give()
    assert sent(group.members[other].copies.best(KEY)) == 60


@pytest.mark.asyncio
async def test_a_holder_that_forgot_is_given_the_whole_with_its_errors() -> None:
    group = Group("m1", "m2")
    built = group.members["m1"].heard.built
    assert built is not None
    built.add_error(ErrorSample("Load", "get", "refused", 0.5))
    observe(group, 0, 1)
    await group.members["m1"].copies.give()
    group.members["m2"] = Member("m2", group)
    observe(group, 2)
    await group.members["m1"].copies.give()
    await group.members["m1"].copies.give()
    found = group.members["m2"].copies.best(KEY)
    assert sent(found) == 30
    assert found is not None and [error.reason for error in found.errors] == ["refused"]


@pytest.mark.asyncio
async def test_a_copy_whose_answer_was_lost_counts_once() -> None:
    group = Group("m1", "m2")
    leader, holder = group.members["m1"], group.members["m2"].copies
    observe(group, 0, 1)
    keep = holder.keep

    def lost(message: StoreCopies, incoming: Any) -> Any:
        keep(message, incoming)
        raise RemoteError(ErrorCode.RETRY_LATER, "the answer was lost")

    holder.keep = lost
    await leader.copies.give()
    holder.keep = keep
    observe(group, 2)
    await leader.copies.give()
    await leader.copies.give()
    assert sent(holder.best(KEY)) == 30


@pytest.mark.asyncio
async def test_much_goes_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_module, "BATCH_BYTES", 4000)
    group = Group("m1", "m2")
    observe(group, *range(300))
    for _ in range(40):
        await group.members["m1"].copies.give()
    assert max(group.parts) <= 4000 and len(group.parts) > 2
    assert sent(group.members["m2"].copies.best(KEY)) == 3000


@pytest.mark.asyncio
async def test_a_record_whose_reports_are_not_apart_any_more_is_given_in_wider_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies_module, "BATCH_BYTES", 4000)
    group = Group("m1", "m2")
    group.members["m1"].heard.memory.max_bytes = 20_000
    observe(group, *range(1000))
    await group.members["m1"].copies.give()
    found = group.members["m2"].copies.best(KEY)
    assert sent(found) == 10_000 and max(group.parts) <= 4000
    assert found is not None and found.width_s > 1 and found.silent_from_s == 1000.0


@pytest.mark.asyncio
async def test_copies_are_forgotten_with_the_job() -> None:
    group = Group("m1", "m2")
    observe(group, 0)
    await group.members["m1"].copies.give()
    holder = group.members["m2"]
    assert holder.copies.best(KEY) is not None
    holder.tables.active.clear()
    await holder.copies.give()
    assert holder.copies.best(KEY) is None


@pytest.mark.asyncio
async def test_a_copy_is_let_go_when_the_log_has_what_counts() -> None:
    group = Group("m1", "m2")
    observe(group, 0)
    await group.members["m1"].copies.give()
    holder = group.members["m2"]
    assert holder.heard.memory.used_bytes > 0
    holder.state = "ended"
    await holder.copies.give()
    assert holder.copies.best(KEY) is None and holder.heard.memory.used_bytes == 0


@pytest.mark.asyncio
async def test_one_that_lives_and_does_not_answer_is_asked_again() -> None:
    """It may have the only copy: the loss waits until it answers or is gone."""
    group = Group("m1", "m2", "m3")
    asking = group.members["m3"].copies
    asking._leaders.live = lambda: ["m1", "m2", "m3"]  # pyright: ignore[reportPrivateUsage]
    group.up.remove("m1")
    with pytest.raises(SquallError, match="m1"):
        await asking.find("w1", KEY)
