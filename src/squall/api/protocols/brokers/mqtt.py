"""The author's MQTT API: responses and the verbs of `self.client.mqtt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

from squall.api.arguments import URL, Data
from squall.api.protocols.brokers.messages import BrokerResponse


class MQTTResponse(BrokerResponse, eq=False, gc=False):
    """A message that the broker acknowledged, or those that it delivered."""

    protocol: ClassVar[str] = "mqtt"

    code: int = 0
    """The reason code of the broker's acknowledgement; 128 and above are failures (MQTT 5)."""


class MQTTVerbs(Protocol):
    """`self.client.mqtt`: publishing and receiving, `mqtt://[user:password@]host:port`.

    `mqtts://` is TLS. MQTT 5 is spoken, or 3.1.1 with `?version=3.1.1`, which has no headers. Ids
    of clients are unique: `?id=sensor` makes them begin with "sensor-".
    """

    async def publish(
        self,
        url: URL,
        topic: str,
        payload: str | bytes | Data,
        *,
        qos: Literal[0, 1, 2] = 1,
        retain: bool = False,
        headers: Mapping[str, str] | None = None,
        stamp: bool = False,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> MQTTResponse:
        """Sends a message and waits for its acknowledgement: none with `qos=0`, the broker's with
        1, the end of the handshake with 2.

        `retain=True` makes the broker keep it for later subscribers. `stamp=True` adds the time of
        sending as a header (user property), for `latencies` of the receiver.
        """
        ...

    async def subscribe(
        self,
        url: URL,
        topic: str,
        *,
        qos: Literal[0, 1, 2] = 1,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> MQTTResponse:
        """Subscribes this user to a topic, which may have wildcards. Messages wait for `receive`
        from then on."""
        ...

    async def receive(
        self,
        url: URL,
        topic: str,
        count: int = 1,
        *,
        qos: Literal[0, 1, 2] = 1,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> MQTTResponse:
        """Waits for as many messages of a topic. Subscribes first, unless this user has."""
        ...
