"""Serves `/counts`, `/reset` and `/freeze`, the paths about the target itself.

Requests for them are not counted. If the target has several processes, the one that receives
the request forwards it to the others over unix sockets, so the caller gets the same answer from
any process. It must disturb a run as little as possible: samples are sorted in a thread.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from squall.target.behaviour import BadBehaviour, Behaviour, parse_duration
from squall.target.counts import Counts, CountsSnapshot, summarise
from squall.target.request import Answer, json_answer

CONTROL_PATHS = frozenset({"/counts", "/reset", "/freeze"})

# The answer to `/freeze` must be sent before the loop stops.
_FLUSH_S = 0.01


class _Order(msgspec.Struct):
    """A request to another process: the path, and for a freeze when and how long."""

    path: str
    after_s: float = 0.0
    for_s: float = 0.0


@dataclass(slots=True)
class Control:
    counts: Counts
    siblings: list[str] = field(default_factory=list[str])

    async def answer(self, path: str, behaviour: Behaviour) -> Answer:
        """Executes a control path in all processes and answers with the result."""
        if path == "/counts":
            return await self._counts_answer()
        if path == "/reset":
            self.counts.clear()
            await self._ask_siblings(_Order(path))
            return json_answer({"reset": True})
        try:
            for_s = parse_duration(behaviour.field("for") or "1s")
            after_s = parse_duration(behaviour.field("after") or "0ms")
        except BadBehaviour as error:
            return Answer(400, f"squall target: {error}\n".encode())
        order = _Order(path, after_s, for_s)
        await self._ask_siblings(order)
        _freeze(order)
        return json_answer({"frozen_ms": for_s * 1000, "after_ms": after_s * 1000})

    async def serve_sibling(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers one order of another process and closes the connection."""
        try:
            order = msgspec.json.decode(await reader.readline(), type=_Order)
            if order.path == "/counts":
                writer.write(msgspec.msgpack.encode(self.counts.snapshot()))
            elif order.path == "/reset":
                self.counts.clear()
            else:
                _freeze(order)
            with suppress(ConnectionError):
                await writer.drain()
        finally:
            writer.close()

    async def _counts_answer(self) -> Answer:
        parts = [self.counts.snapshot()]
        others = await self._ask_siblings(_Order("/counts"))
        parts += [msgspec.msgpack.decode(raw, type=CountsSnapshot) for raw in others]
        now_s = time.perf_counter()
        document = await asyncio.to_thread(summarise, parts)
        # Arrival stamps are monotonic; this pair lets a reader convert them to wall time.
        document["now_s"] = now_s
        document["now_unix_s"] = time.time() - (time.perf_counter() - now_s)
        return json_answer(document)

    async def _ask_siblings(self, order: _Order) -> list[bytes]:
        return list(await asyncio.gather(*(_ask(path, order) for path in self.siblings)))


async def _ask(path: str, order: _Order) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(msgspec.json.encode(order) + b"\n")
        return await reader.read()
    finally:
        writer.close()


def _freeze(order: _Order) -> None:
    """Schedules a stop of the whole event loop: no reads, writes, timers or accepts."""
    asyncio.get_running_loop().call_later(order.after_s + _FLUSH_S, time.sleep, order.for_s)
