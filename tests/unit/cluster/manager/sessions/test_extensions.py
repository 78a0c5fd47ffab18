"""A worker that fetches a large bundle and says so is not given up after its first deadline."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from squall.cluster.group.job_deadlines import deadline_ms, extension_cap_ms
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import AttemptStatus, MoreTime, SessionAnswer
from tests.fakes import datacenter
from tests.fakes.datacenter import FAST, Bench, Model, workflow

BASE_S = FAST.prepare_timeout_s


class Slow(Bench):
    """A worker needs `needs_s` to prepare, and asks for longer as a real one does; `moves`
    says whether it gets on."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, needs_s: float, *, moves: bool, workers: int = 1
    ) -> None:
        self.given: list[MoreTime] = []
        self.due: dict[AttemptKey, float] = {}
        self.moves = moves
        original = datacenter.status_of

        def status_of(key: AttemptKey, model: Model, note: str) -> AttemptStatus:
            status = original(key, model, note)
            if status.phase != "preparing":
                return status
            work = round(self.now * 1000) if self.moves else 7
            wants = self.now >= self.due[key] - 3.0
            return msgspec.structs.replace(status, work=work, wants_more_s=wants)

        monkeypatch.setattr(datacenter, "status_of", status_of)
        super().__init__(FAST, **{f"w{number}": 1 for number in range(1, workers + 1)})
        for worker in self.workers.values():
            worker.prepare_s = needs_s

    def session(self, worker: Any) -> SessionAnswer | None:
        answer = super().session(worker)
        for order in answer.prepare if answer is not None else ():
            self.due[order.key] = self.now + order.ready_within_s
        for more in answer.more_time if answer is not None else ():
            self.given.append(more)
            self.due[more.key] += more.granted_s
        return answer


def events(bench: Bench, job: Any) -> str:
    return "; ".join(event.text for event in bench.machine.tables.events.get(job, ()))


def test_a_slow_preparation_that_moves_on_gets_the_time_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Slow(monkeypatch, BASE_S * 1.6, moves=True)
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    assert bench.wf(job, "Load").attempts == 1, "the first attempt started"
    assert [more.granted_s for more in bench.given][:2] == [BASE_S / 2, BASE_S / 4]
    assert "goes back into the queue" not in events(bench, job)
    assert bench.finish(job).state == "completed"


def test_without_progress_there_is_one_grant_and_then_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Slow(monkeypatch, BASE_S * 5, moves=False)
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0))
    bench.until(lambda: "goes back into the queue" in events(bench, job))
    denials = {more.denial for more in bench.given}
    assert [more.granted_s for more in bench.given if more.granted_s] == [BASE_S / 2]
    assert "no progress" in denials


def test_nothing_can_be_extended_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Slow(monkeypatch, BASE_S * 20, moves=True)
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0))
    took_s = bench.until(lambda: "goes back into the queue" in events(bench, job))
    granted = [more for more in bench.given if more.granted_s]
    assert len(granted) == 5 and sum(more.is_warning for more in granted) == 1
    assert bench.given[-1].denial and took_s < 3.5 * BASE_S


def test_the_job_gets_the_same_time_beyond_its_deadline_within_its_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Slow(monkeypatch, BASE_S * 1.6, moves=True)
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0), timeout_s=60.0)
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    record = bench.job(job)
    assert record.extension_ms == round(sum(m.granted_s for m in bench.given) * 1000)
    assert record.extension_ms <= extension_cap_ms(record)
    assert deadline_ms(record) == record.deadline_ms + record.extension_ms


def test_many_workers_that_are_late_together_lengthen_their_job_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Slow(monkeypatch, BASE_S * 1.4, moves=True, workers=8)
    job = bench.submit(workflow("Load", vus=8, duration_s=3.0), timeout_s=3600.0)
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    granted: dict[AttemptKey, float] = {}
    for more in bench.given:
        granted[more.key] = granted.get(more.key, 0.0) + more.granted_s
    assert len(granted) == 8 and bench.wf(job, "Load").attempts == 8
    assert bench.job(job).extension_ms == round(max(granted.values()) * 1000)


def test_a_job_whose_workers_ask_for_nothing_is_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Slow(monkeypatch, 0.05, moves=True)
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0), timeout_s=60.0)
    assert bench.finish(job).state == "completed"
    assert not bench.given and not bench.job(job).extension_ms
