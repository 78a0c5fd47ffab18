"""Unpacked bundles: complete or absent, bounded, never removed under a user."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from squall.engine.process.bundle_cache import BundleCache


def add(cache: BundleCache, name: str, files: dict[str, bytes]) -> None:
    asyncio.run(cache.add(name, files))


def test_a_folder_holds_its_files(tmp_path: Path) -> None:
    cache = BundleCache(tmp_path / "bundles")
    assert not cache.has("a")
    add(cache, "a", {"flow.py": b"x", "data/users.csv": b"y"})
    root = cache.use("a")
    assert cache.has("a") and (root / "data/users.csv").read_bytes() == b"y"
    add(cache, "a", {"flow.py": b"other"})
    assert (root / "flow.py").read_bytes() == b"x"


def test_a_folder_that_could_not_be_written_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BundleCache(tmp_path / "bundles")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            add(cache, "a", {"flow.py": b"x"})
    assert not cache.has("a") and not list((tmp_path / "bundles").iterdir())
    add(cache, "a", {"flow.py": b"x"})
    assert cache.has("a")


def test_the_least_recently_used_go_first_and_what_is_used_stays(tmp_path: Path) -> None:
    cache = BundleCache(tmp_path, folders_max=2)
    for number, name in enumerate("abc"):
        add(cache, name, {"flow.py": b"x"})
        os.utime(tmp_path / name, (number, number))
        if name == "a":
            cache.use("a")
            os.utime(tmp_path / "a", (0, 0))
    add(cache, "d", {"flow.py": b"x"})
    assert cache.has("a") and cache.has("d") and not cache.has("b")
    cache.release("a")
    os.utime(tmp_path / "a", (0, 0))
    add(cache, "e", {"flow.py": b"x"})
    assert not cache.has("a") and cache.has("e")


def test_the_size_is_bounded(tmp_path: Path) -> None:
    cache = BundleCache(tmp_path, bytes_max=250)
    for number, name in enumerate("abc"):
        add(cache, name, {"flow.py": b"x" * 100})
        os.utime(tmp_path / name, (number, number))
    assert cache.has("c") and not cache.has("a")
