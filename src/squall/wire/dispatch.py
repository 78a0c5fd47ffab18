"""What arrives unasked: who may send it, whether there is room for it, who handles it.

A handler is a function of (message, Incoming). It gives the answer, or None for a one-way
message; or it is a coroutine function, which then runs as a task of its own. It may raise
`RemoteError` to answer with a typed error. Whatever else it raises is answered "internal",
without its text, and goes to the owner.

The type's class decides the admission, before the body is decrypted; a refused request is
answered with retry-after, a refused one-way message only counted. Every admission is
released exactly once. A handler that as a rule answers at once needs none where there is
room: nothing else can begin before it has ended, unless it turns out to be a coroutine,
which then takes its slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

import msgspec

from squall.runtime.tasks import TaskRunner
from squall.wire.catalogue import CATALOGUE, Catalogue, MessageType
from squall.wire.counters import WireCounters
from squall.wire.errors import DecodeError, RemoteError, WireError
from squall.wire.header import Kind, MessageClass
from squall.wire.keyring import Identity
from squall.wire.link import Link
from squall.wire.messages import ErrorAnswer, ErrorCode

M = TypeVar("M", bound=msgspec.Struct)

TASK_GROUP = "wire"

_REQUEST = int(Kind.REQUEST)


class Admission(Protocol):
    """A slot for one message."""

    @property
    def waits(self) -> bool:
        """Admitted, but `turn` is to be awaited before the work starts."""
        ...

    async def turn(self) -> None: ...
    def release(self) -> None: ...


Admit = Callable[[MessageClass, str], Admission | float]
"""(class, node id of the sender) -> a slot to release, or after how many seconds to ask
again. It raises to have the sender's link closed."""


class Answering(Protocol):
    """The channel on which an answer goes back."""

    def answer(self, link: Link, correlation: int, kind: Kind, message: msgspec.Struct) -> None: ...


class Incoming(NamedTuple):
    """What a handler knows of its message besides the content."""

    peer: Identity
    deadline: float | None
    """On the local clock; the caller gave the rest of its own time."""
    channel: Any
    """The `Channel` it came on, for whoever wants to talk back."""


Handler = Callable[[Any, Incoming], Any]


class Handlers:
    """Which function handles which message; one per type."""

    def __init__(self, catalogue: Catalogue = CATALOGUE) -> None:
        self.catalogue = catalogue
        self.by_number: dict[int, tuple[MessageType, Handler]] = {}
        self.brief: set[int] = set()
        """Numbers of the types whose handlers answer at once, as a rule."""

    def on(
        self, struct: type[M], handler: Callable[[M, Incoming], Any], *, brief: bool = False
    ) -> None:
        row = self.catalogue.by_struct[struct]
        if row.number in self.by_number:
            raise ValueError(f"{row.name} has a handler already")
        self.by_number[row.number] = (row, handler)
        if brief:
            self.brief.add(row.number)


def _is_work(answer: object) -> TypeGuard[CoroutineType[Any, Any, Any]]:
    return type(answer) is CoroutineType


