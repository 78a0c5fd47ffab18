"""Bundles: whatever goes in comes out, the same content is the same archive, and no
archive gets a file out of its folder."""

from __future__ import annotations

import hashlib
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.errors import ConfigError
from squall.cluster.protocol.bundle import MAGIC, BundleBroken, make_bundle, safe_path, unpack
from squall.cluster.protocol.submission import BundleFile, BundleManifest

NAMES = st.text(st.sampled_from("abcxyz._-é 1"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..") and name.isprintable()
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
FILES = st.dictionaries(PATHS, st.binary(max_size=200), max_size=8).filter(
    lambda files: (
        not any(other.startswith(f"{path}/") for path in files for other in files if other != path)
    )
)


@given(FILES, st.lists(st.sampled_from(["numpy", "httpx"])), st.randoms())
def test_what_goes_in_comes_out_and_the_order_does_not_matter(files, requirements, random) -> None:
    bundle = make_bundle(files, entry="", python="3.11", requirements=requirements)
    shuffled = list(files.items())
    random.shuffle(shuffled)
    again = make_bundle(
        dict(shuffled), entry="", python="3.11", requirements=reversed(requirements)
    )
    assert again == bundle
    manifest, unpacked = unpack(bundle.data)
    assert unpacked == files
    assert manifest == bundle.manifest
    assert [file.size for file in manifest.files] == [len(files[f.path]) for f in manifest.files]


@given(FILES.filter(bool), FILES.filter(bool))
def test_other_content_has_another_name(one, two) -> None:
    digests = {make_bundle(files, entry="", python="3.11").digest for files in (one, two)}
    assert len(digests) == (1 if one == two else 2)


@given(FILES, st.data())
def test_any_change_of_the_bytes_is_noticed(files, data) -> None:
    archive = bytearray(make_bundle(files, entry="", python="3.11").data)
    place = data.draw(st.integers(0, len(archive) - 1))
    archive[place] ^= data.draw(st.integers(1, 255))
    try:
        manifest, found = unpack(bytes(archive))
    except BundleBroken:
        return
    # Deflate has bits that mean nothing; then the content must be what it was.
    assert found == files and [file.path for file in manifest.files] == sorted(files)


@given(FILES, st.integers(0, 400))
def test_an_archive_that_was_cut_is_refused(files, length) -> None:
    archive = make_bundle(files, entry="", python="3.11").data
    if length < len(archive):
        with pytest.raises(BundleBroken):
            unpack(archive[:length])
    with pytest.raises(BundleBroken):
        unpack(archive + b"x")


def forged(files: list[tuple[str, bytes]], **changes: object) -> bytes:
    """An archive with the table that an attacker wants."""
    table = BundleManifest(
        entry=str(changes.get("entry", "")),
        python="3.11",
        files=tuple(
            BundleFile(
                path,
                str(changes.get("sha256", hashlib.sha256(data).hexdigest())),
                int(changes.get("size", len(data))),
            )
            for path, data in files
        ),
    )
    encoded = msgspec.msgpack.encode(table)
    body = len(encoded).to_bytes(4, "big") + encoded + b"".join(data for _, data in files)
    return MAGIC + zlib.compress(body)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "a/",
        "",
        ".",
        "a/./b",
        "C:/x",
        "a\\..\\b",
        "a\nb",
    ],
)
def test_a_path_that_leaves_the_folder_is_refused(path) -> None:
    assert not safe_path(path)
    with pytest.raises(BundleBroken):
        unpack(forged([(path, b"x")]))
    with pytest.raises(ConfigError):
        make_bundle({path: b"x"}, entry="", python="3.11")


@pytest.mark.parametrize(
    "archive",
    [
        forged([("a", b"1"), ("a", b"2")]),
        forged([("b", b"1"), ("a", b"2")]),
        forged([("a", b"1"), ("a/b", b"2")]),
        forged([("a", b"1")], size=-1),
        forged([("a", b"1")], size=2),
        forged([("a", b"1")], size=10**12),
        forged([("a", b"1")], entry="b"),
        forged([("a", b"1")], sha256=hashlib.sha256(b"2").hexdigest()),
        b"",
        b"SQB1",
        b"PK\x03\x04",
        MAGIC + zlib.compress(b""),
        MAGIC + zlib.compress((1 << 31).to_bytes(4, "big")),
        MAGIC + zlib.compress(b"\0\0\0\1x"),
    ],
)
def test_a_table_that_lies_is_refused(archive) -> None:
    with pytest.raises(BundleBroken):
        unpack(archive)


def test_a_bomb_is_not_unpacked_beyond_the_limit() -> None:
    with pytest.raises(BundleBroken, match="more than"):
        unpack(MAGIC + zlib.compress(bytes(40_000_000)), max_bytes=1_000_000)


def test_too_large_a_bundle_names_the_largest_files() -> None:
    files = {"shop.py": b"x" * 10, "users.csv": bytes(300_000), "a.bin": bytes(200_000)}
    with pytest.raises(ConfigError, match=r"users\.csv 0\.3 MB, a\.bin 0\.2 MB, shop\.py 10 bytes"):
        make_bundle(files, entry="shop.py", python="3.11", max_bytes=400_000)
    make_bundle(files, entry="shop.py", python="3.11", max_bytes=500_010)


def test_the_file_to_run_is_in_the_bundle() -> None:
    with pytest.raises(ConfigError, match=r"shop\.py"):
        make_bundle({"other.py": b""}, entry="shop.py", python="3.11")
