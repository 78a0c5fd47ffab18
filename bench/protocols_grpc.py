"""gRPC against h2load and grpc.aio: operations per second of CPU time, from nghttpd on core 0.

nghttpd answers with a framed message of a file and a status in the trailers, which is faster than
any gRPC server. h2load sends the same bytes and ignores the status.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import generators

REPLY = b"\x0a\x0bhello world"
FRAMED = b"\0" + len(REPLY).to_bytes(4, "big") + REPLY
# Messages of one stream.
MANY = 1000
# Connections and streams of each; the bars are of h2load and of grpc.aio.
BARS = {(64, 1): (0.65, 6.0), (8, 8): (0.40, 6.0)}
STREAM_BAR = 3.0
START_TIMEOUT_S = 20.0
HEADERS = ("-H", "content-type: application/grpc", "-H", "te: trailers")

Row = tuple[str, float, float | None, float]


def rows(seconds: float, rounds: int) -> list[Row]:
    """(Name, our operations per second of CPU time, those of a peer, bar)."""
    found: list[Row] = []
    with _nghttpd() as (url, folder):
        for (connections, streams), (native_bar, aio_bar) in BARS.items():
            shape = f"{connections} x {streams}"
            made = [_unary(url, folder, connections, streams, seconds) for _ in range(rounds)]
            ours = median(each[0] for each in made)
            native = median(each[0] / each[1] for each in made)
            aio = median(each[0] / each[2] for each in made)
            found.append((f"gRPC against h2load, {shape}", ours, ours / native, native_bar))
            found.append((f"gRPC against grpc.aio, {shape}", ours, ours / aio, aio_bar))
        both = [(_streamed(url, seconds), _aio(url, "Many", 8, 1, seconds)) for _ in range(rounds)]
        ours = median(each[0] for each in both)
        ratio = median(each[0] / each[1] for each in both)
        found.append(("gRPC streams against grpc.aio", ours, ours / ratio, STREAM_BAR))
    return found


def _unary(
    url: str, folder: str, connections: int, streams: int, seconds: float
) -> tuple[float, float, float]:
    os.environ["STREAMS"] = str(streams)
    done = generators.squall(url, connections * streams, round(seconds), file="hello_grpc.py")
    if done.failed_checks:
        raise RuntimeError(f"{done.failed_checks} gRPC calls failed")
    native = _h2load(url, folder, connections, streams, seconds)
    return 1 / done.cost_s, native, _aio(url, "Say", connections, streams, seconds)


def _streamed(url: str, seconds: float) -> float:
    done = generators.squall(url, 8, round(seconds), file="hello_grpc_stream.py")
    (found,) = (
        each for each in done.document["workflows"][0]["protocols"] if each["name"] == "grpc"
    )
    return found["messages_received"] / done.cpu_s


def _h2load(url: str, folder: str, connections: int, streams: int, seconds: float) -> float:
    command = ["h2load", f"-c{connections}", f"-m{streams}", "-t1", f"-D{round(seconds)}"]
    before = generators.cpu_s()
    text = generators.run([*command, "-d", f"{folder}/body", *HEADERS, f"{url}/demo.Echo/Say"])
    found = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", text)
    if found is None or found[2] != "0" or found[3] != "0":
        raise RuntimeError(f"h2load had failures:\n{text}")
    return int(found[1]) / (generators.cpu_s() - before)


def _aio(url: str, method: str, connections: int, streams: int, seconds: float) -> float:
    words = [url, method, str(connections), str(streams), str(round(seconds))]
    return float(generators.run([sys.executable, __file__, "load", *words]))


@contextmanager
def _nghttpd() -> Generator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        service = Path(folder) / "demo.Echo"
        service.mkdir()
        (service / "Say").write_bytes(FRAMED)
        (service / "Many").write_bytes(FRAMED * MANY)
        (Path(folder) / "body").write_bytes(FRAMED)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = ["taskset", "-c", "0", "nghttpd", "--no-tls", "--trailer=grpc-status: 0"]
        server = subprocess.Popen(
            [*command, "-d", folder, str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}", folder
        finally:
            server.terminate()
            server.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server listens on port {port}") from error
            time.sleep(0.02)


async def _load(url: str, method: str, connections: int, streams: int, seconds: float) -> None:
    """Prints the operations of grpc.aio per second of CPU time."""
    import grpc.aio

    # Connections of their own, as ours are.
    options = [("grpc.use_local_subchannel_pool", 1)]
    place = url.removeprefix("http://")
    channels = [grpc.aio.insecure_channel(place, options) for _ in range(connections)]
    done = 0
    began, until = time.process_time(), time.perf_counter() + seconds

    async def caller(channel: grpc.aio.Channel) -> None:
        nonlocal done
        say = channel.unary_unary("/demo.Echo/Say")
        many = channel.unary_stream("/demo.Echo/Many")
        while time.perf_counter() < until:
            if method == "Say":
                await say(REPLY)
                done += 1
            else:
                async for _ in many(REPLY):
                    done += 1

    await asyncio.gather(*[caller(each) for each in channels for _ in range(streams)])
    print(done / (time.process_time() - began))


def main() -> int:
    if sys.argv[1:2] == ["load"]:
        url, method, connections, streams, seconds = sys.argv[2:]
        asyncio.run(_load(url, method, int(connections), int(streams), float(seconds)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail below the bars")
    arguments = parser.parse_args()
    below = 0
    for name, ours, peer, bar in rows(arguments.seconds, arguments.rounds):
        assert peer is not None
        print(f"{name:40} {ours:10,.0f} {peer:10,.0f}  {ours / peer:6.2f}  bar {bar:5.2f}")
        below += ours / peer < bar
    return 1 if arguments.check and below else 0


if __name__ == "__main__":
    sys.exit(main())