class Dispatcher:
    """Of one channel: it knows the tasks that its peer's requests became."""

    def __init__(
        self,
        handlers: Handlers,
        admit: Admit,
        passes: Callable[[MessageClass], bool],
        runner: TaskRunner,
        counters: WireCounters,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._by_number = handlers.by_number
        self._decode = handlers.catalogue.decode
        self._brief = handlers.brief
        self._admit = admit
        self._passes = passes
        self._runner = runner
        self._counters = counters
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_correlation: dict[int, asyncio.Task[None]] = {}

    @property
    def running(self) -> int:
        return len(self._tasks)

    def receive(
        self,
        channel: Answering,
        link: Link,
        kind: int,
        type_number: int,
        correlation: int,
        deadline: float | None,
        frame: bytes,
    ) -> None:
        peer = link.session.peer if link.session is not None else None
        known = self._by_number.get(type_number)
        asked = kind == _REQUEST
        if peer is None or known is None or peer.role not in known[0].senders:
            link.unseal(frame)
            self._decline(channel, link, correlation if asked else 0, known)
            return
        row, handler = known
        incoming = Incoming(peer, deadline, channel)
        correlation = correlation if asked else 0
        if type_number in self._brief and self._passes(row.message_class):
            answer: Any = self._call(row, handler, link.unseal(frame), incoming)
            if not _is_work(answer):
                if asked:
                    self._reply(channel, link, correlation, answer)
                return
            admission = self._admitted(channel, link, correlation, row, peer)
            if admission is None:
                answer.close()
                return
        else:
            admission = self._admitted(channel, link, correlation, row, peer)
            if admission is None:
                return
            try:
                body = link.unseal(frame)
            except BaseException:
                admission.release()
                raise
            if admission.waits:
                answer = self._call_in_turn(admission, row, handler, body, incoming)
            else:
                answer = self._call(row, handler, body, incoming)
        if _is_work(answer):
            self._run(channel, link, correlation, row, answer, admission)
            return
        admission.release()
        if asked:
            self._reply(channel, link, correlation, answer)

    def _admitted(
        self, channel: Answering, link: Link, correlation: int, row: MessageType, peer: Identity
    ) -> Admission | None:
        """A slot; None: the sender was told, or its link closed."""
        try:
            admission = self._admit(row.message_class, peer.node)
        except Exception as error:
            self._counters.control_overflow += 1
            self._on_error(error)
            link.abort(error)
            return None
        if not isinstance(admission, (int, float)):
            return admission
        self._counters.shed += 1
        if correlation:
            answer = ErrorAnswer(ErrorCode.OVERLOADED, retry_after_s=float(admission))
            channel.answer(link, correlation, Kind.ERROR, answer)
        return None

    def cancel(self, correlation: int) -> None:
        """The caller gave up."""
        task = self._by_correlation.get(correlation)
        if task is not None:
            self._counters.cancelled += 1
            task.cancel()

    def cancel_all(self) -> None:
        """The link is lost: nobody can be answered. What must finish runs elsewhere."""
        for task in list(self._tasks):
            task.cancel()

    def _call(self, row: MessageType, handler: Handler, body: bytes, incoming: Incoming) -> Any:
        try:
            return handler(self._decode(row, body), incoming)
        except DecodeError as error:
            self._counters.decode_error += 1
            return ErrorAnswer(ErrorCode.BAD_MESSAGE, str(error))
        except Exception as error:
            return self._failed(error)

    async def _call_in_turn(
        self,
        admission: Admission,
        row: MessageType,
        handler: Handler,
        body: bytes,
        incoming: Incoming,
    ) -> Any:
        await admission.turn()
        answer = self._call(row, handler, body, incoming)
        return await answer if _is_work(answer) else answer

    def _decline(
        self, channel: Answering, link: Link, correlation: int, known: object | None
    ) -> None:
        if known is None:
            self._counters.unknown_type += 1
            answer = ErrorAnswer(ErrorCode.UNKNOWN_TYPE)
        else:
            self._counters.forbidden += 1
            answer = ErrorAnswer(ErrorCode.FORBIDDEN)
        if correlation:
            channel.answer(link, correlation, Kind.ERROR, answer)

    def _run(
        self,
        channel: Answering,
        link: Link,
        correlation: int,
        row: MessageType,
        work: CoroutineType[Any, Any, Any],
        admission: Admission,
    ) -> None:
        async def handled() -> None:
            try:
                answer = await work
            except Exception as error:
                answer = self._failed(error)
            if correlation:
                self._reply(channel, link, correlation, answer)

        def over(task: asyncio.Task[None] | None) -> None:
            # Here and not in `handled`: a task that is cancelled early never runs.
            work.close()
            admission.release()
            if task is not None:
                self._tasks.discard(task)
                if self._by_correlation.get(correlation) is task:
                    del self._by_correlation[correlation]

        task = self._runner.start(f"handle {row.name}", handled(), group=TASK_GROUP).task
        if task is None:
            over(None)  # The node stops and takes no more work.
            return
        task.add_done_callback(over)
        self._tasks.add(task)
        if correlation:
            self._by_correlation[correlation] = task

    def _reply(self, channel: Answering, link: Link, correlation: int, answer: Any) -> None:
        if isinstance(answer, ErrorAnswer):
            channel.answer(link, correlation, Kind.ERROR, answer)
            return
        try:
            channel.answer(link, correlation, Kind.RESPONSE, answer)
        except WireError as error:
            channel.answer(link, correlation, Kind.ERROR, self._failed(error))

    def _failed(self, error: Exception) -> ErrorAnswer:
        """What the caller is told; only typed errors keep their words."""
        if isinstance(error, RemoteError):
            return ErrorAnswer(error.code, error.text, error.retry_after_s, error.primary)
        self._counters.handler_failed += 1
        self._on_error(error)
        return ErrorAnswer(ErrorCode.INTERNAL, "internal error")
