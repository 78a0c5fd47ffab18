"""The peer of `bench/wire.py`: the same echo over grpcio's asyncio, without TLS.

Runs in the environment of the bench's peers and knows nothing of Squall. Requests and
answers are raw bytes, so that no serialiser counts against it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

import grpc
import grpc.aio

METHOD = "/bench.Echo/Call"


async def serve() -> None:
    async def echo(request: bytes, context: object) -> bytes:
        return request

    handler = grpc.unary_unary_rpc_method_handler(echo)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Echo", {"Call": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


async def load(port: int, seconds: float, callers: int, size: int) -> None:
    body = b"x" * size
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)
        await call(body)
        answered = 0
        until = time.perf_counter() + seconds

        async def caller() -> None:
            nonlocal answered
            while time.perf_counter() < until:
                await call(body)
                answered += 1

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(caller() for _ in range(callers)))
        rate = answered / (time.perf_counter() - began)
        cpu_us = 1e6 * (time.process_time() - cpu) / answered
        print(json.dumps({"rate": rate, "cpu_us": cpu_us}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("serve", "load"))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--size", type=int, default=300)
    options = parser.parse_args()
    if options.part == "serve":
        asyncio.run(serve())
    else:
        asyncio.run(load(options.port, options.seconds, options.callers, options.size))


if __name__ == "__main__":
    main()
