"""The two processes of `bench/wire.py`: an echo over one sealed link, on the real runtime."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from typing import cast

import msgspec
import uvloop

from squall.cluster.wire.catalogue import message
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

SECRET = "a secret of the bench"
TICK_S = 0.001


@message(60_000, MessageClass.DATA)
class Echo(msgspec.Struct, frozen=True):
    body: bytes


class Slot:
    waits = False

    async def turn(self) -> None: ...
    def release(self) -> None: ...


SLOT = Slot()


async def answer_in_a_task(echo: Echo, _: object) -> Echo:
    return echo


def board(node: str, *, tasks: bool = False) -> Switchboard:
    """With `tasks` each request is handled by a coroutine, as a gRPC server does it."""
    runtime = cast("Runtime", RealRuntime(node))
    handlers = Handlers()
    handlers.on(Echo, answer_in_a_task if tasks else lambda echo, _: echo)
    return Switchboard(
        runtime=runtime,
        keyring=make_keyring(runtime, Secrets.of_node(SECRET), "bench"),
        admit=lambda *_: SLOT,
        tasks=TaskRunner(runtime.clock, random.Random(1)),
        handlers=handlers,
    )


async def serve(tasks: bool) -> None:
    endpoint = Endpoint(board("server", tasks=tasks))
    await endpoint.listen(("127.0.0.1", 0))
    print(endpoint.address[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await endpoint.close()


async def throughput(peer: Peer, seconds: float, callers: int, echo: Echo) -> dict[str, float]:
    """Answers per second with so many requests in flight, and what one costs the caller."""
    answered = 0
    until = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal answered
        while time.perf_counter() < until:
            await peer.request(echo, 5.0)
            answered += 1

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    rate = answered / (time.perf_counter() - began)
    return {"rate": rate, "cpu_us": 1e6 * (time.process_time() - cpu) / answered}


async def latencies(peer: Peer, seconds: float, rate: float, echo: Echo) -> list[float]:
    """Seconds from the planned start to the answer, at a fixed rate."""
    taken: list[float] = []
    running: set[asyncio.Task[None]] = set()

    async def one(planned: float) -> None:
        await peer.request(echo, 5.0)
        taken.append(time.perf_counter() - planned)

    began = time.perf_counter()
    started = 0
    while (now := time.perf_counter()) - began < seconds:
        due = int((now - began) * rate)
        for number in range(started, due):
            task = asyncio.create_task(one(began + number / rate))
            running.add(task)
            task.add_done_callback(running.discard)
        started = max(started, due)
        await asyncio.sleep(TICK_S)
    if running:
        await asyncio.wait(running)
    return sorted(taken)


async def load(port: int, seconds: float, callers: int, size: int, paced: bool) -> None:
    peer = Peer(board("client"), ("127.0.0.1", port))
    peer.start()
    await peer.connected(5.0)
    echo = Echo(b"x" * size)
    outcome = await throughput(peer, seconds, callers, echo)
    if paced:
        taken = await latencies(peer, seconds, outcome["rate"] / 2, echo)
        outcome["p50_ms"] = 1e3 * taken[len(taken) // 2]
        outcome["p99_ms"] = 1e3 * taken[int(len(taken) * 0.99)]
    await peer.close()
    print(json.dumps(outcome))


async def intake(port: int, connections: int) -> None:
    """All dial at once; done when every handshake is, and each was answered once."""
    peers = [Peer(board(f"node-{n}"), ("127.0.0.1", port)) for n in range(connections)]
    began = time.perf_counter()
    for peer in peers:
        peer.start()
    await asyncio.gather(*(peer.connected(60.0) for peer in peers))
    connected_s = time.perf_counter() - began
    await asyncio.gather(*(peer.request(Echo(b"x" * 300), 30.0) for peer in peers))
    answered_s = time.perf_counter() - began
    await asyncio.gather(*(peer.close() for peer in peers))
    print(json.dumps({"connected_s": connected_s, "answered_s": answered_s}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("serve", "load", "intake"))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--tasks", action="store_true")
    options = parser.parse_args()
    if options.part == "serve":
        work = serve(options.tasks)
    elif options.part == "intake":
        work = intake(options.port, options.connections)
    else:
        work = load(options.port, options.seconds, options.callers, options.size, options.paced)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    main()
