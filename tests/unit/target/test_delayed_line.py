"""A line that delays: everything arrives, in order, and not before its time."""

from __future__ import annotations

import asyncio

import pytest

from squall.target.delayed_line import DelayedLine
from tests.lab.ports import free_ports

DELAY_S = 0.05


@pytest.mark.asyncio
async def test_an_answer_takes_both_ways_and_loses_nothing() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    own, far = (("127.0.0.1", port) for port in free_ports(2))
    server = await asyncio.start_server(echo, *own)
    line = DelayedLine(own, DELAY_S)
    await line.listen(far)
    reader, writer = await asyncio.open_connection(*far)
    sent = b"".join(f"{number} ".encode() for number in range(5_000))
    began = asyncio.get_running_loop().time()
    for at in range(0, len(sent), 700):
        writer.write(sent[at : at + 700])
    received = await reader.readexactly(len(sent))
    assert received == sent
    assert asyncio.get_running_loop().time() - began >= 2 * DELAY_S
    writer.close()
    await line.close()
    server.close()


@pytest.mark.asyncio
async def test_without_a_listener_behind_it_the_connection_ends() -> None:
    own, far = (("127.0.0.1", port) for port in free_ports(2))
    line = DelayedLine(own, DELAY_S)
    await line.listen(far)
    reader, writer = await asyncio.open_connection(*far)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    await line.close()
