"""Conditional requests for single objects on any service that speaks S3, and the service's time.

**The conditional writes** are `create` (`If-None-Match: *`) and `replace` (`If-Match: etag`). All
safety of the S3 store rests on these two: of several writers, the service lets one win, and the
others get None. 412, and 404 on a replace, are such a lost race.

**Failures.** 409 means that two requests met and the same one must be sent again; only this is
repeated here. 5xx, SlowDown and no answer are `StoreUnavailableError`, and so is any other error of
the client library that is not a wrong configuration. `guarded_store` repeats those, with the token
that recognises a write which took effect. The HTTP client itself sends a request once more if its
connection broke. So a race that looks lost may have been won by our own first request: callers
that lose a race check whose write is stored.

**Time** is the `Date` of the answers, in whole seconds. Every answer narrows the interval in which
the offset of the service's clock lies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.store_errors import StoreError, StoreTimeoutError, StoreUnavailableError
from squall.coordination.stores.optional_libraries import load_extra
from squall.runtime.backoff import Backoff, Retries
from squall.runtime.interfaces import Clock

# Time limit of one request, and of the connection before it.
ANSWER_S = 5.0
# A 409 passes as soon as the other request is done, which takes a few ms.
CONFLICT_RETRY = Backoff(first_s=0.02, factor=1.0, tries=8)
# How long a measured offset is trusted. Clocks whose rates differ by 5 % drift apart by 3 s in it.
REMEASURE_S = 60.0
LOST_RACE = {"PreconditionFailed", "412", "NoSuchKey", "404", "NotFound"}
SEND_AGAIN = {"ConditionalRequestConflict", "OperationAborted", "409"}
UNAVAILABLE = {
    *("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling"),
    *("500", "502", "503", "504", "429", "RequestTimeTooSkewed"),
}
PATH_OPTIONS = {"endpoint", "region", "ca", "style"}
CONFIGURATION_ERRORS = (
    *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoRegionError"),
    *("ConfigNotFound", "ConfigParseError", "InvalidConfigError", "InvalidRegionError"),
    *("InvalidS3AddressingStyleError", "EndpointProviderError", "ParamValidationError"),
)
"""Exceptions of botocore for a wrong configuration. A repeat does not help against them."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object as fetched."""

    body: bytes
    etag: str
    modified_ms: int


class ListedObject(msgspec.Struct, frozen=True):
    """An object as a listing shows it."""

    name: str
    etag: str
    modified_ms: int


