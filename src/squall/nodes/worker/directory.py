"""What a worker keeps on disk: who ran here last, final records, and records that grow.

    worker          the boot that uses this directory: machine, kernel boot, process
    outbox/HASH     a final record until its commit is acknowledged; one sync each
    live/NAME.N     the reports of a running attempt, appended and never synced

A new boot first makes sure that nothing of the former one runs any more, and then finds
the records that it left: complete ones, and cuts made of what had been appended. A disk
that is full never costs a record: it stays in memory, and one line says so.
"""

from __future__ import annotations

import hashlib

import msgspec

from squall.nodes.identity import AttemptKey
from squall.nodes.worker.host import Machine
from squall.runtime.interfaces import Disk, File
from squall.runtime.log import Log
from squall.stats.record import AttemptRecord
from squall.stats.record_builder import RecordBroken, RecordBuilder, decode_record, encode_record
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

BOOT = "worker"
OUTBOX = "outbox"
LIVE = "live"
LIVE_MAX_BYTES = 16 * 1024 * 1024
"""A file of reports that has grown beyond this is begun anew with the compact record."""
_LENGTH_BYTES = 4


class BootRecord(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    boot: str
    machine: str
    kernel_boot: str
    pid: int
    start: str
    """When its main process started, as the kernel counts."""


class OutboxEntry(msgspec.Struct, frozen=True, array_like=True):
    key: AttemptKey
    record: bytes


class LiveHead(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    key: AttemptKey
    record: bytes
    """The compact record so far, encoded."""
    warmup_s: float


class LiveJoin(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    joined_s: float


LiveEntry = LiveHead | LiveJoin | WindowReport | HealthReport | ErrorSample


class Left(msgspec.Struct, frozen=True):
    """A record of a former boot."""

    key: AttemptKey
    data: bytes
    digest: str
    complete: bool


_encode = msgspec.msgpack.Encoder().encode
_entry = msgspec.msgpack.Decoder(LiveEntry)


class WorkerDirectory:
    def __init__(self, disk: Disk, log: Log) -> None:
        self._disk = disk
        self._log = log
        self.disk_full = False

    async def open(self, node: str, boot: str, machine: Machine) -> bool:
        """Call it with the directory's lock held. Whether every process of the former boot
        is dead for certain."""
        former = await self._former()
        proven = True
        if former is not None and former.boot != boot:
            proven = await self._ended(former, node, boot, machine)
        record = BootRecord(
            node=node,
            boot=boot,
            machine=machine.machine,
            kernel_boot=machine.kernel_boot,
            pid=machine.pid,
            start=machine.start_of(machine.pid),
        )
        await self._disk.write_atomic(BOOT, _encode(record))
        await self._disk.make_directory(OUTBOX)
        await self._disk.make_directory(LIVE)
        await self._disk.sync_directory()
        return proven

    async def left(self) -> list[Left]:
        """What former boots left, the complete ones first; a cut only where no complete
        record of the same attempt is there."""
        found: dict[AttemptKey, Left] = {}
        for name in await self._disk.list(OUTBOX):
            entry = await self._outbox_entry(f"{OUTBOX}/{name}")
            if entry is not None:
                digest = hashlib.sha256(entry.record).hexdigest()
                found[entry.key] = Left(entry.key, entry.record, digest, True)
        for name in await self._disk.list(LIVE):
            cut = await read_live(self._disk, f"{LIVE}/{name}")
            known = None if cut is None else found.get(cut[0])
            if cut is None or (known is not None and (known.complete or _longer(known, cut[1]))):
                continue
            data = encode_record(cut[1])
            digest = hashlib.sha256(data).hexdigest()
            found[cut[0]] = Left(cut[0], data, digest, False)
        return list(found.values())

    async def forget_cuts(self) -> None:
        """Cuts of former boots were registered, or are of no use."""
        for name in await self._disk.list(LIVE):
            await self._remove(f"{LIVE}/{name}")

    async def keep(self, key: AttemptKey, record: bytes) -> None:
        """Durable when it returns, or told once that it could not be."""
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
        return LiveFile(self._disk, self._log, key, record, warmup_s)

    async def _former(self) -> BootRecord | None:
        try:
            data = await self._disk.read(BOOT)
        except FileNotFoundError:
            return None
        try:
            return msgspec.msgpack.decode(data, type=BootRecord)
        except msgspec.MsgspecError:
            self._log.warning("boot_record_broken", note="the former boot is called unproven")
            return BootRecord(node="", boot="", machine="", kernel_boot="", pid=0, start="")

    async def _ended(self, former: BootRecord, node: str, boot: str, machine: Machine) -> bool:
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
    """The reports of one running attempt. Nothing here may hold up or end the attempt."""

    def __init__(
        self, disk: Disk, log: Log, key: AttemptKey, record: AttemptRecord, warmup_s: float
    ) -> None:
        self._disk = disk
        self._log = log
        self._key = key
        self._record = record
        self._warmup_s = warmup_s
        self._number = 0
        self._file: File | None = None
        self._waiting: list[bytes] = []
        self._broken = False

    def add(self, entry: LiveEntry) -> None:
        if not self._broken:
            self._waiting.append(_framed(entry))

    async def flush(self) -> None:
        if self._broken or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            if self._file is None or self._file.size > LIVE_MAX_BYTES:
                await self._begin()
            else:
                await self._file.append(b"".join(waiting))
        except OSError as error:
            self._broken = True
            self._log.error(
                "reports_not_stored",
                attempt=str(self._key),
                error=error.strerror or str(error),
                note="should this worker die, what it did since is unknown",
            )

    async def close(self) -> None:
        """The final record is kept elsewhere by now."""
        self._broken = True
        if self._file is not None:
            await self._file.close()
            await self._forget(self._number)

    async def _begin(self) -> None:
        """The record holds everything that waited too."""
        former, self._number = self._file, self._number + 1
        file = await self._disk.open(self._path(self._number))
        await file.append(_framed(LiveHead(self._key, encode_record(self._record), self._warmup_s)))
        self._file = file
        if former is not None:
            await former.close()
            await self._forget(self._number - 1)

    async def _forget(self, number: int) -> None:
        try:
            await self._disk.remove(self._path(number))
        except OSError:
            return

    def _path(self, number: int) -> str:
        return f"{LIVE}/{_name(self._key)}.{number}"


async def read_live(disk: Disk, path: str) -> tuple[AttemptKey, AttemptRecord] | None:
    """The cut record that a file of reports gives; a torn end is left out."""
    try:
        data = await disk.read(path)
    except OSError:
        return None
    key: AttemptKey | None = None
    builder: RecordBuilder | None = None
    at = 0
    while at + _LENGTH_BYTES <= len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        try:
            entry = _entry.decode(data[at + _LENGTH_BYTES : end])
            if isinstance(entry, LiveHead):
                key = entry.key
                builder = RecordBuilder(decode_record(entry.record), warmup_s=entry.warmup_s)
        except (msgspec.MsgspecError, RecordBroken):
            break
        if isinstance(entry, LiveJoin) and builder is not None:
            builder.record.joined_s = entry.joined_s
        elif isinstance(entry, WindowReport | HealthReport | ErrorSample) and builder is not None:
            builder.add(entry)
        at = end
    return None if key is None or builder is None else (key, builder.record)


def _framed(entry: LiveEntry) -> bytes:
    body = _encode(entry)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def _name(key: AttemptKey) -> str:
    return hashlib.sha256(str(key).encode()).hexdigest()[:32]


def _longer(known: Left, other: AttemptRecord) -> bool:
    return decode_record(known.data).sequence >= other.sequence
