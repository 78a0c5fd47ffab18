"""The calls of one user on one connection to each broker.

The libraries serve several calls at a time on one connection, and a subscription lives on it, so a
user keeps it as long as it lives (`connections = "vu"`) or for an iteration. The other policies
take a connection for each call, and cannot subscribe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from squall.api.errors import CallError, TransportError
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.library import Library, LibraryAnswer, LibraryCalls, LibraryConnection
from squall.clients.http.client import HTTPClient

L = TypeVar("L")
T = TypeVar("T")


class BrokerError(Exception):
    """A connection was lost or refused; the text is the reason under which it is counted."""


class UserCalls(Generic[L]):
    """Like `LibraryCalls`, for connections that several calls share."""

    __slots__ = ("_calls", "_held", "_keeps", "_locks", "_policy", "counters", "done")

    def __init__(self, http: HTTPClient, protocol: str, library: Library[L]) -> None:
        self._calls = LibraryCalls(http, protocol, library)
        self.counters = self._calls.counters
        self.done = self._calls.done
        self._policy = http.shared.connections
        self._keeps = self._policy in ("vu", "iteration")
        # By the text of the address.
        self._held: dict[str, LibraryConnection[L]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        http.companions = (*http.companions, self)

    async def call(
        self,
        url: Any,
        operation: str,
        perform: Callable[[L], Awaitable[T]],
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
        sent: int = 0,
        subscribes: bool = False,
    ) -> LibraryAnswer[T]:
        """Performs one call; one that `subscribes` needs a connection that stays."""
        calls = self._calls
        if not self._keeps:
            if subscribes:
                raise CallError(
                    f'a subscription needs a connection of the user: connections = "vu", not '
                    f'"{self._policy}"'
                )
            return await calls.call(url, operation, perform, timeout=timeout, sent=sent)
        key = url.value if url.__class__ is PreparedAddress else url
        held = self._held.get(key)
        if held is None or not held.is_open:
            held = await self._opened(key, url, operation, timeout)
        try:
            return await calls.on(held, operation, perform, timeout=timeout, sent=sent)
        except BaseException as error:
            # A mistake of the author leaves the connection as it was.
            if isinstance(error, TransportError) or not isinstance(error, CallError):
                if self._held.get(key) is held:
                    del self._held[key]
                calls.drop(held)
            raise

    async def _opened(
        self,
        key: str,
        url: Any,
        operation: str,
        timeout: str | float | None,  # noqa: ASYNC109
    ) -> LibraryConnection[L]:
        # Two steps of the user at the same time get the same connection.
        async with self._locks.setdefault(key, asyncio.Lock()):
            held = self._held.get(key)
            if held is None or not held.is_open:
                if held is not None:
                    self._calls.drop(held)
                held = self._held[key] = await self._calls.take(url, operation, timeout=timeout)
            return held

    def begin_iteration(self) -> None:
        if self._policy == "iteration":
            self.close()

    def close(self) -> None:
        held, self._held = self._held, {}
        for each in held.values():
            each.close()


class WaitingTasks:
    """Tasks that wait on a connection, for libraries that leave them waiting when it is lost."""

    __slots__ = ("_ended", "_tasks", "lost")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        # Why nothing will be answered any more; empty while the connection is open.
        self.lost = ""

    async def on(self, awaitable: Awaitable[T]) -> T:
        """Awaits it; raises `ConnectionResetError` once the connection is lost."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            self._ended.discard(task)
            task.uncancel()
            raise ConnectionResetError(self.lost) from None
        finally:
            self._tasks.discard(task)

    def lose(self, reason: str) -> None:
        if not self.lost:
            self.lost = reason
            self._ended.update(self._tasks)
            for task in self._tasks:
                task.cancel(reason)


def silence(*loggers: str) -> None:
    """Silences a library that logs one line per connection and try about a lost broker: the results
    count these failures by their reason."""
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
