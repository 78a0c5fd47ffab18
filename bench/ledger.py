"""The write-ahead log against a bare write and fdatasync loop, and what recovery costs.

The log and the bare loop take turns on one file system, because a shared disk changes
its speed between seconds: the ratio is taken within a round and the median is shown. The
bare loop writes blocks of the size that the log had in that round, from one thread, with
nothing between two syncs: a file that grows by each write, as such a loop is written. So
the ratio says what numbering, checksums, waiting callers and the way through the event
loop cost, less what the log gains by writing zeros ahead of its records, so that a sync
has no new length to write. A second bare loop does the same; against that one nothing is
gained, and the ratio is shown without a bar.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from squall.cluster.ledger.files.history_records import STEP
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.interface import Entry, Fence
from squall.cluster.ledger.replica.types import LAN, GroupId, Kind, LogEntry, StepRecord, make_entry
from squall.cluster.ledger.settings import LedgerSettings, WalSettings
from squall.cluster.ledger.wal.errors import WalBusy
from squall.cluster.ledger.wal.open_wal import open_wal
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

RATIO_BAR = 0.5
RECOVERY_BAR_S = 10.0
MEMORY_BAR = 3.0
SIZE = 256
WRITERS = 64
IDENTITY = b"0123456789abcdef"


def main() -> int:
    options = _options()
    return uvloop.run(_main(options))


async def _main(options: argparse.Namespace) -> int:
    rounds = [await _round(options.seconds) for _ in range(options.rounds)]
    ratio = statistics.median(ours["rate"] / bare for ours, bare, _ in rounds)
    filled = statistics.median(ours["rate"] / ahead for ours, _, ahead in rounds)
    lone = await _alone(options.seconds, 1, SIZE)
    crowd = await _alone(options.seconds, 1000, 64)
    submits, _ = await _submits(options.seconds, WRITERS)
    _, lone_us = await _submits(options.seconds, 1)
    raw_s, checked_s = await _recovery(options.entries)
    scale = 1_000_000 / options.entries
    held, grown = await _stalled()

    def median(name: str) -> float:
        return statistics.median(ours[name] for ours, _, _ in rounds)

    bare = statistics.median(bare for _, bare, _ in rounds)
    rows = [
        ("durable appends per second", f"{median('rate'):,.0f}", ""),
        ("the bare loop, same blocks", f"{bare:,.0f}", ""),
        ("of the bare loop", f"{ratio:.2f}", _bar(ratio >= RATIO_BAR, f"at least {RATIO_BAR:g}")),
        ("of one that writes zeros ahead too", f"{filled:.2f}", ""),
        ("records in a block", f"{median('batch'):.0f}", ""),
        ("CPU of an append", f"{median('cpu_us'):.1f} us", ""),
        ("p50 / p99 of an append", f"{median('p50_ms'):.2f} / {median('p99_ms'):.2f} ms", ""),
        ("a lone writer, p50 / p99", f"{lone['p50_ms']:.2f} / {lone['p99_ms']:.2f} ms", ""),
        (
            "1,000 writers of 64 bytes, p99",
            f"{crowd['rate']:,.0f}/s, {crowd['p99_ms']:.0f} ms",
            "",
        ),
        ("commits of the ledger per second", f"{submits:,.0f}", ""),
        ("CPU of a lone commit", f"{lone_us:.0f} us", ""),
        (
            "a million entries, replayed",
            f"{raw_s * scale:.1f} s",
            _bar(raw_s * scale < RECOVERY_BAR_S, f"under {RECOVERY_BAR_S:g} s"),
        ),
        ("the same from a checkpoint", f"{checked_s:.2f} s", ""),
        (
            "held / grown, a stalled disk",
            f"{held / 1e6:.0f} / {grown / 1e6:.0f} MB",
            _bar(grown < MEMORY_BAR * held, f"under {MEMORY_BAR:g} times"),
        ),
    ]
    print(f"{SIZE} bytes, {WRITERS} writers, {options.rounds} rounds of {options.seconds:g} s")
    for what, shown, bar in rows:
        print(f"  {what:<36}{shown:<20}{bar}")
    return 1 if options.check and any("MISSED" in bar for _, _, bar in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (2)")
    parser.add_argument("--entries", type=int, default=1_000_000, help="to recover (1000000)")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.entries = 3, 0.5, 100_000
    return options


def _bar(holds: bool, shown: str) -> str:
    return f"{shown}: {'holds' if holds else 'MISSED'}"


async def _round(seconds: float) -> tuple[dict[str, float], float, float]:
    """The log, the bare loop, the bare loop with zeros ahead; records per second each."""
    with tempfile.TemporaryDirectory() as folder:
        ours = await _appends(Path(folder), seconds, WRITERS, SIZE)
        size, batch = int(ours["block_bytes"]), ours["batch"]
        bare = _bare(Path(folder) / "bare", seconds, size, 0) * batch
        ahead = WalSettings().ahead_bytes
        filled = _bare(Path(folder) / "filled", seconds, size, ahead) * batch
    return ours, bare, filled


async def _appends(folder: Path, seconds: float, writers: int, size: int) -> dict[str, float]:
    runtime = RealRuntime("bench", data_dir=folder)
    tasks = TaskRunner(runtime.clock, runtime.random)
    settings = WalSettings(segment_bytes=1 << 30)
    wal = await open_wal(runtime.disk, runtime.clock, tasks, "wal", IDENTITY, settings)
    body = random.Random(1).randbytes(size)
    took: list[float] = []
    cpu = time.process_time()
    began = time.perf_counter()
    end = began + seconds

    async def write() -> None:
        now = time.perf_counter()
        while now < end:
            await wal.append(1, body)
            then, now = now, time.perf_counter()
            took.append(now - then)

    await asyncio.gather(*(write() for _ in range(writers)))
    lasted = time.perf_counter() - began
    cpu = time.process_time() - cpu
    counters = wal.counters
    await wal.close()
    await tasks.shutdown(5.0)
    await runtime.close()
    cuts = statistics.quantiles(took, n=100)
    return {
        "rate": len(took) / lasted,
        "batch": counters.records / counters.blocks,
        "block_bytes": counters.bytes / counters.blocks,
        "cpu_us": cpu / len(took) * 1e6,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
    }


def _bare(path: Path, seconds: float, size: int, ahead: int) -> float:
    """Blocks per second."""
    data = random.Random(2).randbytes(size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    count = offset = filled = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        offset += os.pwrite(descriptor, data, offset)
        if offset >= filled and ahead:
            filled = offset + os.pwrite(descriptor, bytes(ahead), offset)
        os.fdatasync(descriptor)
        count += 1
    lasted = time.perf_counter() - began
    os.close(descriptor)
    return count / lasted


async def _alone(seconds: float, writers: int, size: int) -> dict[str, float]:
    """Without anything to compare it with."""
    with tempfile.TemporaryDirectory() as folder:
        return await _appends(Path(folder), seconds, writers, size)


class Counting:
    """A machine that costs next to nothing."""

    version = 1

    def __init__(self) -> None:
        self.count = 0

    def apply(self, entry: Entry) -> bytes:
        self.count += 1
        return b""

    def capture(self) -> Counting:
        copy = Counting()
        copy.count = self.count
        return copy

    def slices(self) -> Iterator[bytes]:
        yield self.count.to_bytes(8, "little")

    def load(self, slices: Iterable[bytes]) -> None:
        self.count = int.from_bytes(b"".join(slices), "little")


async def _ledger(
    runtime: RealRuntime, machine: Counting, settings: LedgerSettings | None = None
) -> GroupLedger:
    """The ledger of a group of one."""
    return await open_group_ledger(
        runtime,
        TaskRunner(runtime.clock, runtime.random),
        machine,
        None,
        peers=(runtime.node,),
        timers=LAN,
        settings=settings,
        form_group=GroupId("bench"),
    )


async def _submits(seconds: float, writers: int) -> tuple[float, float]:
    """Commits per second of a group of one, and the CPU time of each in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = RealRuntime("bench", data_dir=Path(folder))
        ledger = await _ledger(runtime, Counting())
        count = 0
        cpu = time.process_time()
        end = time.perf_counter() + seconds

        async def write() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await ledger.submit(bytes(SIZE))
                count += 1

        await asyncio.gather(*(write() for _ in range(writers)))
        cpu = time.process_time() - cpu
        await ledger.close()
        await runtime.close()
    return count / seconds, cpu / count * 1e6


