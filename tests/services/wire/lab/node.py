"""A process that echoes over the real network, for tests: prints its port, ends with stdin."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import cast

import uvloop

from squall.cluster.wire.blob_transfer import blob_hash, serve_blobs
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.fakes.wire import SECRET, TEST_CATALOGUE, Echo

CLUSTER = "real-cluster"
RUNTIMES: list[RealRuntime] = []
"""Made by `real_board` in this process; close them when done."""
BLOB = random.Random(3).randbytes(3_000_000)


class Slot:
    waits = False

    async def turn(self) -> None: ...
    def release(self) -> None: ...


class OneBlob:
    """A store that holds one blob."""

    async def size(self, blob: str) -> int | None:
        return len(BLOB) if blob == blob_hash(BLOB) else None

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        return BLOB[offset : offset + length]


def real_board(
    node: str, secret: str = SECRET, role: Role = Role.NODE, cluster: str = CLUSTER
) -> Switchboard:
    RUNTIMES.append(RealRuntime(node))
    runtime = cast("Runtime", RUNTIMES[-1])
    secrets = Secrets.of_node(secret) if role is Role.NODE else Secrets.of_credential(secret)

    def admit(message_class: MessageClass, source: str) -> Slot:
        return Slot()

    return Switchboard(
        runtime=runtime,
        keyring=make_keyring(runtime, secrets, cluster),
        admit=admit,
        tasks=TaskRunner(runtime.clock, runtime.random),
        handlers=Handlers(TEST_CATALOGUE),
    )


async def close_all() -> None:
    while RUNTIMES:
        await RUNTIMES.pop().close()


async def serve() -> None:
    board = real_board("server")

    async def echo(message: Echo, incoming: Incoming) -> Echo:
        if message.text == "wait":
            await asyncio.sleep(60.0)
        return message

    board.handlers.on(Echo, echo)
    serve_blobs(board.handlers, OneBlob())
    endpoint = Endpoint(board)
    await endpoint.listen(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    print(endpoint.address[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await endpoint.close()
    await close_all()


if __name__ == "__main__":
    uvloop.run(serve())
