"""Keeps the messages of a subscription until the author's code receives them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from squall.api.errors import CallError
from squall.api.protocols.brokers.messages import ReceivedMessage

# A step that subscribes and does not receive must not fill the memory.
MOST_UNREAD = 100_000


class Inbox:
    """Messages in the order of arrival. `tag` is what their acknowledgement needs."""

    __slots__ = ("_count", "_ended", "_messages", "_waiter", "dropped")

    def __init__(self) -> None:
        self._messages: deque[tuple[ReceivedMessage, Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._count = 0
        # Why no further message will come.
        self._ended: BaseException | None = None
        # Messages that were forgotten because nobody received them.
        self.dropped = 0

    def put(self, message: ReceivedMessage, tag: Any = None) -> None:
        self._messages.append((message, tag))
        if len(self._messages) > MOST_UNREAD:
            self._messages.popleft()
            self.dropped += 1
        waiter = self._waiter
        if waiter is not None and len(self._messages) >= self._count and not waiter.done():
            waiter.set_result(None)

    def end(self, error: BaseException) -> None:
        """Raises this in the call that waits, and in later ones that find too few messages."""
        if self._ended is None:
            self._ended = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)

    async def take(self, count: int) -> list[tuple[ReceivedMessage, Any]]:
        """Waits for so many messages. One call at a time may wait."""
        if len(self._messages) < count:
            if self._ended is not None:
                raise self._ended
            if self._waiter is not None:
                raise CallError("this subscription already waits for a message: await one call")
            self._count = count
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        return [self._messages.popleft() for _ in range(count)]

    def fault(self) -> str:
        """The fault that a call reports if messages are missing; empty if none are."""
        if not self.dropped:
            return ""
        self.dropped = 0
        return f"messages were dropped: more than {MOST_UNREAD} waited to be received"
