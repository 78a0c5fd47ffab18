"""The author's API of RabbitMQ (AMQP 0-9-1): responses and the verbs of `self.client.amqp`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from squall.api.arguments import URL, Data
from squall.api.protocols.brokers.messages import BrokerResponse


class AMQPResponse(BrokerResponse, eq=False, gc=False):
    """A message that the broker confirmed, or those that it delivered."""

    protocol: ClassVar[str] = "amqp"

    returned: bool = False
    """Whether no queue took the message, which was `mandatory`; then it counts as failed."""
    queue: str = ""
    """The queue of the call; after `declare` with the name that the broker gave."""
    waiting: int = -1
    """Messages in the queue, if the broker says so: after `declare`, `purge` and `delete`, and
    those left after `get`."""


RabbitMQResponse = AMQPResponse


class AMQPVerbs(Protocol):
    """`self.client.amqp`, also `self.client.rabbitmq`: publishing and consuming,
    `amqp://user:password@host:port/vhost`. `amqps://` is TLS.

    A call that the broker refuses, such as `get` of a queue that does not exist, returns a response
    with its code and words as `error`.
    """

    async def publish(
        self,
        url: URL,
        body: str | bytes | Data,
        *,
        key: str = "",
        exchange: str = "",
        headers: Mapping[str, str] | None = None,
        mandatory: bool = False,
        persistent: bool = False,
        confirm: bool = True,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        """Sends a message and waits until the broker confirms that it has it; `confirm=False` does
        not wait.

        Without an exchange, `key` is the name of a queue. `mandatory=True` fails if no queue takes
        the message, `persistent=True` writes it to disk in a durable queue. `stamp=True` adds the
        time of sending as a header, for `latencies` of the receiver.
        """
        ...

    async def get(
        self,
        url: URL,
        queue: str,
        *,
        ack: bool = True,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        """Takes one message from the queue; none if it is empty. It is acknowledged at once;
        `ack=False` leaves it to the broker, which delivers it again when the connection ends."""
        ...

    async def consume(
        self,
        url: URL,
        queue: str,
        count: int = 1,
        *,
        ack: bool = True,
        prefetch: int = 100,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        """Waits for as many messages. The first call subscribes to the queue; from then on up to
        `prefetch` messages wait here for the next calls. Messages are acknowledged when a call
        returns them."""
        ...

    async def declare(
        self,
        url: URL,
        queue: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        exchange: str = "",
        key: str = "",
        arguments: Mapping[str, str | int | bool] | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        """Makes a queue unless it exists, and binds it to the exchange if one is given. Without a
        name the broker gives it one."""
        ...

    async def purge(
        self,
        url: URL,
        queue: str,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        """Removes the messages of a queue."""
        ...

    async def delete(
        self,
        url: URL,
        queue: str,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> AMQPResponse:
        """Removes a queue."""
        ...
