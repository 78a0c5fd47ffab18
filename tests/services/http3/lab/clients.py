"""A client for tests, and peers that are no HTTP/3 servers."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from squall.clients.http import HTTPShared
from squall.clients.http3 import HTTP3Client
from tests.services.http.lab.servers import swept


@asynccontextmanager
async def http3(shared: HTTPShared) -> AsyncGenerator[HTTP3Client]:
    """A client whose timeouts are swept; at the end no call and no connection may be left."""
    async with swept(shared) as http:
        yield HTTP3Client(http)


@contextmanager
def silent_port() -> Generator[int]:
    """A UDP port that takes datagrams and never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]
