"""`/counts`, `/reset` and `/freeze`: the paths that are about the target itself.

They are not counted. When the target has several processes, the one that is asked
passes the question to its siblings over unix sockets, so that a caller never sees
which process answered. It must not disturb a run more than it has to: samples are
sorted in a thread.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from squall.target.behaviour import BadBehaviour, Behaviour, parse_duration
from squall.target.counts import Counts, Snapshot, summarise
from squall.target.request import Answer, json_answer

CONTROL_PATHS = frozenset({"/counts", "/reset", "/freeze"})

# The answer to `/freeze` itself must have left before the loop stands still.
_FLUSH_S = 0.01


class _Order(msgspec.Struct):
    """What one process asks of another: the path, and for a freeze when and how long."""

    path: str
    after_s: float = 0.0
    for_s: float = 0.0


@dataclass(slots=True)
class Control:
    counts: Counts
    siblings: list[str] = field(default_factory=list[str])

    async def answer(self, path: str, behaviour: Behaviour) -> Answer:
        """Do what a control path asks, in all processes, and say what was done."""
        if path == "/counts":
            return await self._tell_counts()
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
        """Answer one order of a sibling process and hang up."""
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

    async def _tell_counts(self) -> Answer:
        parts = [self.counts.snapshot()]
        others = await self._ask_siblings(_Order("/counts"))
        parts += [msgspec.msgpack.decode(raw, type=Snapshot) for raw in others]
        now_s = time.perf_counter()
        document = await asyncio.to_thread(summarise, parts)
        # Arrival stamps are monotonic; this pair lets a reader turn them into wall time.
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
    """Stop the whole loop later: no reads, no writes, no timers, no accepts."""
    asyncio.get_running_loop().call_later(order.after_s + _FLUSH_S, time.sleep, order.for_s)
