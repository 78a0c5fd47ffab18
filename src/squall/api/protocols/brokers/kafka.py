"""The author's Kafka API: responses and the verbs of `self.client.kafka`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

from squall.api.arguments import URL, Data
from squall.api.protocols.brokers.messages import BrokerResponse


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

    `kafkas://` is TLS. All users of a process share one producer for each address; each user has
    its own consumers. The query of the address has settings: `acks` (`all`, `1` or `0`),
    `compression`, `linger` (how long a batch waits for more messages), `mechanism` (of SASL:
    `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`) and `brokers` (more of them to begin with,
    `host:port,host:port`).
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
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> KafkaResponse:
        """Sends a message and waits for its acknowledgement.

        `stamp=True` adds the time of sending as a header, for `latencies` of the receiver.
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