async def _recovery(entries: int) -> tuple[float, float]:
    """Seconds to open a ledger with so many entries: from the log alone, then from a
    checkpoint of them."""
    settings = LedgerSettings(checkpoint_entries=10**9, checkpoint_bytes=10**12)
    with tempfile.TemporaryDirectory() as folder:
        await _open(Path(folder), settings, 0)
        await _fill(Path(folder), entries, settings)
        # The better of two: other work on the machine only ever adds.
        raw_s = min(
            await _open(Path(folder), settings, entries),
            await _open(Path(folder), settings, entries, checkpoint=True),
        )
        checked_s = await _open(Path(folder), settings, entries)
    return raw_s, checked_s


async def _open(
    folder: Path, settings: LedgerSettings, entries: int, *, checkpoint: bool = False
) -> float:
    gc.collect()
    runtime = RealRuntime("bench", data_dir=folder)
    machine = Counting()
    began = time.perf_counter()
    ledger = await _ledger(runtime, machine, settings)
    took = time.perf_counter() - began
    if machine.count != entries:
        raise SystemExit(f"recovered {machine.count} entries of {entries}")
    if checkpoint:
        await ledger.snapshots.checkpoint()
    await ledger.close()
    await runtime.close()
    return took


async def _fill(folder: Path, count: int, settings: LedgerSettings) -> None:
    """Writes entries as the ledger does, those of one turn in one record, without waiting
    for each."""
    runtime = RealRuntime("bench", data_dir=folder)
    ledger = await _ledger(runtime, Counting(), settings)
    wal, core = ledger.durable_state.wal, ledger.replica.core
    wal.listen(_Deaf())
    encoder = msgspec.msgpack.Encoder()
    op, previous, fence = core.log.last, core.log.end(), Fence(0, 1)
    began_ms = int(ledger.group_ms())
    body = random.Random(3).randbytes(SIZE)
    left = count
    while left:
        entries: list[LogEntry] = []
        for _ in range(min(left, WRITERS)):
            op += 1
            now = began_ms + op // 10
            entry = make_entry(op, fence, now, Kind.COMMAND, body, previous=previous, version=1)
            previous = entry.checksum
            entries.append(entry)
        last = entries[-1]
        record = StepRecord(fence, fence, -1, tuple(entries), last.op, last.group_ms, 1)
        left -= len(entries)
        await wal.append(STEP, encoder.encode(record))
    await wal.close()
    await ledger.close()
    await runtime.close()


class _Deaf:
    def on_durable(self, lsn: int) -> None: ...
    def on_refused(self, from_lsn: int, error: Any) -> None: ...
    def on_failed(self, error: Any) -> None: ...


async def _stalled() -> tuple[int, int]:
    """Bytes that the log held, and by how much the process grew, while no sync returned
    and producers went on."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = RealRuntime("bench", data_dir=Path(folder))
        tasks = TaskRunner(runtime.clock, runtime.random)
        settings = WalSettings()
        wal = await open_wal(runtime.disk, runtime.clock, tasks, "wal", IDENTITY, settings)
        gc.collect()
        before = _resident_bytes()
        refused = 0
        for number in range(100_000):
            try:
                # No turn for the writer: as if the disk never answered.
                wal.accept(1, number.to_bytes(4, "little") * 1024)
            except WalBusy:
                refused += 1
        held = wal.waiting_bytes
        grown = _resident_bytes() - before
        if not refused or held > settings.max_waiting_bytes:
            raise SystemExit(f"{held} bytes are held, {refused} records were refused")
        await wal.close()
        await tasks.shutdown(5.0)
        await runtime.close()
    return held, grown


def _resident_bytes() -> int:
    """Now, not at the peak: that is behind us after a recovery of a million entries."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
