"""The S3 store and invalid answers, and objects that it did not write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate

import pytest

from squall.coordination.store_errors import StoreError, StoreUnavailableError
from squall.coordination.stores.interface import ANY, Append, Put
from squall.coordination.stores.s3.store import S3Store
from squall.coordination.stores.s3.streams import STREAMS
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.places import BUCKET, s3_credentials

pytestmark = pytest.mark.asyncio


def answer(status: str, body: str, *, length: int | None = None, date: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n"
    if date:
        head += f"Date: {date}\r\n"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


@asynccontextmanager
async def answering(said: bytes) -> AsyncIterator[S3Store]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(said)
        await writer.drain()
        writer.close()

    with s3_credentials():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"s3://{BUCKET}/a?endpoint=http://127.0.0.1:{port}&region=us-east-1"
            store = S3Store(url, RealClock(), random.Random(1))
            yield store
            await store.close()


NOW = formatdate(usegmt=True)
MISSING = "<Error><Code>NoSuchKey</Code></Error>"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(answer("404 Not Found", MISSING, length=1000, date=NOW), id="broken error"),
        pytest.param(answer("200 OK", "some", length=1000, date=NOW), id="broken body"),
        pytest.param(answer("200 OK", "<html>Log in", date=NOW), id="page of a proxy"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="no HTTP"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_an_answer_that_is_none_is_an_error_of_ours(said: bytes) -> None:
    async with answering(said) as store:
        for call in (store.get("state/a"), store.list("state"), store.read("signal/a")):
            with pytest.raises(StoreError):
                await call
        with pytest.raises(StoreError):
            await store.write(Put("state/a", b"", expect="etag", ttl_s=60.0))


@pytest.mark.parametrize("date", ["", "the day after"])
async def test_a_service_that_does_not_tell_the_time_is_refused(date: str) -> None:
    async with answering(answer("404 Not Found", MISSING, date=date)) as store:
        with pytest.raises(StoreError, match="no Date") as refused:
            await store.now_ms()
        assert not isinstance(refused.value, StoreUnavailableError)


async def test_a_foreign_object_is_named(s3_endpoint: str) -> None:
    url = f"s3://{BUCKET}/foreign?endpoint={s3_endpoint}&region=us-east-1"
    store = S3Store(url, RealClock(), random.Random(1), prefix="p")
    objects, root = store._objects, "foreign/p"  # pyright: ignore[reportPrivateUsage]
    try:
        await objects.create(f"{root}/state/notes.json", b"my notes")
        await objects.create(f"{root}/{STREAMS}/signal/a/slot/{1:020d}", b"my notes")
        await objects.create(f"{root}/{STREAMS}/signal/b/meta", b"my notes")
        await objects.create(f"{root}/{STREAMS}/signal/c/slot/notes", b"my notes")
        for call in (
            store.get("state/notes"),
            store.write(Put("state/notes", b"", expect=ANY, ttl_s=60.0)),
            store.read("signal/a"),
            store.write(Append("signal/b", "s", b"", ttl_s=60.0)),
        ):
            with pytest.raises(StoreError, match="squall did not write the object"):
                await call
        assert await store.sweep("signal") == 0
    finally:
        await store.close()
