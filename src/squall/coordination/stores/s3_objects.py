"""Single objects with conditions, over any service that speaks S3, and its time.

Create-if-absent is `If-None-Match: *`, replace is `If-Match: etag`. 412, and 404 on a
replace, are a lost race; 409 says that two requests met and the same one must be sent
again; 5xx, SlowDown and no answer are `StoreUnavailableError`, and so is whatever else the client
beneath raises that is not a mistake of ours. Nothing is repeated here but
a 409: the guard repeats, with the token that recognises what took effect. The HTTP client beneath
repeats a request whose connection broke, once: what looks like a lost race may be our own write,
and who lost one looks whose it is.

Time is the `Date` of answers, which has whole seconds: every answer narrows an interval in
which the true offset of the service's clock lies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.stores.errors import StoreError, StoreUnavailableError
from squall.coordination.stores.extras import load_extra
from squall.runtime.interfaces import Clock

ANSWER_S = 5.0
REPEATS_OF_409 = 8
CONFLICT_PAUSE_S = 0.02
REMEASURE_S = 60.0
LOST = {"PreconditionFailed", "412", "NoSuchKey", "404", "NotFound"}
AGAIN = {"ConditionalRequestConflict", "OperationAborted", "409"}
NOT_NOW = {
    *("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling"),
    *("500", "502", "503", "504", "429", "RequestTimeTooSkewed"),
}
PATH_OPTIONS = {"endpoint", "region", "ca", "style"}
MISTAKES = (
    *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoRegionError"),
    *("ConfigNotFound", "ConfigParseError", "InvalidConfigError", "InvalidRegionError"),
    *("InvalidS3AddressingStyleError", "EndpointProviderError", "ParamValidationError"),
)
"""What botocore raises when the configuration is wrong."""


class Object(msgspec.Struct, frozen=True):
    body: bytes
    etag: str
    modified_ms: int


class Found(msgspec.Struct, frozen=True):
    """What a listing says of one object."""

    name: str
    etag: str
    modified_ms: int


class ServiceClock:
    """The service's time as an offset to our monotonic clock, from rounded readings."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_known = False
        """Before the first reading there is no time."""
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
        # Rates differ and clocks are set: an interval that is old or contradicted is dropped.
        is_old = received - self.measured_at >= REMEASURE_S
        if is_old or narrow[0] > narrow[1]:
            narrow = low_s, high_s
        if is_old or received - sent < ANSWER_S:
            self.measured_at = received
        self._low_s, self._high_s = narrow