class ServiceClock:
    """The service's time, as an offset to our monotonic clock.

    A `Date` of whole seconds bounds the offset from both sides. Readings at different fractions of
    a second narrow the interval between the bounds; its middle is the estimate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Whether there was a reading; before it there is no time.
        self.is_known = False
        self._low_s = float("-inf")
        self._high_s = float("inf")
        self.measured_at = float("-inf")

    def now_ms(self) -> int:
        return int((self._clock.now() + (self._low_s + self._high_s) / 2.0) * 1000.0)

    @property
    def is_fresh(self) -> bool:
        return self._clock.now() - self.measured_at < REMEASURE_S

    def observe(self, date: str, sent: float, received: float) -> None:
        try:
            stamp_s = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        self.is_known = True
        low_s, high_s = stamp_s - received, stamp_s + 1.0 - sent
        narrow = max(low_s, self._low_s), min(high_s, self._high_s)
        # Clocks drift and are set: an interval that is old, or contradicts the reading, is dropped.
        is_old = received - self.measured_at >= REMEASURE_S
        if is_old or narrow[0] > narrow[1]:
            narrow = low_s, high_s
        # A slow answer bounds the offset badly; only an old measurement is replaced by it.
        if is_old or received - sent < ANSWER_S:
            self.measured_at = received
        self._low_s, self._high_s = narrow


class S3Objects:
    """Reads and writes the objects of one bucket. Names are whole object keys."""

    def __init__(self, url: str, clock: Clock) -> None:
        load_extra("aiobotocore", "s3")
        self._sessions = load_extra("aiobotocore.session", "s3")
        self._configs = load_extra("aiobotocore.config", "s3")
        self._errors = load_extra("botocore.exceptions", "s3")
        self._configuration_errors = tuple(
            getattr(self._errors, name) for name in CONFIGURATION_ERRORS
        )
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigurationError(f"s3: {error}; use s3://bucket/prefix") from None
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if unknown := set(options) - PATH_OPTIONS:
            raise ConfigurationError(
                f"s3: {min(unknown)} is not an option: use {', '.join(sorted(PATH_OPTIONS))}"
            )
        self.bucket = parts.hostname or ""
        self.path = parts.path.strip("/")
        self.url = f"s3://{self.bucket}/{self.path}"
        self._options = options
        self._clock = clock
        self.time = ServiceClock(clock)
        self._stack = AsyncExitStack()
        self._client: Any = None
        # Until the service says that it does not support it.
        self._deletes_many = True

    async def fetch(self, name: str) -> StoredObject | None:
        answer = await self._call("get_object", Key=name)
        if answer is None:
            return None
        async with answer["Body"] as stream:
            body: bytes = await self._reading(stream)
        stamp_ms = int(self._field(answer, "LastModified").timestamp() * 1000)
        return StoredObject(body, self._field(answer, "ETag"), stamp_ms)

    async def exists(self, name: str) -> bool:
        return await self._call("head_object", Key=name) is not None

    async def create(self, name: str, body: bytes) -> str | None:
        """Creates an object that must not exist. Returns its ETag, None if it exists."""
        answer = await self._call("put_object", Key=name, Body=body, IfNoneMatch="*")
        return None if answer is None else self._field(answer, "ETag")

    async def replace(self, name: str, body: bytes, etag: str) -> str | None:
        """Replaces the object with this ETag. Returns the new ETag, None if the object has another
        one or is gone."""
        answer = await self._call("put_object", Key=name, Body=body, IfMatch=etag)
        return None if answer is None else self._field(answer, "ETag")

    async def delete(self, name: str, etag: str = "") -> bool:
        """Deletes an object; with an ETag only that version. Returns whether it is gone."""
        condition = {"IfMatch": etag} if etag else {}
        answer = await self._call("delete_object", Key=name, **condition)
        return answer is not None or not await self.exists(name)

    async def delete_many(self, names: Sequence[str]) -> None:
        """Deletes up to 1,000 objects without conditions, in one request where the service supports
        it."""
        if self._deletes_many:
            wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
            try:
                answer = await self._call("delete_objects", Delete=wanted)
            except StoreUnavailableError:
                raise
            except StoreError:
                self._deletes_many = False
            else:
                failed: list[dict[str, str]] = answer.get("Errors", []) if answer else []
                if failed:
                    raise StoreUnavailableError(f"{self.url}: {failed[0].get('Code', 'not now')}")
                return
        for name in names:
            await self.delete(name)

    async def listing(self, prefix: str, after: str = "") -> AsyncIterator[ListedObject]:
        while True:
            answer = await self._call("list_objects_v2", Prefix=prefix, StartAfter=after)
            if answer is None:
                raise StoreError(f"{self.url}: the bucket {self.bucket} does not exist")
            for found in answer.get("Contents", ()):
                after = found["Key"]
                stamp_ms = int(found["LastModified"].timestamp() * 1000)
                yield ListedObject(after, found["ETag"], stamp_ms)
            if not answer.get("IsTruncated"):
                return

    async def ask(self, operation: str) -> dict[str, Any]:
        """A property of the bucket; {} if the service does not support the question."""
        try:
            return await self._call(operation) or {}
        except StoreUnavailableError:
            raise
        except StoreError:
            return {}

    async def measure(self) -> None:
        """Measures the service's time: any answer has a `Date`. The request is a GET, because the
        refusal of a HEAD has no body and so no reason."""
        found = await self._call("get_object", Key=f"{self.path}/~time")
        if found is not None:
            found["Body"].close()
        if not self.time.is_known:
            raise StoreError(f"{self.url} cannot be used: its answers have no Date header")

    def foreign_object(self, name: str) -> StoreError:
        """The error for an object that this library did not write."""
        return StoreError(f"{self.url}: squall did not write the object {name}: remove it")

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def _call(self, operation: str, **arguments: Any) -> Any:
        client = self._client or await self._connect()
        retries = Retries(CONFLICT_RETRY)
        while True:
            sent = self._clock.now()
            try:
                answer = await getattr(client, operation)(Bucket=self.bucket, **arguments)
            except self._errors.ClientError as error:
                self._observe(error.response, sent)
                code = str(error.response.get("Error", {}).get("Code", ""))
                status = str(error.response["ResponseMetadata"].get("HTTPStatusCode", ""))
                if code in LOST_RACE or (status in LOST_RACE and code != "NoSuchBucket"):
                    return None
                if code in SEND_AGAIN or status in SEND_AGAIN:
                    delay_s = retries.next_delay_s()
                    if delay_s is None:
                        raise self._contended(operation) from error
                    await self._clock.sleep(delay_s)
                    continue
                raise self._failure(operation, code, status) from error
            except Exception as error:
                raise self._broken(error, isinstance(error, self._configuration_errors)) from error
            self._observe(answer, sent)
            return answer

    def _contended(self, operation: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self.url}: {operation} met another request for the same object"
            f" {CONFLICT_RETRY.tries} times in a row"
        )

    def _field(self, answer: dict[str, Any], part: str) -> Any:
        if part not in answer:
            # Most likely the page of a proxy.
            raise StoreUnavailableError(f"{self.url}: an answer has no {part}")
        return answer[part]

    async def _reading(self, stream: Any) -> bytes:
        try:
            return await stream.read()
        except Exception as error:
            raise StoreUnavailableError(f"{self.url}: an answer broke off: {error}") from error

    def _broken(self, error: Exception, is_configuration: bool) -> StoreError:
        what = " ".join(str(error).split()) or type(error).__name__
        kind = StoreError if is_configuration else StoreUnavailableError
        if isinstance(error, (self._errors.ConnectTimeoutError, self._errors.ReadTimeoutError)):
            kind = StoreTimeoutError
        return kind(f"{self.url}: {what}")

    def _failure(self, operation: str, code: str, status: str) -> StoreError:
        if code == "RequestTimeTooSkewed" and self.time.is_known:
            ours_s, theirs_s = self._clock.wall(), self.time.now_ms() / 1000.0
            return StoreError(
                f"{self.url} refuses the clock of this machine, which is"
                f" {ours_s - theirs_s:+.0f} s off: set it"
            )
        if code in UNAVAILABLE or status in UNAVAILABLE:
            return StoreUnavailableError(f"{self.url}: {code or status}")
        return StoreError(f"{self.url} refuses {operation}: {code or status}")

    def _observe(self, answer: Any, sent: float) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date:
            self.time.observe(date, sent, self._clock.now())

    async def _connect(self) -> Any:
        try:
            client = await self._new_client()
        except Exception as error:
            is_configuration = isinstance(error, (*self._configuration_errors, ValueError))
            raise self._broken(error, is_configuration) from error
        if self._client is None:
            self._client = client
        return self._client

    async def _new_client(self) -> Any:
        style = {"addressing_style": self._options.get("style", "auto")}
        config = self._configs.AioConfig(
            connect_timeout=ANSWER_S,
            read_timeout=ANSWER_S,
            retries={"total_max_attempts": 1},
            s3=style,
            max_pool_connections=32,
        )
        context = self._sessions.get_session().create_client(
            "s3",
            endpoint_url=self._options.get("endpoint"),
            region_name=self._options.get("region"),
            verify=self._options.get("ca"),
            config=config,
        )
        return await self._stack.enter_async_context(context)


def versioning_of(answers: Sequence[dict[str, Any]]) -> list[str]:
    """Settings that make a bucket grow with every heartbeat."""
    versioning, lock = answers
    found: list[str] = []
    if versioning.get("Status") == "Enabled":
        found.append("versioned")
    if lock.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled":
        found.append("object-locked")
    return found
