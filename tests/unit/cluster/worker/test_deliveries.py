"""Telemetry of many attempts: in as few messages as fit, each attempt acknowledged by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.messages import Telemetry, TelemetryAck
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.errors import NotSent, OutcomeUnknown, RemoteError, WireError
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.worker.attempt_records import AttemptRecorder
from squall.cluster.worker.deliveries import MESSAGE_MAX_BYTES, Deliveries
from squall.engine.core_protocol import OutputLine
from squall.stats.reports import ErrorSample, RowDelta, WindowReport


class Leader:
    """Acknowledges everything but what it is told to leave out."""

    def __init__(self) -> None:
        self.messages: list[Telemetry] = []
        self.refuses: set[AttemptKey] = set()
        self.fails: WireError | None = None

    async def request(self, message: Telemetry, timeout_s: float) -> TelemetryAck:
        self.messages.append(message)
        if self.fails is not None:
            raise self.fails
        acks = [(p.key, p.upto) for p in message.parts if p.key not in self.refuses]
        return TelemetryAck(acks=acks, interval_s=1.0)


def key(share: int, job: str = "j-1") -> AttemptKey:
    return AttemptKey(JobId(job), "Flow", share, Attempt(1))


def worker_with(keys: list[AttemptKey], errors: int = 0) -> tuple[Deliveries, Leader, Any]:
    recorders = {each: AttemptRecorder(each, "w1", 0.0) for each in keys}
    for each, recorder in recorders.items():
        row = RowDelta("iteration", "iteration")
        recorder.add(WindowReport("Flow", each.share, 0, [], row))
        for number in range(errors):
            recorder.add(ErrorSample("Flow", "get", f"{number}", 0.1, traceback="x" * 20_000))
    leader = Leader()
    attempts = SimpleNamespace(recorded=lambda: list(recorders), recorder=recorders.get)
    links = SimpleNamespace(current=leader)
    made = Deliveries(
        cast("Any", SimpleNamespace(node="w1", boot="b1")),
        cast("Any", links),
        cast("Any", SimpleNamespace(telemetry_interval_s=1.0)),
        cast("Any", attempts),
        RequestTimeouts(),
    )
    return made, leader, recorders


@pytest.mark.asyncio
async def test_the_attempts_of_a_job_go_in_one_message() -> None:
    keys = [key(share) for share in range(100)] + [key(0, "j-2")]
    deliveries, leader, recorders = worker_with(keys)
    leader.refuses = {key(3)}
    await deliveries.send_telemetry()
    assert [len(each.parts) for each in leader.messages] == [100, 1]
    unsent = [each for each, recorder in recorders.items() if recorder.part() is not None]
    assert unsent == [key(3)], "only what was not acknowledged is sent again"


@pytest.mark.asyncio
async def test_no_message_is_larger_than_messages_may_be() -> None:
    keys = [key(share) for share in range(12)]
    deliveries, leader, _ = worker_with(keys, errors=40)
    await deliveries.send_telemetry()
    assert [part.key for each in leader.messages for part in each.parts] == keys
    sizes = [
        sum(len(e.traceback or "") for p in m.parts for e in p.errors) for m in leader.messages
    ]
    assert len(sizes) > 1 and max(sizes) <= MESSAGE_MAX_BYTES


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "is_sent_again"),
    [
        (NotSent("no link"), True),
        (RemoteError(ErrorCode.RETRY_LATER, "no primary is known"), True),
        (RemoteError(ErrorCode.NOT_PRIMARY), True),
        (RemoteError(ErrorCode.OVERLOADED), True),
        (RemoteError(ErrorCode.BAD_MESSAGE, "a report cannot be read"), False),
        (OutcomeUnknown("no answer"), False),
    ],
    ids=str,
)
async def test_lines_of_the_author_survive_a_refusal(error: WireError, is_sent_again: bool) -> None:
    deliveries, leader, recorders = worker_with([key(0)])
    recorders[key(0)].add(OutputLine("Flow", "hello"))
    leader.fails = error
    await deliveries.send_telemetry()
    leader.fails = None
    await deliveries.send_telemetry()
    texts = [[line.text for line in part.lines] for m in leader.messages for part in m.parts]
    assert texts == [["hello"], ["hello"] if is_sent_again else []]