class S3Objects:
    """One bucket. Names are whole object keys."""

    def __init__(self, url: str, clock: Clock) -> None:
        load_extra("aiobotocore", "s3")
        self._sessions = load_extra("aiobotocore.session", "s3")
        self._configs = load_extra("aiobotocore.config", "s3")
        self._errors = load_extra("botocore.exceptions", "s3")
        self._mistakes = tuple(getattr(self._errors, name) for name in MISTAKES)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigurationError(f"s3: {error}: s3://bucket/prefix is right") from None
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
        self._deletes_many = True
        """Until the service says that it does not know how."""

    async def fetch(self, name: str) -> Object | None:
        answer = await self._call("get_object", Key=name)
        if answer is None:
            return None
        async with answer["Body"] as stream:
            body: bytes = await self._reading(stream)
        stamp_ms = int(self._told(answer, "LastModified").timestamp() * 1000)
        return Object(body, self._told(answer, "ETag"), stamp_ms)

    async def exists(self, name: str) -> bool:
        return await self._call("head_object", Key=name) is not None

    async def create(self, name: str, body: bytes) -> str | None:
        """The new etag; None if it exists."""
        answer = await self._call("put_object", Key=name, Body=body, IfNoneMatch="*")
        return None if answer is None else self._told(answer, "ETag")

    async def replace(self, name: str, body: bytes, etag: str) -> str | None:
        """The new etag; None if the object is another one, or gone."""
        answer = await self._call("put_object", Key=name, Body=body, IfMatch=etag)
        return None if answer is None else self._told(answer, "ETag")

    async def delete(self, name: str, etag: str = "") -> bool:
        """With an etag only that object; True also when it is gone."""
        condition = {"IfMatch": etag} if etag else {}
        answer = await self._call("delete_object", Key=name, **condition)
        return answer is not None or not await self.exists(name)

    async def delete_many(self, names: Sequence[str]) -> None:
        """Up to 1,000 without conditions, with one request where the service knows it."""
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

    async def listing(self, prefix: str, after: str = "") -> AsyncIterator[Found]:
        while True:
            answer = await self._call("list_objects_v2", Prefix=prefix, StartAfter=after)
            if answer is None:
                raise StoreError(f"{self.url}: there is no bucket {self.bucket}")
            for found in answer.get("Contents", ()):
                after = found["Key"]
                stamp_ms = int(found["LastModified"].timestamp() * 1000)
                yield Found(after, found["ETag"], stamp_ms)
            if not answer.get("IsTruncated"):
                return

    async def ask(self, operation: str) -> dict[str, Any]:
        """Of the bucket as a whole; {} if the service does not know the question."""
        try:
            return await self._call(operation) or {}
        except StoreUnavailableError:
            raise
        except StoreError:
            return {}

    async def measure(self) -> None:
        """An answer of any kind carries the time. Not with HEAD: a refusal would have no body, and
        so no reason."""
        found = await self._call("get_object", Key=f"{self.path}/~time")
        if found is not None:
            found["Body"].close()
        if not self.time.is_known:
            raise StoreError(f"{self.url} cannot be used: its answers have no Date")

    def foreign(self, name: str) -> StoreError:
        """Somebody else writes where we do."""
        return StoreError(f"{self.url}: {name} is no object of this library: remove it")

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def _call(self, operation: str, **arguments: Any) -> Any:
        client = self._client or await self._connect()
        for _ in range(REPEATS_OF_409):
            sent = self._clock.now()
            try:
                answer = await getattr(client, operation)(Bucket=self.bucket, **arguments)
            except self._errors.ClientError as error:
                self._observe(error.response, sent)
                code = str(error.response.get("Error", {}).get("Code", ""))
                status = str(error.response["ResponseMetadata"].get("HTTPStatusCode", ""))
                if code in LOST or (status in LOST and code != "NoSuchBucket"):
                    return None
                if code in AGAIN or status in AGAIN:
                    await self._clock.sleep(CONFLICT_PAUSE_S)
                    continue
                raise self._failure(operation, code, status) from error
            except Exception as error:
                raise self._broken(error, isinstance(error, self._mistakes)) from error
            self._observe(answer, sent)
            return answer
        raise StoreUnavailableError(f"{self.url}: {operation} met another request again and again")

    def _told(self, answer: dict[str, Any], part: str) -> Any:
        if part not in answer:
            # The page of a proxy, most likely.
            raise StoreUnavailableError(f"{self.url}: an answer has no {part}")
        return answer[part]

    async def _reading(self, stream: Any) -> bytes:
        try:
            return await stream.read()
        except Exception as error:
            raise StoreUnavailableError(f"{self.url}: an answer broke off: {error}") from error

    def _broken(self, error: Exception, is_mistake: bool) -> StoreError:
        what = " ".join(str(error).split()) or type(error).__name__
        return (StoreError if is_mistake else StoreUnavailableError)(f"{self.url}: {what}")

    def _failure(self, operation: str, code: str, status: str) -> StoreError:
        if code == "RequestTimeTooSkewed" and self.time.is_known:
            ours_s, theirs_s = self._clock.wall(), self.time.now_ms() / 1000.0
            return StoreError(
                f"{self.url} refuses our clock, which is {ours_s - theirs_s:+.0f} s off: set it"
            )
        if code in NOT_NOW or status in NOT_NOW:
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
            is_mistake = isinstance(error, (*self._mistakes, ValueError))
            raise self._broken(error, is_mistake) from error
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
    """What makes a bucket grow with every heartbeat."""
    versioning, lock = answers
    found: list[str] = []
    if versioning.get("Status") == "Enabled":
        found.append("versioned")
    if lock.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled":
        found.append("object-locked")
    return found
