"""The data directory of a worker: the last boot, final records, and reports of running attempts.

    worker          the boot that uses this directory: machine, kernel boot, process
    outbox/HASH     a final record until its commit is acknowledged; one sync each
    live/NAME.N     the reports of a running attempt, appended and never synced
    live/NAME.counts  its counters, which its core process writes (`engine.process.counter_file`)

A new boot first makes sure that nothing of the former one runs any more (R6), and notes that
boot as dead. Then it finds the records that the former boot left: complete ones, and cut ones
from the appended reports.
A full disk never costs a record: the record stays in memory, and one log line says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.worker.share_host import Machine
from squall.engine.process.counter_file import SILENT_MAX_S, decode_counters
from squall.runtime.interfaces import Disk, File
from squall.runtime.log import Log
from squall.stats.attempt_record import AttemptRecord, SurvivingCounters
from squall.stats.record_builder import RecordBroken, RecordBuilder, decode_record, encode_record
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

BOOT = "worker"
OUTBOX = "outbox"
LIVE = "live"
MANAGERS = "managers.json"
COUNTERS = ".counts"
DEAD_BOOTS_MAX = 16
"""As many former boots as managers remember of a worker."""
LIVE_MAX_BYTES = 16 * 1024 * 1024
"""A larger file of reports is replaced by a new one that begins with the compact record."""
_LENGTH_BYTES = 4


class BootRecord(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    boot: str
    machine: str
    kernel_boot: str
    pid: int
    start: str
    """When its main process started, by the kernel's count: distinguishes it from a later process
    with the same pid."""
    dead: tuple[str, ...] = ()
    """Former boots whose processes are certainly gone, the last one first. A boot that dies before
    it registers must not take this proof with it, so the next one inherits the list."""


class OutboxEntry(msgspec.Struct, frozen=True, array_like=True):
    key: AttemptKey
    record: bytes


class LiveHead(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    key: AttemptKey
    record: bytes
    """The compact record so far, encoded."""
    warmup_s: float
    boot: str = ""
    """The boot of the worker that runs the attempt."""


class LiveJoin(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    joined_s: float


LiveEntry = LiveHead | LiveJoin | WindowReport | HealthReport | ErrorSample


class LeftRecord(msgspec.Struct, frozen=True):
    """A record that a former boot left."""

    key: AttemptKey
    data: bytes
    digest: str
    complete: bool


_encode = msgspec.msgpack.Encoder().encode
_entry = msgspec.msgpack.Decoder(LiveEntry)


class WorkerDirectory:
    """Reads and writes the data directory of one worker."""

    def __init__(self, disk: Disk, log: Log) -> None:
        self._disk = disk
        self._log = log
        self._boot = ""
        # The former boot, and when its processes were certainly dead by CLOCK_BOOTTIME; None if
        # that clock says nothing about it.
        self._reaped: tuple[str, float] | None = None
        self.disk_full = False
        self.dead_pid = 0
        """The main process of the former boot, if `open` made sure that it is dead; else 0."""

    async def open(
        self, node: str, boot: str, machine: Machine, dead_by: Callable[[], float]
    ) -> tuple[str, ...]:
        """Records this boot. Returns the former boots whose processes are certainly dead; an empty
        directory proves nothing, because another directory may be in use under the same name.
        The caller holds the lock of the directory. `dead_by`, called once the processes of the
        former boot are reaped, is when they were dead by CLOCK_BOOTTIME."""
        self._boot = boot
        former = await self._former()
        dead = former.dead if former is not None else ()
        is_new = former is not None and former.boot != boot
        if former is not None and is_new and await self._ended(former, node, boot, machine):
            dead = (former.boot, *dead)[:DEAD_BOOTS_MAX]
            self.dead_pid = former.pid
            if former.kernel_boot == machine.kernel_boot:
                self._reaped = former.boot, dead_by()
        record = BootRecord(
            node=node,
            boot=boot,
            machine=machine.machine,
            kernel_boot=machine.kernel_boot,
            pid=machine.pid,
            start=machine.start_of(machine.pid),
            dead=dead,
        )
        await self._disk.write_atomic(BOOT, _encode(record))
        await self._disk.make_directory(OUTBOX)
        await self._disk.make_directory(LIVE)
        await self._disk.sync_directory()
        return dead

    async def managers(self) -> list[str]:
        """host:port of the managers that the last boot knew."""
        try:
            return msgspec.json.decode(await self._disk.read(MANAGERS), type=list[str])
        except (OSError, msgspec.MsgspecError):
            return []

    async def store_managers(self, managers: Sequence[str]) -> None:
        """For the next boot: by then all managers that its flags name may be replaced."""
        if managers == await self.managers():
            return
        try:
            await self._disk.write_atomic(MANAGERS, msgspec.json.encode(managers))
        except OSError as error:
            self._log.error("managers_not_stored", error=error.strerror or str(error))

    async def left(self) -> list[LeftRecord]:
        """The records that former boots left, complete ones first. A cut record is left out if
        there is a complete one of the same attempt."""
        found: dict[AttemptKey, LeftRecord] = {}
        for name in await self._disk.list(OUTBOX):
            entry = await self._outbox_entry(f"{OUTBOX}/{name}")
            if entry is not None:
                digest = hashlib.sha256(entry.record).hexdigest()
                found[entry.key] = LeftRecord(entry.key, entry.record, digest, True)
        for name in await self._disk.list(LIVE):
            if name.endswith(COUNTERS):
                continue
            cut = await self._cut(name)
            known = None if cut is None else found.get(cut[0])
            if cut is None or (known is not None and (known.complete or _longer(known, cut[1]))):
                continue
            data = encode_record(cut[1])
            digest = hashlib.sha256(data).hexdigest()
            found[cut[0]] = LeftRecord(cut[0], data, digest, False)
        return list(found.values())

    async def _cut(self, name: str) -> tuple[AttemptKey, AttemptRecord] | None:
        """A cut record, with what the counters of its core process add to the reports."""
        live = await read_live(self._disk, f"{LIVE}/{name}")
        if live is None:
            return None
        counters = await self._counters(live.key)
        if counters is not None:
            if self._reaped is not None and self._reaped[0] == live.boot:
                silent_s = min(self._reaped[1] - counters.boot_s, SILENT_MAX_S)
                counters.dead_by_s = counters.at_s + max(silent_s, 0.0)
            live.builder.add_counters(counters)
        return live.key, live.builder.record

    async def _counters(self, key: AttemptKey) -> SurvivingCounters | None:
        try:
            return decode_counters(await self._disk.read(counters_path(key)))
        except OSError:
            return None

    async def forget_cuts(self) -> None:
        """Drops the cut records of former boots: the log has them, or they are of no use."""
        for name in await self._disk.list(LIVE):
            await self._remove(f"{LIVE}/{name}")

    async def keep(self, key: AttemptKey, record: bytes) -> None:
        """Makes a final record durable, or logs once that it could not."""
        name = f"{OUTBOX}/{_name(key)}"
        try:
            await self._disk.write_atomic(name, _encode(OutboxEntry(key, record)))
            self.disk_full = False
        except OSError as error:
            self.disk_full = True
            self._log.error(
                "record_not_stored",
                attempt=str(key),
                error=error.strerror or str(error),
                note="it is kept in memory; free some space in the data directory",
            )

    async def drop(self, key: AttemptKey) -> None:
        await self._remove(f"{OUTBOX}/{_name(key)}")

    def live(self, key: AttemptKey, record: AttemptRecord, warmup_s: float) -> LiveFile:
        return LiveFile(self._disk, self._log, key, record, warmup_s, self._boot)

    async def _former(self) -> BootRecord | None:
        try:
            data = await self._disk.read(BOOT)
        except FileNotFoundError:
            return None
        try:
            return msgspec.msgpack.decode(data, type=BootRecord)
        except msgspec.MsgspecError:
            self._log.warning("boot_record_broken", note="the former boot may still run: unproven")
            return BootRecord(node="", boot="", machine="", kernel_boot="", pid=0, start="")

    async def _ended(self, former: BootRecord, node: str, boot: str, machine: Machine) -> bool:
        """R6: another machine proves nothing; another kernel boot proves that all is dead; else the
        processes are killed and reaped."""
        if not former.machine or former.machine != machine.machine:
            return False
        if former.kernel_boot != machine.kernel_boot:
            return bool(former.kernel_boot and machine.kernel_boot)
        return await machine.end_former(node, boot, former.pid, former.start)

    async def _outbox_entry(self, path: str) -> OutboxEntry | None:
        try:
            entry = msgspec.msgpack.decode(await self._disk.read(path), type=OutboxEntry)
            decode_record(entry.record)
            return entry
        except (OSError, msgspec.MsgspecError, RecordBroken) as error:
            self._log.error("record_unreadable", path=path, error=str(error))
            return None

    async def _remove(self, path: str) -> None:
        try:
            await self._disk.remove(path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("not_removed", path=path, error=error.strerror or str(error))


class LiveFile:
    """Appends the reports of one running attempt to a file. It never delays or ends the attempt."""

    def __init__(
        self,
        disk: Disk,
        log: Log,
        key: AttemptKey,
        record: AttemptRecord,
        warmup_s: float,
        boot: str,
    ) -> None:
        self.key = key
        self._disk = disk
        self._log = log
        self._record = record
        self._warmup_s = warmup_s
        self._boot = boot
        self._number = 0
        self._file: File | None = None
        self._waiting: list[bytes] = []
        self._broken = False

    def add(self, entry: LiveEntry) -> None:
        if not self._broken:
            self._waiting.append(_framed(entry))

    async def flush(self) -> None:
        """Writes all entries, also those that arrive meanwhile. One caller at a time."""
        try:
            while self._waiting and not self._broken:
                waiting, self._waiting = self._waiting, []
                if self._file is None or self._file.size > LIVE_MAX_BYTES:
                    await self._begin()
                else:
                    await self._file.append(b"".join(waiting))
        except OSError as error:
            self._broken = True
            self._log.error(
                "reports_not_stored",
                attempt=str(self.key),
                error=error.strerror or str(error),
                note="if this worker dies, what the attempt did since then is unknown",
            )

    async def close(self) -> None:
        """Removes the files: the final record is in the outbox by now."""
        self._broken = True
        if self._file is not None:
            await self._file.close()
            await self._forget(self._path(self._number))
        await self._forget(counters_path(self.key))

    async def _begin(self) -> None:
        """Begins the file with the compact record, which holds the waiting reports too."""
        former, self._number = self._file, self._number + 1
        file = await self._disk.open(self._path(self._number))
        head = LiveHead(self.key, encode_record(self._record), self._warmup_s, self._boot)
        await file.append(_framed(head))
        self._file = file
        if former is not None:
            await former.close()
            await self._forget(self._path(self._number - 1))

    async def _forget(self, path: str) -> None:
        try:
            await self._disk.remove(path)
        except OSError:
            return

    def _path(self, number: int) -> str:
        return f"{LIVE}/{_name(self.key)}.{number}"


class LiveRecord(NamedTuple):
    """The cut record of a file of reports."""

    key: AttemptKey
    boot: str
    builder: RecordBuilder


async def read_live(disk: Disk, path: str) -> LiveRecord | None:
    """Reads a file of reports; a torn end is left out."""
    try:
        data = await disk.read(path)
    except OSError:
        return None
    head: LiveHead | None = None
    builder: RecordBuilder | None = None
    at = 0
    while at + _LENGTH_BYTES <= len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        try:
            entry = _entry.decode(data[at + _LENGTH_BYTES : end])
            if isinstance(entry, LiveHead):
                head = entry
                builder = RecordBuilder(decode_record(entry.record), warmup_s=entry.warmup_s)
        except (msgspec.MsgspecError, RecordBroken):
            break
        if isinstance(entry, LiveJoin) and builder is not None:
            builder.record.joined_s = entry.joined_s
        elif isinstance(entry, WindowReport | HealthReport | ErrorSample) and builder is not None:
            builder.add(entry)
        at = end
    if head is None or builder is None:
        return None
    return LiveRecord(head.key, head.boot, builder)


def _framed(entry: LiveEntry) -> bytes:
    body = _encode(entry)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def counters_path(key: AttemptKey) -> str:
    return f"{LIVE}/{_name(key)}{COUNTERS}"


def _name(key: AttemptKey) -> str:
    return hashlib.sha256(str(key).encode()).hexdigest()[:32]


def _longer(known: LeftRecord, other: AttemptRecord) -> bool:
    return decode_record(known.data).sequence >= other.sequence
