"""Resources that a workflow opens before the clock starts: connections, pools, sessions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar, cast, overload

from squall.api.quantities import one_of, wrong

T = TypeVar("T")


class Resource(Generic[T]):
    """`db = Resource(connect)`: `self.db` is what `await connect()` returned.

    `per="process"` opens one for all users of a process, `per="vu"` one for each user.
    Squall closes it with `close` if given, otherwise with its own `aclose()` or `close()`.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[T]],
        *,
        per: Literal["process", "vu"] = "process",
        close: Callable[[T], Any] | None = None,
    ) -> None:
        if not callable(connect):
            raise wrong("Resource", connect, "cannot be called", "give an async function")
        if close is not None and not callable(close):
            raise wrong("Resource close", close, "cannot be called", "give a function")
        self.connect = connect
        self.per: Literal["process", "vu"] = one_of("Resource per", per, ("process", "vu"))
        self._close = close
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Resource[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Resource[T] | T:
        # Not a data descriptor: an opened resource sits in the instance's __dict__.
        if instance is None:
            return self
        raise AttributeError(f"resource {self.name!r} is not open before the users start")

    async def open(self) -> T:
        """Opens one more. The engine calls it; steps use `self.NAME`."""
        return await self.connect()

    async def close(self, opened: T) -> None:
        """Closes one. The engine calls it; a failure to close never fails the run."""
        thing = cast(Any, opened)
        closer: Callable[..., Any] | None
        if self._close is not None:
            result: Any = self._close(opened)
        else:
            closer = getattr(thing, "aclose", None) or getattr(thing, "close", None)
            result = closer() if closer is not None else None
        if inspect.isawaitable(result):
            await result
