"""What only a real disk has: failing calls, threads, descriptors, other processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from squall.runtime.log import Log, MemorySink
from squall.runtime.real.disk import RealDisk, warn_of_open_directory
from squall.runtime.real.runtime import RealClock

pytestmark = pytest.mark.asyncio


def descriptors(folder: Path) -> int:
    """Those of files in the folder; other tests of this process may leave some to the collector."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
    return found


async def test_a_failed_sync_poisons_the_file_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    file = await disk.open("wal")
    await file.append(b"promised")

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "the medium is gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        with pytest.raises(OSError, match="the medium is gone"):
            await file.sync()
    # The kernel would say yes to a second sync, although the pages are lost.
    for call in (file.sync(), file.append(b"more"), file.truncate(0)):
        with pytest.raises(OSError, match="its content is unknown") as caught:
            await call
        assert caught.value.errno == errno.EIO
    await file.close()
    await disk.close()


async def test_an_append_that_fails_halfway_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    file = await disk.open("wal")
    await file.append(b"before")
    write = os.pwrite
    calls = 0

    def fills_up(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return write(descriptor, bytes(data)[:3], offset)
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fills_up)
        with pytest.raises(OSError, match="no space left"):
            await file.append(b"too much")
    assert file.size == 6
    assert await disk.read("wal") == b"before"
    await file.append(b" after")
    assert await disk.read("wal") == b"before after"
    await disk.close()


async def test_an_append_that_cannot_be_taken_back_poisons_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    file = await disk.open("wal")

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fails)
        patched.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="gone"):
            await file.append(b"x")
    with pytest.raises(OSError, match="an append failed halfway"):
        await file.append(b"x")
    await disk.close()


async def test_an_atomic_write_that_fails_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    await disk.write_atomic("vote", b"old")

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        with pytest.raises(OSError, match="gone"):
            await disk.write_atomic("vote", b"new")
    assert await disk.read("vote") == b"old"
    assert os.listdir(tmp_path) == ["vote"]
    await disk.close()


async def test_an_atomic_write_is_synced_before_it_is_named_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    order: list[str] = []
    fdatasync, fsync, replace = os.fdatasync, os.fsync, Path.replace

    def noted_replace(self: Path, target: Path) -> Path:
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fdatasync", lambda fd: (order.append("content"), fdatasync(fd)))
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("directory"), fsync(fd)))
    monkeypatch.setattr(Path, "replace", noted_replace)
    await disk.write_atomic("vote", b"x")
    assert order == ["content", "rename", "directory"]
    await disk.close()


async def test_a_cancelled_caller_does_not_disturb_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    file = await disk.open("wal")
    entered, go_on = threading.Event(), threading.Event()
    write = os.pwrite

    def slow(descriptor: int, data: bytes, offset: int) -> int:
        entered.set()
        go_on.wait(20)
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    first = asyncio.ensure_future(file.append(b"first"))
    await asyncio.to_thread(entered.wait, 20)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(file.append(b"second"))
    await asyncio.sleep(0.01)
    assert not second.done()
    go_on.set()
    await second
    assert await disk.read("wal") == b"firstsecond"
    await disk.close()


async def test_a_cancelled_open_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)
    await disk.write_atomic("warm", b"")
    before = descriptors(tmp_path)
    entered, go_on = threading.Event(), threading.Event()
    fstat = os.fstat

    def slow(descriptor: int) -> os.stat_result:
        entered.set()
        go_on.wait(20)
        return fstat(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", slow)
        opening = asyncio.ensure_future(disk.open("wal"))
        await asyncio.to_thread(entered.wait, 20)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()
        while descriptors(tmp_path) > before:
            await asyncio.sleep(0.001)
    await disk.close()


async def test_a_reservation_takes_space_and_no_length(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    file = await disk.open("wal", preallocate=1 << 20)
    found = (tmp_path / "wal").stat()
    assert found.st_size == 0
    assert found.st_blocks * 512 >= 1 << 20
    await file.append(b"x")
    assert await disk.size("wal") == 1
    await disk.close()


async def test_a_lock_holds_against_other_processes_and_ends_with_its_own(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path; from squall.runtime.real.disk import RealDisk\n"
        "lock = RealDisk(Path(sys.argv[1])).lock()\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    disk = RealDisk(tmp_path)
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match="another process holds this data directory"):
            disk.lock()
        other.kill()
    disk.lock().release()
    await disk.close()


async def test_reserved_names_cannot_be_reached(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    for path in (".squall-lock", "a/.squall-partial-x", "a\0b"):
        with pytest.raises(OSError, match="not a path inside"):
            await disk.read(path)
    await disk.close()


async def test_after_close_no_thread_and_no_descriptor_is_left(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    disk = RealDisk(tmp_path)
    for wrong in ("../x", "no/such/folder"):
        with pytest.raises(OSError):
            await disk.open(wrong)
    files = [await disk.open(f"f{number}") for number in range(8)]
    await asyncio.gather(*(file.append(b"x" * 1000) for file in files))
    disk.lock()
    unawaited = asyncio.ensure_future(files[0].sync())
    await asyncio.sleep(0)
    await disk.close()
    await unawaited
    assert set(threading.enumerate()) <= threads
    assert descriptors(tmp_path) == 0
    assert disk.open_count == 0


async def test_a_new_data_directory_is_private_and_an_open_one_is_reported(tmp_path: Path) -> None:
    sink = MemorySink()
    log = Log(sink, RealClock())
    made = tmp_path / "made"
    RealDisk(made)
    assert made.stat().st_mode & 0o777 == 0o700
    warn_of_open_directory(log, made)
    assert sink.records == []
    made.chmod(0o755)
    RealDisk(made)
    warn_of_open_directory(log, made)
    (record,) = sink.records
    assert record.event == "data_directory_open" and record.fields["mode"] == "755"
    assert f"chmod 700 {made}" in str(record.fields["note"])
    assert made.stat().st_mode & 0o777 == 0o755, "it may be a mount: it is left as it is"
