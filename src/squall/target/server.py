"""The target's HTTP/1 connections: parse, count, wait, answer.

Decides the order of events on one connection. It must never count a request twice or miss
one: each completely parsed request ends either in `statuses` or in `unanswered`. A request whose
exact bytes were seen before is not parsed again; this makes one core faster than a generator on
another core.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import cast

import httptools
import msgspec

from squall.target.answers import AnswerBytes, apply, render
from squall.target.behaviour import Behaviour, Behaviours
from squall.target.control import CONTROL_PATHS, Control
from squall.target.counts import Counts, EndpointCounts
from squall.target.request import KEPT_BODY_BYTES, Answer, TargetRequest
from squall.target.shop import Shop

MEMO_ENTRIES = 2048
MEMO_REQUEST_BYTES = 2048
# Answers that never change are kept rendered up to this size.
READY_BYTES = 1 << 14
# Requests that a pipelining client may have in the queue of one connection.
MAX_QUEUED = 256
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# The use of a connection so far.
SILENT, CONTROL, COUNTED = range(3)


class AnswerPlan(msgspec.Struct):
    """Everything that is known about a request before it is served. Shared and immutable."""

    request: TargetRequest
    behaviour: Behaviour
    endpoint: EndpointCounts
    attempt: str | None
    fields: list[tuple[str, str]]
    control: bool
    wire: AnswerBytes | None
    instant: bool


@dataclass(slots=True)
class Site:
    """The state that all connections of one process share."""

    loop: asyncio.AbstractEventLoop
    counts: Counts
    shop: Shop
    control: Control
    random: Random
    count_fields: tuple[str, ...] = ()
    behaviours: Behaviours = field(default_factory=Behaviours)
    memo: dict[bytes, AnswerPlan] = field(default_factory=dict[bytes, AnswerPlan])
    connections: set[TargetConnection] = field(default_factory=lambda: set[TargetConnection]())
    tasks: set[asyncio.Task[None]] = field(default_factory=lambda: set[asyncio.Task[None]]())

    def plan(self, request: TargetRequest) -> AnswerPlan:
        behaviour = self.behaviours.get(request.query)
        own = self._own_answer(request, behaviour)
        wire = None
        if own is not None and behaviour.steady:
            status = behaviour.draw_status(self.random)
            made = render(apply(own, behaviour, status, request.path), behaviour, request)
            wire = made if len(made.data) <= READY_BYTES else None
        return AnswerPlan(
            request=request,
            behaviour=behaviour,
            endpoint=self.counts.endpoint(request.method, request.path),
            attempt=request.header("x-squall-attempt"),
            fields=self._fields(request, behaviour),
            control=request.path in CONTROL_PATHS,
            wire=wire,
            instant=wire is not None and behaviour.prompt and not wire.close,
        )

    def make(self, plan: AnswerPlan, elapsed_s: float) -> AnswerBytes:
        """Renders the answer of a plan whose answer is not cached."""
        request, behaviour = plan.request, plan.behaviour
        own = self._own_answer(request, behaviour)
        if own is None:
            own = self.shop.live(request.path)(request, behaviour, elapsed_s)
        status = behaviour.draw_status(self.random)
        return render(apply(own, behaviour, status, request.path), behaviour, request)

    def _own_answer(self, request: TargetRequest, behaviour: Behaviour) -> Answer | None:
        if behaviour.problem is not None:
            return Answer(400, f"squall target: {behaviour.problem}\n".encode())
        return self.shop.fixed(request.method, request.path)

    def _fields(self, request: TargetRequest, behaviour: Behaviour) -> list[tuple[str, str]]:
        names = {*self.count_fields, *behaviour.count_fields}
        if not names:
            return []
        found = [*behaviour.fields, *request.body_fields().items()]
        return [(name, value) for name, value in found if name in names]


class TargetConnection(asyncio.Protocol):
    """One client connection. Answers go out in the order of the requests."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._counts = site.counts
        self._memo = site.memo
        self._transport: asyncio.Transport
        self._write = _nowhere
        self._parser: httptools.HttpRequestParser | None = None
        self._role = SILENT
        self._busy = False
        self._closing = False
        self._between_messages = True
        self._completed: list[TargetRequest] = []
        self._plan: AnswerPlan | None = None
        self._started_s = 0.0
        self._generation = 0
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[tuple[AnswerPlan, float, int]] = deque()
        self._write_full = False
        self._reading = True

    # Life of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write
        self._counts.silent_open += 1
        self._site.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        counts = self._counts
        self._site.connections.discard(self)
        self._closing = True
        self._parser = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._role == COUNTED:
            counts.open -= 1
        elif self._role == SILENT:
            counts.silent_open -= 1
            counts.silent_closed += 1
        if self._plan is not None and not self._plan.control:
            self._unanswered(self._plan, "hang" if self._plan.behaviour.hang else "gone")
        self._plan = None
        while self._queue:
            plan, self._started_s, self._generation = self._queue.popleft()
            if not plan.control:
                self._unanswered(plan, "gone")

    def pause_writing(self) -> None:
        self._write_full = True
        self._hold_reading()

    def resume_writing(self) -> None:
        self._write_full = False
        self._hold_reading()

    def abort(self) -> None:
        self._transport.abort()

    def _hold_reading(self) -> None:
        reading = not self._write_full and len(self._queue) < MAX_QUEUED
        if reading == self._reading or self._closing:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # Bytes in.

    def data_received(self, data: bytes) -> None:
        if self._between_messages:
            plan = self._memo.get(data)
            if plan is not None:
                if not self._closing:
                    self._arrived(plan)
                return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        if self._closing:
            return
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        alone = self._between_messages
        broken = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # An offer to switch protocols may be ignored; this request is the last one.
            if self._completed:
                self._completed[-1].keep_alive = False
        except httptools.HttpParserError:
            broken = True
        requests, self._completed = self._completed, []
        plans = [self._site.plan(request) for request in requests]
        if alone and len(plans) == 1 and self._between_messages and not broken:
            self._remember(data, plans[0])
        for plan in plans:
            if not self._closing:
                self._arrived(plan)
        if broken and not self._closing:
            self._refuse()

    def _remember(self, data: bytes, plan: AnswerPlan) -> None:
        if len(data) > MEMO_REQUEST_BYTES:
            return
        if len(self._memo) >= MEMO_ENTRIES:
            self._memo.clear()
        self._memo[data] = plan

    def _refuse(self) -> None:
        self._counts.lost("malformed")
        self._closing = True
        request = TargetRequest("GET", "/", [], keep_alive=False)
        answer = Answer(400, b"squall target: not HTTP/1.1\n")
        self._write(render(answer, Behaviour(), request).data)
        self._transport.close()

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        self._between_messages = False
        self._url = b""
        self._headers: list[tuple[str, str]] = []
        self._body = b""
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        for name, value in self._headers:
            if name.lower() == "expect" and value.lower() == "100-continue":
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if len(self._body) < KEPT_BODY_BYTES:
            self._body += body[: KEPT_BODY_BYTES - len(self._body)]

    def on_message_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        self._between_messages = True
        self._completed.append(
            TargetRequest(
                method=parser.get_method().decode("latin-1"),
                target=self._url.decode("latin-1"),
                headers=self._headers,
                body=self._body,
                body_bytes=self._body_bytes,
                keep_alive=parser.should_keep_alive(),
                http10=parser.get_http_version() == "1.0",
            )
        )

    # One request.

    def _arrived(self, plan: AnswerPlan) -> None:
        now_s = perf_counter()
        counts = self._counts
        if not plan.control:
            if self._role != COUNTED:
                self._take_role(COUNTED)
            counts.arrived(plan.endpoint, now_s)
            if plan.attempt is not None:
                counts.attempt(plan.attempt, now_s)
            for name, value in plan.fields:
                counts.field(name, value)
            if plan.instant and not self._busy:
                wire = plan.wire
                assert wire is not None
                self._write(wire.data)
                counts.in_flight -= 1
                if plan.attempt is not None:
                    counts.attempt_over(plan.attempt)
                plan.endpoint.answered(wire.status, perf_counter() - now_s)
                return
        elif self._role == SILENT:
            self._take_role(CONTROL)
        if self._busy:
            self._queue.append((plan, now_s, counts.generation))
            self._hold_reading()
            return
        self._busy = True
        self._begin(plan, now_s, counts.generation)

    def _take_role(self, role: int) -> None:
        # A client that only reads the counts must not change them, so a connection is counted
        # at its first counted request.
        if self._role == SILENT:
            self._counts.silent_open -= 1
        self._role = role
        if role == COUNTED:
            self._counts.connection_counted()

    def _begin(self, plan: AnswerPlan, started_s: float, generation: int) -> None:
        self._plan, self._started_s, self._generation = plan, started_s, generation
        behaviour = plan.behaviour
        if plan.control:
            task = self._site.loop.create_task(self._answer_control(plan))
            self._site.tasks.add(task)
            task.add_done_callback(self._site.tasks.discard)
        elif not behaviour.hang:
            delay = behaviour.delay
            delay_s = 0.0 if delay is None else delay.draw(self._site.random)
            if delay_s > 0.0:
                self._timer = self._site.loop.call_later(delay_s, self._due)
            else:
                self._due()

    def _due(self) -> None:
        """Called after the delay: answers, or resets the connection."""
        self._timer = None
        plan = self._plan
        assert plan is not None
        behaviour = plan.behaviour
        if behaviour.resets and self._site.random.random() < behaviour.resets:
            self._reset(plan)
            return
        wire = plan.wire or self._site.make(plan, perf_counter() - self._started_s)
        if behaviour.slow_headers_s:
            self._write(wire.data[: wire.status_line_bytes])
            self._timer = self._site.loop.call_later(
                behaviour.slow_headers_s, self._send, plan, wire, wire.status_line_bytes
            )
            return
        self._send(plan, wire, 0)

    def _send(self, plan: AnswerPlan, wire: AnswerBytes, sent_bytes: int) -> None:
        self._timer = None
        end = len(wire.data)
        if plan.behaviour.cut:
            end = wire.head_bytes + (end - wire.head_bytes) // 2
        # Read before the write: a client must never see an answer sooner than its time counts.
        took_s = perf_counter() - self._started_s
        self._write(wire.data[sent_bytes:end] if sent_bytes or plan.behaviour.cut else wire.data)
        if plan.behaviour.cut:
            self._unanswered(plan, "cut")
        else:
            self._over(plan)
            if self._generation == self._counts.generation:
                plan.endpoint.answered(wire.status, took_s)
        self._done(wire.close)

    def _done(self, close: bool) -> None:
        self._plan = None
        if close:
            self._closing = True
            self._transport.close()
        elif self._queue:
            # Called by the loop and not from here, so that a long pipeline does not nest calls.
            self._site.loop.call_soon(self._next)
        else:
            self._busy = False

    def _next(self) -> None:
        if self._closing:
            return
        queued = self._queue.popleft()
        self._hold_reading()
        self._begin(*queued)

    def _reset(self, plan: AnswerPlan) -> None:
        self._unanswered(plan, "reset")
        self._plan = None
        self._closing = True
        raw = self._transport.get_extra_info("socket")
        with suppress(OSError):
            # Closing with linger time 0 makes the kernel send RST instead of FIN.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._transport.abort()

    def _over(self, plan: AnswerPlan) -> None:
        self._counts.in_flight -= 1
        if plan.attempt is not None:
            self._counts.attempt_over(plan.attempt)

    def _unanswered(self, plan: AnswerPlan, why: str) -> None:
        self._over(plan)
        if self._generation == self._counts.generation:
            self._counts.lost(why)

    async def _answer_control(self, plan: AnswerPlan) -> None:
        answer = await self._site.control.answer(plan.request.path, plan.behaviour)
        if self._closing:
            return
        wire = render(answer, Behaviour(), plan.request)
        self._write(wire.data)
        self._done(wire.close)


def _nowhere(data: bytes | bytearray | memoryview) -> None:
    raise AssertionError("a connection writes only after connection_made")
