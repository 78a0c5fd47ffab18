"""Kafka by aiokafka: `self.client.kafka`.

One producer of the process serves all users of an address, as in a real service; it collects what
they send at the same time into batches. Each user has its own consumers. The library reconnects by
itself and tries again until the limit of a call is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import time_ns
from typing import Any, TypeVar

from aiokafka import (  # pyright: ignore[reportMissingTypeStubs]
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
)
from aiokafka import errors as kafka_errors  # pyright: ignore[reportMissingTypeStubs]

from squall.api.errors import CallError
from squall.api.protocols.brokers.kafka import KafkaResponse
from squall.api.protocols.brokers.messages import SENT_HEADER, ReceivedMessage
from squall.clients.brokers.headers import arrived, as_text
from squall.clients.brokers.user_calls import BrokerError, silence
from squall.clients.calls.arrivals import Arrivals, LibraryOpening
from squall.clients.calls.library import Library, LibraryAnswer, LibraryCalls
from squall.clients.calls.payload import payload_of
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.client import HTTPClient
from squall.clients.http.shared import NO_ALPN

T = TypeVar("T")

_ACKS = {"all": "all", "0": 0, "1": 1}
_COMPRESSIONS = ("gzip", "snappy", "lz4", "zstd")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_STARTS = {"beginning": "earliest", "end": "latest"}
_SETTINGS = frozenset({"acks", "brokers", "compression", "linger", "mechanism"})
_UNREACHABLE = "no broker can be reached"
_OF_NETWORK = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.StaleMetadata,
)


class KafkaProducer:
    """The producer of an address."""

    def __init__(self, opening: LibraryOpening) -> None:
        query = opening.address.query
        acks, compression = query.get("acks", "all"), query.get("compression")
        if acks not in _ACKS:
            raise CallError(f"acks={acks} in the address: write all, 1 or 0")
        if compression is not None and compression not in _COMPRESSIONS:
            known = ", ".join(_COMPRESSIONS)
            raise CallError(f"compression={compression} in the address: write one of {known}")
        self.arrivals: Arrivals = opening.arrivals
        self.waits = acks != "0"
        linger_s = opening.shared.seconds(query["linger"]) if "linger" in query else 0.0
        try:
            self.producer: Any = AIOKafkaProducer(
                **_common(opening),
                acks=_ACKS[acks],
                compression_type=compression,
                linger_ms=round(linger_s * 1e3),
                # The broker is asked for a producer id otherwise, which not all answer.
                enable_idempotence=False,
            )
        except RuntimeError as error:
            # The library of a compression is missing.
            raise CallError(str(error)) from error

    def abort(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(_stopped(self.producer))


class KafkaConsumer:
    """A consumer of one topic."""

    def __init__(self, opening: LibraryOpening, topic: str, group: str | None, start: str) -> None:
        self.topic = topic
        self.arrivals: Arrivals = opening.arrivals
        self._group = group
        self._start = start
        # Without a group the partitions are assigned here, with one by its coordinator.
        self.consumer: Any = AIOKafkaConsumer(
            *((topic,) if group else ()),
            **_common(opening),
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=_STARTS[start],
        )
        self.is_committed = True

    async def begin(self) -> None:
        consumer = self.consumer
        await consumer.start()
        if self._group:
            return
        await consumer._client._wait_on_metadata(self.topic)
        numbers: set[int] = consumer.partitions_for_topic(self.topic) or set()
        places = [TopicPartition(self.topic, number) for number in sorted(numbers)]
        consumer.assign(places)
        if self._start == "end":
            await consumer.seek_to_end(*places)
            # Where the end is must be known before the next message is sent.
            for place in places:
                await consumer.position(place)

    async def poll(self, most: int, wait_s: float) -> list[ReceivedMessage]:
        if self._group and not self.is_committed:
            await self.consumer.commit()
            self.is_committed = True
        found = await self.consumer.getmany(timeout_ms=round(wait_s * 1e3), max_records=most)
        came = arrived(self.arrivals)
        messages = [_received(each, came) for records in found.values() for each in records]
        self.is_committed = not messages
        return messages

    def abort(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(_stopped(self.consumer))


async def _stopped(client: Any) -> None:
    """Ends the tasks of the library. A consumer without a broker ends with a cancellation."""
    try:
        await client.stop()
    except (Exception, asyncio.CancelledError):
        return


def _received(record: Any, at: float) -> ReceivedMessage:
    return ReceivedMessage(
        bytes(record.value or b""),
        record.topic,
        at,
        as_text(record.headers),
        key=record.key,
        partition=record.partition,
        offset=record.offset,
    )


def _common(opening: LibraryOpening) -> dict[str, Any]:
    """The options that producers and consumers share."""
    address = opening.address
    unknown = address.query.keys() - _SETTINGS
    if unknown:
        known = ", ".join(sorted(_SETTINGS))
        raise CallError(f"an address of kafka has no {min(unknown)}=; it has {known}")
    shown = f"[{address.host}]" if ":" in address.host else address.host
    more = [each for each in address.query.get("brokers", "").split(",") if each]
    made: dict[str, Any] = {
        "bootstrap_servers": [f"{shown}:{address.port}", *more],
        "client_id": "squall",
        # The library gives up a batch or a request after this time; the limit of a call is shorter
        # or ends at the same time.
        "request_timeout_ms": round(opening.shared.timeout_s * 1e3),
        "security_protocol": "SSL" if address.tls else "PLAINTEXT",
        "ssl_context": opening.shared.tls_context(NO_ALPN) if address.tls else None,
    }
    if address.user:
        mechanism = address.query.get("mechanism", "PLAIN")
        if mechanism not in _MECHANISMS:
            known = ", ".join(_MECHANISMS)
            raise CallError(f"mechanism={mechanism} in the address: write one of {known}")
        made["security_protocol"] = f"SASL_{made['security_protocol']}"
        made["sasl_mechanism"] = mechanism
        made["sasl_plain_username"] = address.user
        made["sasl_plain_password"] = address.password
    return made


def _reason(error: BaseException) -> str:
    if isinstance(error, _OF_NETWORK):
        return _UNREACHABLE
    return _told(error)


def _told(error: BaseException) -> str:
    """Like "UnknownTopicOrPartitionError: this server does not host this topic-partition"."""
    name = type(error).__name__
    text = str(getattr(error, "description", "") or "").rstrip(".")
    return f"{name}: {text}" if text else name


async def _open_producer(opening: LibraryOpening) -> KafkaProducer:
    made = KafkaProducer(opening)
    try:
        await made.producer.start()
    except BaseException:
        await _stopped(made.producer)
        raise
    return made


_PRODUCER: Library[KafkaProducer] = Library(
    _open_producer,
    abort=KafkaProducer.abort,
    lost=(BrokerError, kafka_errors.KafkaError),
    reason=_reason,
    multiplexes=True,
)


class KafkaClient:
    """The calls of one user."""

    __slots__ = ("_consumers", "_http", "_producers")

    def __init__(self, http: HTTPClient) -> None:
        silence("aiokafka")
        self._http = http
        self._producers = LibraryCalls(http, "kafka", _PRODUCER)
        self._consumers: dict[tuple[str, str | None, str], LibraryCalls[KafkaConsumer]] = {}

    async def send(
        self,
        url: Any,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        partition: int | None = None,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> KafkaResponse:
        data = None if value is None else payload_of(value)
        raw_key = key.encode() if isinstance(key, str) else key
        pairs = [(name, _bytes(text)) for name, text in (headers or {}).items()]

        async def perform(connection: KafkaProducer) -> Any:
            sent = [*pairs, (SENT_HEADER, b"%d" % time_ns())] if stamp else pairs
            try:
                # Returns as soon as the message is in a batch; the future is its acknowledgement.
                future = await connection.producer.send(
                    topic, data, key=raw_key, partition=partition, headers=sent
                )
            except (AssertionError, TypeError, ValueError) as error:
                raise CallError(str(error)) from error
            if not connection.waits:
                return None
            return await _answered(future)

        size = len(data or b"") + len(raw_key or b"")
        answer = await self._producers.call(
            url, f"SEND {topic}", perform, timeout=timeout, sent=size
        )
        self._producers.counters.messages_sent += 1
        told = answer.value
        if isinstance(told, str):
            return self._done(answer, told, topic, size)
        if told is None:
            return self._done(answer, "", topic, size)
        return self._done(answer, "", topic, size, partition=told.partition, offset=told.offset)

    async def poll(
        self,
        url: Any,
        topic: str,
        *,
        group: str | None = None,
        max: int = 500,
        start: str = "end",
        wait: str | float = "1s",
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> KafkaResponse:
        if start not in _STARTS:
            raise CallError(f'start={start!r}: write "beginning" or "end"')
        wait_s = self._http.shared.seconds(wait)

        async def perform(connection: KafkaConsumer) -> list[ReceivedMessage] | str:
            try:
                return await connection.poll(max, wait_s)
            except _OF_NETWORK:
                raise
            except kafka_errors.KafkaError as error:
                return _told(error)

        answer = await self._consumer(topic, group, start).call(
            url, f"POLL {topic}", perform, timeout=timeout
        )
        if isinstance(answer.value, str):
            return self._done(answer, answer.value, topic, 0)
        self._producers.counters.messages_received += len(answer.value)
        return self._done(answer, "", topic, 0, messages=answer.value)

    def _consumer(self, topic: str, group: str | None, start: str) -> LibraryCalls[KafkaConsumer]:
        # A group remembers where it is.
        key = topic, group, "" if group else start
        found = self._consumers.get(key)
        if found is None:

            async def opened(opening: LibraryOpening) -> KafkaConsumer:
                made = KafkaConsumer(opening, topic, group, start)
                try:
                    await made.begin()
                except BaseException:
                    await _stopped(made.consumer)
                    raise
                return made

            library: Library[KafkaConsumer] = Library(
                opened,
                abort=KafkaConsumer.abort,
                lost=(BrokerError, kafka_errors.KafkaError),
                reason=_reason,
            )
            found = LibraryCalls(self._http, "kafka", library)
            self._consumers[key] = found
        return found

    async def probe(self, url: Any) -> PingAnswer:
        """Asks which brokers there are."""

        async def perform(connection: KafkaProducer) -> list[str]:
            cluster: Any = connection.producer.client.cluster
            return [f"broker {each.nodeId}: {each.host}:{each.port}" for each in cluster.brokers()]

        answer = await self._producers.call(url, "METADATA", perform)
        return PingAnswer("Kafka", self._done(answer, "", "", 0), sorted(answer.value))

    def _done(
        self, answer: LibraryAnswer[Any], error: str, topic: str, sent: int, **fields: Any
    ) -> KafkaResponse:
        made: dict[str, Any] = {
            "error": error,
            "bytes_sent": sent,
            "bytes_received": answer.received,
            **fields,
        }
        return self._producers.done(KafkaResponse(*answer.stamps, topic=topic, **made))


async def _answered(future: Any) -> Any:
    """The broker's acknowledgement of a message, or its refusal."""
    try:
        return await future
    except (*_OF_NETWORK, kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError):
        raise
    except kafka_errors.KafkaError as error:
        return _told(error)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
