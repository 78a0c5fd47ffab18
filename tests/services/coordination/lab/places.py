"""The four stores, each with a place of its own per test.

A place can be opened several times: as several processes would. Redis is the one of this
machine, S3 is moto's server over HTTP (a real one: `stores/test_seaweedfs.py`). A store that is
missing fails in CI and skips on a laptop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import pytest_asyncio

from squall.coordination.stores.interface import Store
from squall.coordination.stores.memory.store import MemoryStore
from squall.coordination.stores.open import make_store
from squall.coordination.stores.s3 import objects as s3_objects
from squall.runtime.real.runtime import RealClock
from tests.lab.atomic_moto import make_writes_atomic

REDIS_URL = os.environ.get("SQUALL_TEST_REDIS", "redis://127.0.0.1:6379/0")
KINDS = ("memory", "sqlite", "redis", "s3")
BUCKET = "coordination"


class Place:
    """Where one test keeps its state."""

    def __init__(self, kind: str, url: str, prefix: str) -> None:
        self.kind = kind
        self.url = url
        self.prefix = prefix
        self._memory: MemoryStore | None = None
        self._stack = AsyncExitStack()

    async def open(self) -> Store:
        """Another client of the same place; memory has only one."""
        if self.kind == "memory":
            if self._memory is None:
                self._memory = MemoryStore(RealClock())
            return self._memory
        store = make_store(self.url, RealClock(), random.Random(), prefix=self.prefix)
        self._stack.push_async_callback(store.close)
        return store

    async def close(self) -> None:
        await self._stack.aclose()


async def outlive(store: Store, span_s: float) -> None:
    """Waits until a span that began before this call has ended by the store's own clock, and
    some more: the clock of S3 has whole seconds, and each client estimates it."""
    slack_s = 0.2 if store.capabilities.transactions else 1.2
    ends_ms = await store.now_ms() + round(1000 * (span_s + slack_s))
    async with asyncio.timeout(60.0):
        while await store.now_ms() < ends_ms:
            await asyncio.sleep(0.05)


def missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Redis of this machine, or one that is started for these tests."""
    if answers(REDIS_URL):
        yield REDIS_URL
        return
    if shutil.which("redis-server") is None:
        missing(f"no Redis answers at {REDIS_URL}, and redis-server is not installed")
    # Imported here, because it imports `missing` from this module.
    from tests.services.coordination.lab.redis_servers import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()


def answers(url: str) -> bool:
    import redis

    client = redis.Redis.from_url(url)
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False
    finally:
        client.close()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """moto in a thread of this process. On a machine without idle cores it answers sooner
    there than in a process of its own, where each request waits twice for a core."""
    from moto.server import ThreadedMotoServer

    make_writes_atomic()
    with s3_credentials():
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        make_bucket(endpoint)
        yield endpoint
        server.stop()


@pytest.fixture(autouse=True)
def empty_bucket() -> Iterator[None]:
    """Leaves nothing behind in moto: it goes through all it has at every listing."""
    yield
    if "moto.s3.models" in sys.modules:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(BUCKET)
        for name in list(bucket.keys) if bucket else ():
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].delete_object(BUCKET, name)


@contextmanager
def s3_credentials() -> Iterator[None]:
    """Those that moto takes."""
    names = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def make_bucket(endpoint: str, within_s: float = 120.0) -> None:
    """Ends when the server also takes objects."""
    import boto3
    import botocore.exceptions

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(botocore.exceptions.BotoCoreError, client.exceptions.ClientError):
            if not client.list_buckets()["Buckets"]:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="first", Body=b"")
            break
        assert time.monotonic() < deadline, f"{endpoint} does not answer"
        time.sleep(0.1)
    client.delete_object(Bucket=BUCKET, Key="first")
    client.close()


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path, prefix: str) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder / 'store.db'}"
    if kind == "redis":
        return request.getfixturevalue("redis_url")
    if kind == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        return f"s3://{BUCKET}/{prefix}?endpoint={endpoint}&region=us-east-1"
    return "memory://"


@pytest_asyncio.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    prefix = f"test.{uuid.uuid4().hex[:12]}"
    place = Place(request.param, url_of(request.param, request, tmp_path, prefix), prefix)
    # A store without retries around it fails with the first answer that comes too late, and moto
    # shares its core with the test: several clients at once are answered late on a busy machine.
    with patch.object(s3_objects, "ANSWER_S", 30.0):
        yield place
        await place.close()
    if place.kind == "redis":
        forget_redis(place.url, prefix)


@pytest_asyncio.fixture
async def store(place: Place) -> Store:
    return await place.open()


def forget_redis(url: str, prefix: str) -> None:
    import redis

    client = redis.Redis.from_url(url)
    for key in client.scan_iter(match="{" + prefix + "}*", count=1000):
        client.delete(key)
    client.close()
