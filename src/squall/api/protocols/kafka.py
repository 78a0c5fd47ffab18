"""The author's Kafka API: responses and the verbs of `self.client.kafka`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

from squall.api.arguments import URL, Data
from squall.api.protocols.messages import BrokerResponse


class KafkaResponse(BrokerResponse, eq=False, gc=False):
    """A message that the broker acknowledged, or those that a poll brought."""

    protocol: ClassVar[str] = "kafka"

    topic: str = ""
    partition: int = -1
    """Where the message was stored."""
    offset: int = -1
    """Its number within the partition."""


class KafkaVerbs(Protocol):
    """`self.client.kafka`: producing and consuming, `kafka://[user:password@]host:port`.

    `kafkas://` is TLS. A user logs in by SASL PLAIN, or as `?mechanism=SCRAM-SHA-256` says. More
    brokers to begin with: `?brokers=host:port,host:port`. All users of a process share one
    producer; each user has its own consumers.
    """

    async def send(
        self,
        url: URL,
        topic: str,
        value: str | bytes | Data | None,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        partition: int | None = None,
        acks: Literal["all", 1, 0] = "all",
        compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None,
        linger: str | float = 0,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> KafkaResponse:
        """Sends a message and waits until the broker has it: by all replicas that are in sync, by
        the leader (`acks=1`), or not at all (`acks=0`).

        `linger` lets the producer wait that long for more messages of a batch. `stamp=True` adds
        the time of sending as a header, for `latencies` of the receiver.
        """
        ...

    async def poll(
        self,
        url: URL,
        topic: str,
        *,
        group: str | None = None,
        max: int = 500,
        start: Literal["beginning", "end"] = "end",
        wait: str | float = "1s",
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> KafkaResponse:
        """Receives up to `max` messages; none if none comes within `wait`.

        With a `group` the partitions are split among its members, and the next poll commits what
        this one received. Without one, this user receives all partitions. `start` says where a
        consumer begins that has no committed offset.
        """
        ...
