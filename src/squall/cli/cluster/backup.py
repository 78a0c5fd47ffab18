"""`squall backup DIR TO` and `squall restore BACKUP DIR`: the log and blobs of a manager or gate.

A backup is a checked copy of the ledger: every file with its SHA-256, and the whole log is read
afterwards. The node may run meanwhile: checkpoints and blobs never change, and only the last
segment of the log grows, so that the copy looks like a log after a crash.

A restored directory never joins its former group, because it does not know what it promised since
the backup. It becomes a new group of one, as with `squall recover`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from argparse import Namespace
from pathlib import Path

import msgspec

from squall.api.errors import SquallError, UsageError
from squall.cli.cluster.recover import LEDGER, lines_of, recover
from squall.cli.cluster.wal import execute as verify_log
from squall.cluster.ledger.files.checkpoints import PARTIAL
from squall.reporting.number_format import plural
from squall.reporting.text.standard_streams import print_or_drop

MANIFEST = "backup.json"
TRIES = 5
CHUNK = 1 << 20
PARTS = ("storage", "checkpoints", "wal", "blobs")
"""Copied in this order: a checkpoint continues in the log, and both name blobs."""


class BackupManifest(msgspec.Struct):
    files: dict[str, str]
    """Path below the backup, SHA-256."""
    format: int = 1


class BackupFailed(SquallError):
    """The copy cannot be trusted; the original is unchanged."""


def execute(arguments: Namespace) -> int:
    if arguments.command == "backup":
        return _backup(Path(arguments.directory), Path(arguments.to))
    return _restore(Path(arguments.backup), Path(arguments.directory))


def _backup(folder: Path, to: Path) -> int:
    if not (folder / LEDGER / "storage").is_file():
        raise UsageError(f"there is no data directory of a manager or gate in {folder}")
    _check_empty(to)
    manifest = _copied(folder, to)
    _check_log(to)
    data = msgspec.json.format(msgspec.json.encode(manifest))
    (to / MANIFEST).write_bytes(data)
    print_or_drop(f"backup of {plural(len(manifest.files), 'file')} in {to}, checked")
    return 0


def _restore(backup: Path, folder: Path) -> int:
    manifest = _manifest(backup)
    _check_empty(folder)
    for name, digest in sorted(manifest.files.items()):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if _copy(backup / name, target) != digest:
            shutil.rmtree(folder)
            raise BackupFailed(
                f"{backup / name} differs from what was backed up; nothing was restored"
            )
    _check_log(folder)
    print_or_drop("\n".join(lines_of(asyncio.run(recover(folder)))))
    return 0


def _copied(folder: Path, to: Path) -> BackupManifest:
    """A running node may delete files that it no longer needs: then the copy starts again."""
    for _ in range(TRIES):
        try:
            return _copy_all(folder, to)
        except FileNotFoundError:
            shutil.rmtree(to, ignore_errors=True)
    raise BackupFailed(f"{folder} changed during each of {TRIES} copies; try again later")


def _copy_all(folder: Path, to: Path) -> BackupManifest:
    files: dict[str, str] = {}
    for part in PARTS:
        for path in _files(folder / LEDGER / part):
            if path.is_file() and not path.name.endswith((PARTIAL, ".tmp")):
                name = str(path.relative_to(folder))
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                files[name] = _copy(path, to / name)
    return BackupManifest(files)


def _files(part: Path) -> list[Path]:
    return sorted(part.iterdir()) if part.is_dir() else [part] if part.is_file() else []


def _copy(source: Path, target: Path) -> str:
    """Copies durably; returns the SHA-256 of the written file, read back."""
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, CHUNK)
        writing.flush()
        os.fsync(writing.fileno())
    hashed = hashlib.sha256()
    with target.open("rb") as reading:
        while piece := reading.read(CHUNK):
            hashed.update(piece)
    return hashed.hexdigest()


def _manifest(backup: Path) -> BackupManifest:
    try:
        return msgspec.json.decode((backup / MANIFEST).read_bytes(), type=BackupManifest)
    except OSError:
        raise UsageError(f"{backup} is no backup: it has no {MANIFEST}") from None
    except msgspec.DecodeError as error:
        raise BackupFailed(f"{backup / MANIFEST}: {error}") from None


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty: name an empty or new directory")
    folder.mkdir(parents=True, exist_ok=True)


def _check_log(folder: Path) -> None:
    """Blobs are named by their hash, and the log has checksums."""
    blobs = folder / LEDGER / "blobs"
    for path in sorted(blobs.iterdir()) if blobs.is_dir() else []:
        if len(path.name) == 64 and _digest(path) != path.name:
            raise BackupFailed(f"{path}: the blob is damaged")
    if verify_log(Namespace(directory=str(folder), wal_command="verify", records=None)):
        raise BackupFailed(f"the log in {folder} is damaged")


def _digest(path: Path) -> str:
    with path.open("rb") as reading:
        return hashlib.file_digest(reading, "sha256").hexdigest()
