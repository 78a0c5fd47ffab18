"""What the responses of all message brokers have in common: received messages and their delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter, time
from typing import Any

import msgspec

from squall.api.errors import CallError
from squall.api.protocols.response import ProtocolResponse

SENT_HEADER = "squall-sent"
"""The header that `stamp=True` adds: nanoseconds of the sender's clock since 1970."""


class ReceivedMessage(msgspec.Struct, eq=False, gc=False):
    """A message from a broker. What a protocol does not have is empty, or -1."""

    body: bytes
    topic: str
    """The topic, the subject (NATS), or the routing key (AMQP)."""
    arrived: float
    """When its bytes arrived, as a reading of `time.perf_counter`."""
    headers: Mapping[str, str] = {}
    """Headers as text: user properties (MQTT 5), headers of the other brokers."""
    key: bytes | None = None
    """The key (Kafka)."""
    partition: int = -1
    """Where it is stored (Kafka)."""
    offset: int = -1
    """Its number within the partition (Kafka)."""
    reply_to: str = ""
    """Where its sender waits for an answer (NATS, AMQP, MQTT 5)."""
    redelivered: bool = False
    """Whether it was delivered before (AMQP)."""
    retained: bool = False
    """Whether the broker had kept it for new subscribers (MQTT)."""

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON. Raises a `ValueError` that says where it is malformed."""
        return msgspec.json.decode(self.body)

    @property
    def latency_s(self) -> float | None:
        """Seconds from when it was sent with `stamp=True` until it arrived; None without a stamp.
        True only where the sender has the same clock, so on the same machine."""
        sent = self.headers.get(SENT_HEADER, "")
        if not sent.isdigit():
            return None
        # What the clock of the stamp showed when the message arrived.
        return time() - (perf_counter() - self.arrived) - int(sent) / 1e9

    def __repr__(self) -> str:
        return f"<ReceivedMessage {len(self.body)} B from {self.topic}>"


class BrokerResponse(ProtocolResponse, eq=False, gc=False):
    """One answered call of a broker, with the messages that it brought."""

    messages: Sequence[ReceivedMessage] = ()
    """What was received, in order; empty if a message was sent."""

    @property
    def message(self) -> ReceivedMessage:
        """The first message. Raises a `CallError` if there is none."""
        if not self.messages:
            raise CallError("no message was received")
        return self.messages[0]

    @property
    def body(self) -> bytes:
        """The body of the first message."""
        return self.message.body

    def json(self) -> Any:
        """The body of the first message as JSON."""
        return self.message.json()

    @property
    def latencies(self) -> list[float]:
        """Seconds from sending to arrival of each message that was sent with `stamp=True`. True
        only where sender and receiver have the same clock."""
        found = [each.latency_s for each in self.messages]
        return [each for each in found if each is not None]

    @property
    def text(self) -> str:
        """Why the call failed, or the first message as text."""
        return self.error or (self.messages[0].text if self.messages else "")
