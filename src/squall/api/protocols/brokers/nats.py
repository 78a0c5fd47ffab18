"""The author's NATS API: responses and the verbs of `self.client.nats`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

from squall.api.arguments import URL, Data
from squall.api.protocols.brokers.messages import BrokerResponse


class NATSResponse(BrokerResponse, eq=False, gc=False):
    """A message that the server has, a reply, or messages that it delivered."""

    protocol: ClassVar[str] = "nats"

    stream: str = ""
    """The stream that stored the message, with `confirm="stream"`."""
    sequence: int = -1
    """Its number in the stream."""
    duplicate: bool = False
    """Whether the stream had the message already, by its header `Nats-Msg-Id`."""


class NATSVerbs(Protocol):
    """`self.client.nats`: publishing, requests and subscriptions,
    `nats://[user:password@]host:port` or `nats://token@host:port`. `natss://` is TLS; a server that
    demands TLS gets it with `nats://`, too."""

    async def publish(
        self,
        url: URL,
        subject: str,
        payload: str | bytes | Data = b"",
        *,
        headers: Mapping[str, str] | None = None,
        confirm: Literal["server", "stream"] | None = "server",
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        """Sends a message and waits until the server has it, or the stream of the subject has
        stored it (JetStream); with `confirm=None` for nothing.

        `stamp=True` adds the time of sending as a header, for `latencies` of the receiver.
        """
        ...

    async def request(
        self,
        url: URL,
        subject: str,
        payload: str | bytes | Data = b"",
        *,
        headers: Mapping[str, str] | None = None,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        """Sends a request and returns the reply. Nobody who would answer is a failure."""
        ...

    async def subscribe(
        self,
        url: URL,
        subject: str,
        *,
        queue: str = "",
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        """Subscribes this user to a subject, which may have wildcards. Messages wait for `receive`
        from then on. Of the members of a `queue` one gets each message."""
        ...

    async def receive(
        self,
        url: URL,
        subject: str,
        count: int = 1,
        *,
        queue: str = "",
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> NATSResponse:
        """Waits for as many messages of a subject. Subscribes first, unless this user has."""
        ...
