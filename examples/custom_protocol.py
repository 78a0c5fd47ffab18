"""Measure any protocol for which there is an asyncio library."""

import asyncio

from squall import Resource, Timed, Workflow, step


class EchoClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def echo(self, line: bytes) -> bytes:
        self.writer.write(line + b"\n")
        return await self.reader.readline()


async def connect() -> EchoClient:
    return EchoClient(*await asyncio.open_connection("127.0.0.1", 7))


class Echo(Workflow):
    server = Resource(connect, per="vu")  # opened before the clock starts
    iterations = 1000

    @step()
    async def echo(self) -> Timed[bytes]:
        return await self.timed(self.server.echo(b"hello"))
