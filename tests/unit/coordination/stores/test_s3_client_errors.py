"""Every exception of the libraries under the S3 store becomes one of Squall's errors."""

from __future__ import annotations

import asyncio
import inspect
import ssl

import aiohttp
import pytest
from botocore import exceptions, parsers

from squall.coordination.store_errors import StoreError, StoreUnavailableError
from squall.coordination.stores.s3.objects import CONFIGURATION_ERRORS, S3Objects
from squall.runtime.real.runtime import RealClock

pytestmark = pytest.mark.asyncio
OF_BOTOCORE = [
    kind
    for _, kind in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(kind, exceptions.BotoCoreError)
]
OTHERS = [
    aiohttp.ClientPayloadError("broke off"),
    aiohttp.ClientOSError(104, "reset"),
    aiohttp.ClientConnectionError("gone"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ServerTimeoutError(),
    aiohttp.InvalidURL("x"),
    parsers.ResponseParserError("no XML"),
    asyncio.IncompleteReadError(b"", 7),
    ssl.SSLError("handshake"),
    ConnectionResetError(),
    TimeoutError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "garbage"),
    ValueError("Invalid timestamp"),
    KeyError("etag"),
]


class Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def get_object(self, **_: object) -> None:
        raise self._error


async def error_of(error: Exception) -> StoreError:
    objects = S3Objects("s3://bucket/p?region=us-east-1", RealClock())
    objects._client = Failing(error)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StoreError) as caught:
        await objects.fetch("a")
    assert caught.value.__cause__ is error and "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("kind", OF_BOTOCORE, ids=lambda kind: kind.__name__)
async def test_an_error_of_botocore_is_a_mistake_or_an_absence(kind: type[Exception]) -> None:
    # Their texts need arguments that differ from one to the next.
    found = await error_of(kind.__new__(kind))
    wrong = tuple(getattr(exceptions, name) for name in CONFIGURATION_ERRORS)
    assert isinstance(found, StoreUnavailableError) is not issubclass(kind, wrong)


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
async def test_any_other_error_of_a_call_is_an_absence(error: Exception) -> None:
    assert isinstance(await error_of(error), StoreUnavailableError)


def refused(status: int, code: str) -> Exception:
    said = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return exceptions.ClientError(said, "GetObject")


@pytest.mark.parametrize(
    ("error", "is_absence"),
    [
        (refused(503, "SlowDown"), True),
        (refused(500, "InternalError"), True),
        (refused(429, ""), True),
        (refused(400, "RequestTimeout"), True),
        (refused(403, "AccessDenied"), False),
        (refused(404, "NoSuchBucket"), False),
        # Without a Date the offset is unknown.
        (refused(403, "RequestTimeTooSkewed"), True),
    ],
)
async def test_an_answer_that_is_an_error_is_one_of_ours(
    error: Exception, is_absence: bool
) -> None:
    assert isinstance(await error_of(error), StoreUnavailableError) is is_absence


@pytest.mark.parametrize(
    "options",
    [
        "endpoint=nonsense&region=us-east-1",
        "endpoint=http://127.0.0.1:1&region=us%20east",
        "endpoint=http://127.0.0.1:1&region=us-east-1&style=zigzag",
    ],
)
async def test_options_that_are_none_are_a_mistake(options: str) -> None:
    objects = S3Objects(f"s3://bucket/p?{options}", RealClock())
    with pytest.raises(StoreError) as caught:
        await objects.fetch("a")
    assert not isinstance(caught.value, StoreUnavailableError)
    await objects.close()
