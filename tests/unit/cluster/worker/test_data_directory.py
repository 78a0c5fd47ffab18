"""What a worker keeps on disk, and what a new boot makes of it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from squall.cluster.worker import data_directory as module
from squall.cluster.worker.data_directory import LiveJoin, WorkerDirectory, counters_path
from squall.engine.process.counter_file import SILENT_MAX_S, encode_counters
from squall.runtime.log import Log, MemorySink
from squall.runtime.real.disk import RealDisk
from squall.runtime.real.runtime import RealClock
from squall.stats.attempt_record import AttemptRecord, RecordEnd, SurvivingCounters
from squall.stats.record_builder import RecordBuilder, decode_record, encode_record
from squall.stats.reports import RequestsDelta, RowDelta, WindowReport
from tests.unit.cluster.worker.lab.sessions import key


def now() -> float:
    """CLOCK_BOOTTIME when the processes of the former boot are reaped."""
    return 500.4


class Machine:
    pid = 77
    host = "here"

    def __init__(self, machine: str = "m", kernel_boot: str = "k", ends: bool = True) -> None:
        self.machine = machine
        self.kernel_boot = kernel_boot
        self.ends = ends
        self.asked: list[tuple[str, str, int, str]] = []

    async def end_former(self, node: str, boot: str, pid: int, start: str) -> bool:
        self.asked.append((node, boot, pid, start))
        return self.ends

    def start_of(self, pid: int) -> str:
        return f"start of {pid}"


Play = Callable[[WorkerDirectory, RealDisk, MemorySink], Coroutine[Any, Any, None]]


def play(folder: Path, script: Play) -> None:
    async def run() -> None:
        disk, sink = RealDisk(folder), MemorySink()
        try:
            await script(WorkerDirectory(disk, Log(sink, RealClock())), disk, sink)
        finally:
            await disk.close()

    asyncio.run(run())


def report(window: int, sent: int = 10) -> WindowReport:
    requests = RequestsDelta(sent=sent, answered=sent)
    return WindowReport("Shop", 0, window, [], RowDelta("iteration"), requests=requests)


def empty() -> AttemptRecord:
    return AttemptRecord(workflow="Shop", share=0, attempt=1, worker="w1")


def final() -> bytes:
    builder = RecordBuilder(empty())
    builder.add(report(0))
    builder.close(RecordEnd(elapsed_s=1.0))
    return encode_record(builder.record)


@pytest.mark.parametrize(
    ("former", "present", "proven", "asks"),
    [
        (Machine("m", "k"), Machine("m", "k"), True, True),
        (Machine("m", "k"), Machine("m", "k", ends=False), False, True),
        (Machine("m", "k"), Machine("m", "later"), True, False),
        (Machine("m", "k"), Machine("other", "k"), False, False),
        (Machine("", "k"), Machine("", "k"), False, False),
        (Machine("m", ""), Machine("m", "k"), False, False),
    ],
)
def test_a_new_boot_is_proven_only_if_nothing_of_the_former_can_run(
    tmp_path: Path, former: Machine, present: Machine, proven: bool, asks: bool
) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        assert await directory.open("w1", "boot-1", former, now) == ()
        dead = await directory.open("w1", "boot-2", present, now)
        assert dead == (("boot-1",) if proven else ())
        assert directory.dead_pid == (former.pid if proven else 0)
        assert present.asked == ([("w1", "boot-2", 77, "start of 77")] if asks else [])

    play(tmp_path, script)


def test_a_boot_that_never_registered_hands_its_proof_on(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine("m", "k"), now)
        await directory.open("w1", "boot-2", Machine("m", "k"), now)
        assert await directory.open("w1", "boot-2", Machine("m", "k"), now) == ("boot-1",)
        assert await directory.open("w1", "boot-3", Machine("m", "k"), now) == ("boot-2", "boot-1")
        # The disk moved to another machine: boot-3 may still run there, the others are dead.
        assert await directory.open("w1", "boot-4", Machine("n", "k"), now) == ("boot-2", "boot-1")

    play(tmp_path, script)


def test_a_broken_boot_record_is_unproven(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await disk.write_atomic(module.BOOT, b"\xff\xff")
        assert not await directory.open("w1", "boot-2", Machine(), now)

    play(tmp_path, script)


def test_a_final_record_is_found_again_until_it_is_dropped(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine(), now)
        await directory.keep(key(), final())
        [left] = await directory.left()
        assert (left.key, left.data, left.complete) == (key(), final(), True)
        await directory.drop(key())
        await directory.drop(key())
        assert not await directory.left()

    play(tmp_path, script)


def test_reports_of_a_running_attempt_become_a_cut(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine(), now)
        builder = RecordBuilder(empty())
        live = directory.live(key(), builder.record, 0.0)
        live.add(LiveJoin(4.0))
        await live.flush()
        for window in range(4, 9):
            builder.add(report(window))
            live.add(report(window))
            await live.flush()
        [left] = await directory.left()
        assert left.key == key() and not left.complete
        record = decode_record(left.data)
        assert record.end is None and record.silent_from_s == 9.0
        assert sum(r.requests.sent for r in record.reports) == 50
        await live.close()
        assert not await directory.left()

    play(tmp_path, script)


COUNTERS = SurvivingCounters(
    planned=60,
    made=58,
    dropped=1,
    finished=50,
    sent=57,
    answered=52,
    failed=1,
    users=9,
    busy=4,
    at_s=9.7,
    boot_s=500.0,
)


@pytest.mark.parametrize(
    ("machine", "dead_by_s"),
    [
        (Machine("m", "k"), pytest.approx(10.1)),
        # Its clock began anew; and on another machine it is another clock.
        (Machine("m", "later"), None),
        (Machine("other", "k"), None),
    ],
)
def test_the_counters_of_a_dead_process_continue_its_reports(
    tmp_path: Path, machine: Machine, dead_by_s: float | None
) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine("m", "k"), now)
        builder = RecordBuilder(empty())
        live = directory.live(key(), builder.record, 0.0)
        for window in range(4, 9):
            builder.add(report(window))
            live.add(report(window))
        await live.flush()
        (tmp_path / counters_path(key())).write_bytes(encode_counters(COUNTERS))
        await directory.open("w1", "boot-2", machine, now)
        [left] = await directory.left()
        record = decode_record(left.data)
        assert record.silent_from_s == 9.7
        sums = [r.requests for r in record.reports]
        assert sum(r.sent for r in sums) == 57 and sum(r.answered for r in sums) == 52
        assert sum(r.unmeasured for r in record.reports) == 7
        assert record.counters is not None and record.counters.dead_by_s == dead_by_s
        await live.close()
        assert list((tmp_path / "live").iterdir()) == []

    play(tmp_path, script)


def test_a_death_that_is_seen_late_was_soon_after_the_last_counters(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine("m", "k"), now)
        live = directory.live(key(), empty(), 0.0)
        live.add(LiveJoin(4.0))
        await live.flush()
        (tmp_path / counters_path(key())).write_bytes(encode_counters(COUNTERS))
        await directory.open("w1", "boot-2", Machine("m", "k"), lambda: now() + 60.0)
        [left] = await directory.left()
        counters = decode_record(left.data).counters
        assert counters is not None
        assert counters.dead_by_s == pytest.approx(COUNTERS.at_s + SILENT_MAX_S)

    play(tmp_path, script)


def test_counters_of_an_older_boot_do_not_get_the_death_of_the_last_one(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine("other", "k"), now)
        live = directory.live(key(), empty(), 0.0)
        live.add(LiveJoin(4.0))
        await live.flush()
        live.add(report(4))
        await live.flush()
        (tmp_path / counters_path(key())).write_bytes(encode_counters(COUNTERS))
        # boot-1 may run on, on another machine; boot-2 came and died here.
        await directory.open("w1", "boot-2", Machine("m", "k"), now)
        await directory.open("w1", "boot-3", Machine("m", "k"), now)
        [left] = await directory.left()
        counters = decode_record(left.data).counters
        assert counters is not None and counters.dead_by_s is None

    play(tmp_path, script)


@pytest.mark.parametrize("data", [b"", b"\0" * 88, b"\xff" * 88, encode_counters(COUNTERS)[:-1]])
def test_broken_counters_cost_only_themselves(tmp_path: Path, data: bytes) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine(), now)
        live = directory.live(key(), empty(), 0.0)
        live.add(LiveJoin(4.0))
        await live.flush()
        live.add(report(4))
        await live.flush()
        (tmp_path / counters_path(key())).write_bytes(data)
        [left] = await directory.left()
        record = decode_record(left.data)
        assert record.counters is None and record.silent_from_s == 5.0

    play(tmp_path, script)


def test_a_torn_end_costs_only_itself(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine(), now)
        live = directory.live(key(), empty(), 0.0)
        live.add(LiveJoin(0.0))
        await live.flush()
        for window in range(3):
            live.add(report(window))
            await live.flush()
        [path] = (tmp_path / "live").iterdir()
        path.write_bytes(path.read_bytes()[:-5])
        [left] = await directory.left()
        assert sum(r.requests.sent for r in decode_record(left.data).reports) == 20

    play(tmp_path, script)


def test_a_grown_file_begins_anew_with_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIVE_MAX_BYTES", 400)

    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine(), now)
        builder = RecordBuilder(empty())
        live = directory.live(key(), builder.record, 0.0)
        for window in range(60):
            builder.add(report(window))
            live.add(report(window))
            await live.flush()
        assert len(list((tmp_path / "live").iterdir())) == 1
        [left] = await directory.left()
        assert sum(r.requests.sent for r in decode_record(left.data).reports) == 600

    play(tmp_path, script)


def test_the_complete_record_wins_over_the_cut(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine(), now)
        live = directory.live(key(), empty(), 0.0)
        live.add(report(0, sent=3))
        await live.flush()
        await directory.keep(key(), final())
        assert [left.complete for left in await directory.left()] == [True]

    play(tmp_path, script)


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        await directory.open("w1", "boot-1", Machine(), now)
        monkeypatch.setattr(disk, "write_atomic", full)
        monkeypatch.setattr(disk, "open", full)
        await directory.keep(key(), final())
        live = directory.live(key(), empty(), 0.0)
        live.add(report(0))
        await live.flush()
        live.add(report(1))
        await live.flush()
        await live.close()
        assert directory.disk_full
        assert sink.events() == ["record_not_stored", "reports_not_stored"]
        assert "No space left" in str(sink.records[0].fields["error"])

    play(tmp_path, script)


def test_the_managers_are_known_to_the_next_boot(tmp_path: Path) -> None:
    async def script(directory: WorkerDirectory, disk: RealDisk, sink: MemorySink) -> None:
        assert await directory.managers() == []
        await directory.store_managers(["m4:7400", "m5:7400"])
        log = Log(sink, RealClock())
        assert await WorkerDirectory(disk, log).managers() == ["m4:7400", "m5:7400"]
        await disk.write_atomic(module.MANAGERS, b"{")
        assert await directory.managers() == []

    play(tmp_path, script)
