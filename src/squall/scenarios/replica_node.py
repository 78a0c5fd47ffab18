"""Drives a `Replica` on a runtime: datagrams, timers, and a vote file.

Effects keep their order: a send that reveals a promise leaves after the promise is
durable. The file is a row of checksummed records, the last whole one counts; a start
writes it anew, so that what was read is durable whatever an earlier sync did. A disk
that fails ends the process.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from squall.runtime.interfaces import Address, DatagramSocket, File, Runtime
from squall.scenarios.replica import (
    Confirmed,
    Effect,
    Followed,
    Led,
    Message,
    Persist,
    Replica,
    Saved,
    Send,
)
from squall.sim.checks import Probe

PORT = 7100
STATE_FILE = "votes"
HEADER = struct.Struct("<II")
TICK_S = 0.05
HEARTBEAT_S = 0.15
ELECTION_S = (0.5, 0.8)
"""Narrow, so that members often stand for one term at the same time."""
COMPACT_BYTES = 16_384


class ReplicaNode:
    """The callbacks are for what is built on the replica (`scenarios.lease`)."""

    def __init__(
        self,
        runtime: Runtime,
        members: list[str],
        probe: Probe,
        *,
        mutant: str | None = None,
        messages: Any = Message,
        on_led: Callable[[Led], None] | None = None,
        on_confirmed: Callable[[Confirmed], None] | None = None,
        on_other: Callable[[Any, Address], None] | None = None,
    ) -> None:
        self.runtime = runtime
        self.replica: Replica
        self._members = members
        self._probe = probe
        self._mutant = mutant
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(messages)
        self._encoder = msgspec.msgpack.Encoder()
        self._on_led = on_led
        self._on_confirmed = on_confirmed
        self._on_other = on_other
        self._socket: DatagramSocket
        self._file: File
        self._unwritten: list[Persist | Send] = []
        self._work = asyncio.Event()
        self.contact = float("-inf")
        """When a majority was last heard, directly or through its leader; own clock."""
        self._heard = 0.0
        self._patience_s = 0.0
        self._beat = 0.0

    async def run(self) -> None:
        runtime = self.runtime
        runtime.disk.lock()
        saved = await self._recover()
        mutant = self._mutant
        if mutant == "forget_vote":
            saved = msgspec.structs.replace(saved, voted_for="")
        self.replica = Replica(runtime.node, self._members, saved, mutant)
        self._probe("recovered", term=saved.term, version=saved.accepted.version)
        self._socket = await runtime.network.bind_datagrams(("", PORT), self)
        self._wait_anew()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write(), name="writer")
            group.create_task(self._tick(), name="ticker")

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self._unwritten.append(effect)
                    self._work.set()
                case Send(to, message, at_once):
                    if at_once or self._mutant == "ack_before_sync" or not self._unwritten:
                        self.send(message, (to, PORT))
                    else:
                        self._unwritten.append(effect)
                case Led():
                    self._probe("leads", term=effect.term, version=effect.accepted.version)
                    if self._on_led is not None:
                        self._on_led(effect)
                case Confirmed():
                    self.contact = self.runtime.clock.now()
                    if self._on_confirmed is not None:
                        self._on_confirmed(effect)
                case Followed():
                    self.contact = self.runtime.clock.now()
                    self._wait_anew()

    def send(self, message: Any, to: Address) -> None:
        self._socket.send(self._encoder.encode(message), to)

    def on_datagram(self, data: bytes, sender: Address) -> None:
        message = self._decoder.decode(data)
        if isinstance(message, Message):
            self.apply(self.replica.handle(message))
        elif self._on_other is not None:
            self._on_other(message, sender)

    # Time.

    async def _tick(self) -> None:
        while True:
            await self.runtime.clock.sleep(TICK_S)
            now = self.runtime.clock.now()
            if self.replica.leads:
                self._wait_anew()
            elif now - self._heard >= self._patience_s:
                self._wait_anew()
                self._beat = now
                self.apply(self.replica.campaign())
            if now - self._beat >= HEARTBEAT_S:
                self._beat = now
                self.apply(self.replica.open_round())
                self.apply(self.replica.ask_again())

    def _wait_anew(self) -> None:
        self._heard = self.runtime.clock.now()
        self._patience_s = self.runtime.random.uniform(*ELECTION_S)

    # The vote file.

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            # What comes meanwhile waits behind it, so the list stays until all is durable.
            count = len(self._unwritten)
            newest = [e.saved for e in self._unwritten[:count] if isinstance(e, Persist)][-1:]
            for saved in newest:
                await self._file.append(_record(self._encoder.encode(saved)))
                await self._file.sync()
                if self._file.size > COMPACT_BYTES and self._mutant != "no_directory_sync":
                    await self._rewrite(saved)
            done, self._unwritten = self._unwritten[:count], self._unwritten[count:]
            if self._unwritten:
                self._work.set()
            for effect in done:
                if isinstance(effect, Send):
                    self.send(effect.message, (effect.to, PORT))

    async def _recover(self) -> Saved:
        disk = self.runtime.disk
        saved = Saved()
        try:
            content = await disk.read(STATE_FILE)
        except FileNotFoundError:
            content = b""
        for payload in _records(content):
            saved = msgspec.msgpack.decode(payload, type=Saved)
        if self._mutant == "no_directory_sync":
            self._file = await disk.open(STATE_FILE)
        else:
            await self._rewrite(saved)
        return saved

    async def _rewrite(self, saved: Saved) -> None:
        await self.runtime.disk.write_atomic(STATE_FILE, _record(self._encoder.encode(saved)))
        self._file = await self.runtime.disk.open(STATE_FILE)


def _record(payload: bytes) -> bytes:
    return HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def _records(content: bytes) -> list[bytes]:
    """All whole records; a torn or damaged one ends the list."""
    found: list[bytes] = []
    offset = 0
    while offset + HEADER.size <= len(content):
        size, checksum = HEADER.unpack_from(content, offset)
        payload = content[offset + HEADER.size : offset + HEADER.size + size]
        if size == 0 or len(payload) < size or zlib.crc32(payload) != checksum:
            break
        found.append(payload)
        offset += HEADER.size + size
    return found
