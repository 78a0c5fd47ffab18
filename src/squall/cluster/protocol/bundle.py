"""A bundle: the author's file, its modules and data files as one archive, named by its hash.

    magic "SQB1" | deflate( length of the table, table in MessagePack, contents in its order )

The table lists path, SHA-256 and size of every file in order of the path, and nothing
that differs between two machines with the same files: no times, owners or modes. So the
same content is the same archive, byte for byte.

An archive that arrives is not trusted: `unpack` returns files only if the whole archive matches
its table, no path leaves the folder, and the sizes are within the limits before anything is
stored. There are no links, because the format has none.

Pure: the caller reads and writes files.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from squall.api.errors import ConfigError, SquallError
from squall.cluster.protocol.submission import BUNDLE_MAX_BYTES, BundleFile, BundleManifest
from squall.cluster.protocol.submission_limits import FILES_MAX

MAGIC = b"SQB1"
PATH_MAX_BYTES = 512
LARGEST_SHOWN = 3
_LENGTH_BYTES = 4
_TABLE_MAX_BYTES = 8 * 1024 * 1024
_LEVEL = 6


class BundleBroken(SquallError):
    """The archive does not match its table, or a path would leave its folder."""


class Bundle(NamedTuple):
    data: bytes
    digest: str
    """SHA-256 of `data`, in hex: the name of its blob."""
    manifest: BundleManifest


def make_bundle(
    files: Mapping[str, bytes],
    *,
    entry: str,
    python: str,
    requirements: Iterable[str] = (),
    environment: Iterable[str] = (),
    max_bytes: int = BUNDLE_MAX_BYTES,
) -> Bundle:
    """Raises ConfigError, which names the largest files, if a limit is exceeded."""
    ordered = sorted(files)
    for path in ordered:
        size = len(path.encode("utf-8", "replace"))
        if size > PATH_MAX_BYTES:
            raise ConfigError(
                f"{path[:40]}... cannot be part of a bundle: its path has {size:,} bytes; "
                f"at most {PATH_MAX_BYTES} are allowed"
            )
        if not safe_path(path):
            raise ConfigError(f"{path!r} cannot be part of a bundle: not a plain relative path")
    _check_sizes(files, max_bytes)
    if entry and entry not in files:
        raise ConfigError(f"{entry} is not among the files of the bundle")
    manifest = BundleManifest(
        entry=entry,
        python=python,
        files=tuple(
            BundleFile(path, hashlib.sha256(files[path]).hexdigest(), len(files[path]))
            for path in ordered
        ),
        requirements=tuple(sorted(set(requirements))),
        environment=tuple(sorted(set(environment))),
    )
    table = msgspec.msgpack.encode(manifest)
    packer = zlib.compressobj(_LEVEL)
    parts = [MAGIC, packer.compress(len(table).to_bytes(_LENGTH_BYTES, "big") + table)]
    parts += [packer.compress(files[path]) for path in ordered]
    parts.append(packer.flush())
    data = b"".join(parts)
    return Bundle(data, hashlib.sha256(data).hexdigest(), manifest)


def unpack(
    data: bytes, *, max_bytes: int = BUNDLE_MAX_BYTES
) -> tuple[BundleManifest, dict[str, bytes]]:
    """Returns the table and the files, all checked; raises BundleBroken otherwise."""
    content = _inflated(data, max_bytes + _TABLE_MAX_BYTES)
    length = int.from_bytes(content[:_LENGTH_BYTES], "big")
    end = _LENGTH_BYTES + length
    if len(content) < _LENGTH_BYTES or length > _TABLE_MAX_BYTES or end > len(content):
        raise BundleBroken("a bundle without a table of contents")
    try:
        manifest = msgspec.msgpack.decode(content[_LENGTH_BYTES:end], type=BundleManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BundleBroken("the table of contents of a bundle cannot be read") from None
    check_table(manifest, max_bytes)
    if end + sum(file.size for file in manifest.files) != len(content):
        raise BundleBroken("the bundle is shorter or longer than its table of contents says")
    files: dict[str, bytes] = {}
    for file in manifest.files:
        held = content[end : end + file.size]
        end += file.size
        if hashlib.sha256(held).hexdigest() != file.sha256:
            raise BundleBroken(f"{file.path} in the bundle has another hash than its table says")
        files[file.path] = held
    return manifest, files


def check_table(manifest: BundleManifest, max_bytes: int = BUNDLE_MAX_BYTES) -> None:
    """Raises BundleBroken, with what is wrong, for a table that `make_bundle` cannot have made."""
    paths = [file.path for file in manifest.files]
    if len(paths) > FILES_MAX:
        raise BundleBroken(f"a bundle of {len(paths):,} files; at most {FILES_MAX:,} are allowed")
    for file in manifest.files:
        if not safe_path(file.path):
            raise BundleBroken(f"{file.path!r} in the bundle is not a plain relative path")
        if file.size < 0:
            raise BundleBroken(f"{file.path} in the bundle has a negative size")
    if paths != sorted(set(paths)):
        raise BundleBroken("the files of the bundle are not in order, or listed twice")
    folders = {"/".join(path.split("/")[:depth]) for path in paths for depth in _depths(path)}
    if not folders.isdisjoint(paths):
        raise BundleBroken("a path of the bundle is both a file and a folder")
    total = sum(file.size for file in manifest.files)
    if total > max_bytes:
        raise BundleBroken(
            f"the files of the bundle have {total:,} bytes; at most {max_bytes:,} are allowed"
        )
    if manifest.entry and manifest.entry not in paths:
        raise BundleBroken(f"{manifest.entry} is to be run and not in the bundle")


def safe_path(path: str) -> bool:
    """Whether a path is relative, without steps up, empty parts, drive letters or control
    characters."""
    parts = path.split("/")
    return (
        0 < len(path.encode("utf-8", "replace")) <= PATH_MAX_BYTES
        and path.isprintable()
        and not any(part in ("", ".", "..") for part in parts)
        and "\\" not in path
        and ":" not in parts[0]
    )


def _depths(path: str) -> range:
    return range(1, path.count("/") + 1)


def _inflated(data: bytes, limit: int) -> bytes:
    if not data.startswith(MAGIC):
        raise BundleBroken("this is not a bundle")
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data[len(MAGIC) :], limit + 1)
    except zlib.error:
        raise BundleBroken("the bundle is damaged") from None
    if len(content) > limit or unpacker.unconsumed_tail:
        raise BundleBroken(f"the bundle unpacks to more than {limit} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise BundleBroken("the bundle ends too early, or goes on after its end")
    return content


def _check_sizes(files: Mapping[str, bytes], max_bytes: int) -> None:
    if len(files) > FILES_MAX:
        raise ConfigError(f"the bundle has {len(files):,} files; at most {FILES_MAX:,} are allowed")
    total = sum(map(len, files.values()))
    if total <= max_bytes:
        return
    largest = sorted(files, key=lambda path: (-len(files[path]), path))[:LARGEST_SHOWN]
    shown = ", ".join(f"{path} {_megabytes(len(files[path]))}" for path in largest)
    raise ConfigError(
        f"the file and what it needs have {_megabytes(total)}, a bundle at most "
        f"{_megabytes(max_bytes)}; the largest: {shown}"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} bytes"
