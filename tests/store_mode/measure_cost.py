"""Measures what agents ask of their store, at their normal pace: the figures of
`squall.store_mode.request_cost`.

    .venv/bin/python -m tests.store_mode.measure_cost --store s3 --agents 3

The model of S3 writes a line for each request; Redis counts for itself, also the commands inside
of its scripts, which nobody sends. Idle for a minute, then with a run of two.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

from tests.cluster.lab.chaos_rows import CLOSED
from tests.lab.target import TargetHandle, running_target
from tests.store_mode.lab.agents import RedisPlace, StoreLab, moto_running, place_of

SENT = ("evalsha", "xread")
"""What agents send to Redis; everything else is done by their scripts."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Meter(Protocol):
    def read(self) -> Counter[str]: ...


class RedisMeter:
    def __init__(self, place: RedisPlace) -> None:
        self._place = place

    def read(self) -> Counter[str]:
        import redis

        client = redis.Redis.from_url(self._place.url)
        found: Counter[str] = Counter()
        stats = client.info("stats")
        found["bytes in"] = int(stats["total_net_input_bytes"])
        found["bytes out"] = int(stats["total_net_output_bytes"])
        calls = client.info("commandstats")
        for name in SENT:
            found[name] = int(calls.get(f"cmdstat_{name}", {"calls": 0})["calls"])
        client.close()
        return found


class Relay:
    """Stands before a server and counts the bytes in both directions, heads included."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        await asyncio.gather(
            self._pass(reader, back, "bytes in"), self._pass(there, writer, "bytes out")
        )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.counts[name] += len(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


class S3Meter:
    """Reads the lines that the server wrote, one for each request. `what_for` says which
    kinds of keys they were about."""

    def __init__(self, log: Path, relay: Relay) -> None:
        self._log = log
        self._relay = relay
        self.what_for: Counter[str] = Counter()

    def read(self) -> Counter[str]:
        found = self._relay.counts.copy()
        self.what_for = Counter()
        # The server paints the lines of requests that found nothing.
        for line in COLOUR.sub("", self._log.read_text(errors="replace")).splitlines():
            words = line.partition('"')[2].split()
            if words[:1] and words[0] in ("GET", "PUT", "POST", "DELETE", "HEAD"):
                method = "LIST" if "list-type=2" in words[1] else words[0]
                found[method] += 1
                self.what_for[f"{method} {_kind(words[1])}"] += 1
        return found


def _kind(path: str) -> str:
    """The kind of the keys that a request is about: `mail`, `heartbeat`, `log`."""
    named = re.search(r"(?:/|%2F)squall(?:/|%2F)([a-z-]+)", path)
    return named.group(1) if named else "several"


@contextlib.contextmanager
def metered(
    kind: str, folder: Path, target: TargetHandle, agents: int
) -> Generator[tuple[StoreLab, Meter]]:
    """Agents at their normal pace, idle, on a store that is counted at."""
    if kind == "redis":
        place = RedisPlace(folder)
        with StoreLab(folder, target, place, agents=agents, timers="lan") as lab:
            yield lab, RedisMeter(place)
        return
    with moto_running(folder / "moto.log") as moto:
        relay = Relay(moto.port)
        moto.endpoint = f"http://127.0.0.1:{relay.port}"
        place = place_of(kind, folder, moto)
        with StoreLab(folder, target, place, agents=agents, timers="lan") as lab:
            yield lab, S3Meter(folder / "moto.log", relay)


def counted(meter: Meter, seconds: float) -> tuple[Counter[str], float]:
    """What is asked in about so long, and how long it was."""
    # From before the first reading to after the last one: a process that is kept waiting between
    # a reading and the clock must not count for more than was asked.
    began, before = time.monotonic(), meter.read()
    time.sleep(seconds)
    return meter.read() - before, time.monotonic() - began


def requests_of(counts: Counter[str]) -> int:
    return sum(n for name, n in counts.items() if not name.startswith("bytes"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=("redis", "s3"), default="redis")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--run-s", type=int, default=120)
    options = parser.parse_args()
    agents: int = options.agents
    with (
        running_target(["--seed", "7"]) as target,
        tempfile.TemporaryDirectory() as name,
        metered(options.store, Path(name), target, agents) as (lab, meter),
    ):
        time.sleep(10.0)
        _show_phase("idle", agents, meter, options.idle_s)
        file = lab.write(CLOSED.format(users=agents, seconds=options.run_s))
        before, began = meter.read(), time.monotonic()
        command = lab.run(file, "--quiet")
        lab.wait_load(within_s=120.0)
        started, start = meter.read(), time.monotonic()
        _show("start", agents, started - before, start - began)
        _show_phase("running", agents, meter, options.run_s - 20.0)
        ended, last = meter.read(), time.monotonic()
        command.end(300.0)
        _show("end", agents, meter.read() - ended, time.monotonic() - last)
    return 0


def _show_phase(what: str, agents: int, meter: Meter, seconds: float) -> None:
    before = _what_for(meter)
    counts, took_s = counted(meter, seconds)
    _show(what, agents, counts, took_s)
    _show("what for", agents, _what_for(meter) - before, took_s)


def _what_for(meter: Meter) -> Counter[str]:
    meter.read()
    return meter.what_for.copy() if isinstance(meter, S3Meter) else Counter()


def _show(what: str, agents: int, counts: Counter[str], seconds: float) -> None:
    requests = requests_of(counts)
    minutes = seconds / 60.0
    print(
        f"{what:8} {seconds:6.1f} s  {requests:7} requests, per agent and minute "
        f"{requests / minutes / agents:8.1f} ({requests / seconds / agents:.2f}/s), "
        f"kB {sum(n for k, n in counts.items() if k.startswith('bytes')) / 1000:.0f}",
        {name: round(n / minutes / agents, 1) for name, n in counts.most_common(30)},
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
