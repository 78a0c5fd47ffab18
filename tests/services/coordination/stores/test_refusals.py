"""Stores that are refused or warned about at the start, each with its reason."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from squall.api.errors import ExitCode
from squall.coordination.errors import CoordinationError
from squall.coordination.store_errors import StoreUnavailableError, UnsafeStoreError
from squall.coordination.stores.open import open_store
from squall.coordination.stores.s3.store import S3Store
from squall.runtime.log import Log, MemorySink
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET

pytestmark = pytest.mark.asyncio


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultyS3]:
    made = FaultyS3(s3_endpoint)
    yield made
    made.close()


def mounted(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    read = Path.read_text

    def mounts(self: Path, *arguments: Any, **named: Any) -> str:
        if str(self) == "/proc/self/mounts":
            return "\n".join(("rootfs / ext4 rw 0 0", *lines)) + "\n"
        return read(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", mounts)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "fuse.glusterfs"])
async def test_sqlite_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    escaped = str(folder).replace(" ", "\\040")
    mounted(monkeypatch, f"server:/x {escaped} {kind} rw 0 0")
    url = f"sqlite:///{folder}/store.db"
    with pytest.raises(UnsafeStoreError, match=f"is on {re.escape(kind)}, a network file system"):
        await open_store(url, RealClock(), random.Random())
    assert not (folder / "store.db").exists()


async def test_sqlite_beside_a_network_file_system_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "far" / "near"
    local.mkdir(parents=True)
    far = tmp_path / "far"
    mounted(monkeypatch, f"s:/x {far} nfs4 rw 0 0", f"/dev/a {local} ext4 rw 0 0")
    store = await open_store(f"sqlite:///{local}/store.db", RealClock(), random.Random())
    await store.close()
    assert (local / "store.db").exists()


def url_at(endpoint: str) -> str:
    return f"s3://{BUCKET}/refusals.{uuid.uuid4().hex}?endpoint={endpoint}&region=us-east-1"


async def test_s3_that_refuses_our_clock_says_how_far_it_is_off(proxy: FaultyS3) -> None:
    class WrongClock(RealClock):
        def kernel_boot(self) -> str:
            return ""

        def wall(self) -> float:
            return time.time() + 3600.0

    proxy.code = "RequestTimeTooSkewed"
    proxy.fail_next(1_000_000, 403)
    with pytest.raises(
        CoordinationError, match=r"refuses the clock of this machine, which is \+3\d{3} s off"
    ) as no:
        await open_store(url_at(proxy.endpoint), WrongClock(), random.Random())
    # To try again would not help.
    assert not isinstance(no.value, StoreUnavailableError)
    assert no.value.exit_code == ExitCode.CONFIG


async def test_what_cannot_get_better_is_no_absence(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no database at all, but long enough to be looked at " * 20)
    for url, exit_code in (
        (f"sqlite:///{text}", ExitCode.CONFIG),
        ("redis://127.0.0.1:1/0", ExitCode.UNREACHABLE),
    ):
        with pytest.raises(CoordinationError) as no:
            await open_store(url, RealClock(), random.Random())
        assert no.value.exit_code == exit_code


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
async def test_a_bucket_that_keeps_every_version_is_warned_about(
    s3_endpoint: str, status: str
) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    name = f"versions-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": status})
    client.close()
    sink = MemorySink()
    url = f"s3://{name}/x?endpoint={s3_endpoint}&region=us-east-1"
    store = S3Store(url, RealClock(), random.Random(), log=Log(sink, RealClock()))
    try:
        await store.probe()
    finally:
        await store.close()
    told = [str(line.fields["message"]) for line in sink.records]
    assert len(told) == (1 if status == "Enabled" else 0)
    assert all("is versioned, and keeps every heartbeat" in each for each in told)
