"""Hands arriving requests and one-way messages to their handlers.

It checks whether the sender's role may send the type, asks for admission, decrypts, decodes
and calls the handler. A handler is a function of (message, Incoming) that returns the answer,
or None for a one-way message. A coroutine function runs as a task of its own. A handler may
raise `RemoteError` to answer with a typed error; anything else it raises is answered
"internal" without its text and goes to the owner.

The type's class decides the admission before the body is decrypted. A refused request is
answered with retry-after, a refused one-way message is only counted. Every slot is released
exactly once. A handler that is registered as brief takes no slot while there is room: nothing
else can begin before it has ended. If it returns a coroutine after all, that takes a slot.

A handler that is registered as a long poll mostly waits for something to happen. It is admitted
like any other and returns its slot before it waits, or a few followers of jobs would take the slots
of all telemetry; how many a channel may have is said where it is registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar

import msgspec

from squall.cluster.wire.catalogue import CATALOGUE, Catalogue, MessageType
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import DecodeError, RemoteError, WireError
from squall.cluster.wire.header import Kind, MessageClass
from squall.cluster.wire.links.link import Link
from squall.cluster.wire.messages import ErrorAnswer, ErrorCode
from squall.cluster.wire.seal.keyring import Identity
from squall.runtime.tasks import TaskRunner

M = TypeVar("M", bound=msgspec.Struct)

TASK_GROUP = "wire"
POLLS_MAX = 64
"""Long polls of one channel: a client follows one job per request, and few jobs."""
POLLS_RETRY_S = 1.0

_REQUEST = int(Kind.REQUEST)


class Admission(Protocol):
    """A slot for one message."""

    @property
    def waits(self) -> bool:
        """Admitted, but the handler must await `turn` before it starts."""
        ...

    async def turn(self) -> None: ...
    def release(self) -> None: ...


Admit = Callable[[MessageClass, str], Admission | float]
"""(class, the name and the boot of the sender) -> a slot to release, or the seconds after which the
sender may ask again. Raises if the sender's link must be closed."""


class Answering(Protocol):
    """The channel on which an answer goes back."""

    def answer(self, link: Link, correlation: int, kind: Kind, message: msgspec.Struct) -> None: ...


class Incoming(NamedTuple):
    """The circumstances of a message, for its handler."""

    peer: Identity
    deadline: float | None
    """A reading of the local clock: the caller sent the time that it has left."""
    channel: Any
    """The `Channel` it came on, over which the handler may send to the peer."""


Handler = Callable[[Any, Incoming], Any]


class Handlers:
    """Which function handles which message; one per type."""

    def __init__(self, catalogue: Catalogue = CATALOGUE) -> None:
        self.catalogue = catalogue
        self.by_number: dict[int, tuple[MessageType, Handler]] = {}
        # Type numbers of brief handlers: they normally answer without an await.
        self.brief: set[int] = set()
        # Type numbers of long polls, which wait without a slot, and the most of one channel.
        self.polls: dict[int, int] = {}

    def on(
        self,
        struct: type[M],
        handler: Callable[[M, Incoming], Any],
        *,
        brief: bool = False,
        polls: int = 0,
    ) -> None:
        """`polls`: its requests wait long without a slot, at most so many of one channel."""
        row = self.catalogue.by_struct[struct]
        if row.number in self.by_number:
            raise ValueError(f"{row.name} has a handler already")
        self.by_number[row.number] = (row, handler)
        if brief:
            self.brief.add(row.number)
        if polls:
            self.polls[row.number] = polls


def _is_work(answer: object) -> TypeGuard[CoroutineType[Any, Any, Any]]:
    return type(answer) is CoroutineType


class _Poll:
    """Takes the place of a slot while a long poll waits."""

    waits = False

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def turn(self) -> None: ...

    def release(self) -> None:
        self._dispatcher.poll_ended()


class Dispatcher:
    """Runs the handlers of one channel and knows the tasks that its peer's requests became."""

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
        self._polls = handlers.polls
        self._polling = 0
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
            if type_number in self._polls:
                admission.release()
                if self._polling >= self._polls[type_number]:
                    answer.close()
                    self._shed(channel, link, correlation, POLLS_RETRY_S)
                    return
                self._polling += 1
                admission = _Poll(self)
            self._run(channel, link, correlation, row, answer, admission)
            return
        admission.release()
        if asked:
            self._reply(channel, link, correlation, answer)

    def _admitted(
        self, channel: Answering, link: Link, correlation: int, row: MessageType, peer: Identity
    ) -> Admission | None:
        """A slot; None if the request was answered with a refusal or the link closed."""
        try:
            # A quota is that of a process: nodes of two datacenters may have the same name.
            admission = self._admit(row.message_class, f"{peer.node} {peer.boot}")
        except Exception as error:
            self._counters.control_overflow += 1
            self._on_error(error)
            link.abort(error)
            return None
        if not isinstance(admission, (int, float)):
            return admission
        self._shed(channel, link, correlation, float(admission))
        return None

    def _shed(self, channel: Answering, link: Link, correlation: int, retry_after_s: float) -> None:
        self._counters.shed += 1
        if correlation:
            answer = ErrorAnswer(ErrorCode.OVERLOADED, retry_after_s=retry_after_s)
            channel.answer(link, correlation, Kind.ERROR, answer)

    def poll_ended(self) -> None:
        self._polling -= 1

    def cancel(self, correlation: int) -> None:
        task = self._by_correlation.get(correlation)
        if task is not None:
            self._counters.cancelled += 1
            task.cancel()

    def cancel_all(self) -> None:
        """The link is lost: no answer can be sent. Work that must finish runs elsewhere."""
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
        """The answer to the caller; only typed errors keep their text."""
        if isinstance(error, RemoteError):
            return ErrorAnswer(
                error.code, error.text, error.retry_after_s, error.primary, error.leader_within_s
            )
        self._counters.handler_failed += 1
        self._on_error(error)
        return ErrorAnswer(ErrorCode.INTERNAL, "internal error")
