"""The coordination library on Redis, beside the same work by redis-py's own means.

Queue: a ticket is claimed and done, one after another per worker. redis-py does it in two
ways that people use: the reliable list (LMOVE to a list of the worker; at the end LREM from
it and a record of the end that only one may write, in one MULTI), and its `Lock` around a pop
(acquire, LPOP, record, release). Both get an expiry on the record, as ours has; neither gives
up a dead worker's item by itself, nor signs anything. Ours does both. All have as many workers
in one process and take one item at a time; ours with batches is shown beside. They take turns
on one server and the ratio is taken within a round.

Signals: a signal and the answer to it, between two members on loopback. Beside it the same
with nothing but redis-py (LPUSH and BLPOP there and back, two clients), in turns with ours in
the same run: what disturbs the machine disturbs both, and their ratio says more than either.
Rounds count in which the host of a virtual machine gave it all the time that it wanted (`steal`
in /proc/stat); if there are too few of them, all count.
Members: a thousand at the default profile, in one process on one store object, elected, beating
and watched; counted is the user and system time of that process, the coordinator and its monitor
included, and the server's beside it.
Elections: from the end of the old coordinator to the first act of the new one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import redis.asyncio
import uvloop

from squall.coordination import Coordinator, Queue, Term, Timing
from squall.coordination.signals.member_signals import Delivery
from squall.coordination.stores.interface import Store
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock

URL = os.environ.get("SQUALL_TEST_REDIS", "redis://127.0.0.1:6379/0")
SECRET = "9f1c04d7e85ab3620b7de4419a30cf58e2671d93ac04b8f57721e6908d3b5ac2"
QUEUE_BAR = 1.0
SIGNAL_BAR_MS = 5.0
MEMBERS_BAR = 0.05
GRACEFUL_BAR_S = 0.2
CRASH_SLACK_S = 1.0
BODY = {"to": "ada", "subject": "hello", "text": "x" * 100}
RESULT = {"ok": True}
DONE_TTL_S = 86_400
LIMIT_S = 120.0
ROUND = 100
ROUNDS_MAX = 200
STOLEN_MAX_S = 0.0
BATCH = 10
"""Tickets that a worker of ours may ask for at a time; LMOVE and Lock know only one."""
QUICK = Timing(
    heartbeat_interval=0.5,
    heartbeat_ttl=6.0,
    dead_after=7.5,
    monitor_interval=0.5,
    lease_ttl=2.0,
    min_epoch_duration=0.0,
    cold_start_observation_window=0.0,
    cold_start_preparation_delay=0.0,
    work_interval=0.05,
    retention=60.0,
)

Row = tuple[str, str, str]


def main() -> int:
    options = _options()
    if options.lead:
        uvloop.run(_lead(options.lead))
        return 0
    return uvloop.run(_main(options))


async def _main(options: argparse.Namespace) -> int:
    missed = False
    parts = {"queue": _queue, "signals": _signals, "members": _members, "elections": _elections}
    for name in options.only or parts:
        for what, shown, bar in await parts[name](options):
            print(f"  {what:<44}{shown:<24}{bar}", flush=True)
            missed = missed or "MISSED" in bar
    return 1 if options.check and missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tickets", type=int, default=4000, help="of one run (4000)")
    parser.add_argument("--workers", type=int, default=8, help="in one process (8)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--signals", type=int, default=2000, help="round trips that count (2000)")
    parser.add_argument("--members", type=int, default=1000, help="at the default profile (1000)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that they are watched (30)")
    parser.add_argument("--elections", type=int, default=5, help="of each kind (5)")
    parser.add_argument(
        "--only",
        action="append",
        choices=("queue", "signals", "members", "elections"),
        help="this part; may be given again",
    )
    parser.add_argument("--quick", action="store_true", help="to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    parser.add_argument("--lead", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.tickets, options.rounds, options.signals = 1000, 3, 500
        options.members, options.seconds, options.elections = 200, 10.0, 2
    return options


def _bar(holds: bool, shown: str) -> str:
    return f"{shown}: {'holds' if holds else 'MISSED'}"


class Place:
    """A prefix of its own on the server, gone afterwards."""

    def __init__(self) -> None:
        self.prefix = f"bench.{uuid.uuid4().hex[:12]}"
        self.stores: list[Store] = []

    def store(self) -> Store:
        made = make_store(URL, RealClock(), random.Random(), prefix=self.prefix)
        self.stores.append(made)
        return made

    async def __aenter__(self) -> Place:
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self.stores:
            await store.close()
        async with redis.asyncio.Redis.from_url(URL) as client:
            async for key in client.scan_iter(match="{" + self.prefix + "}*", count=1000):
                await client.delete(key)
            async for key in client.scan_iter(match=f"{self.prefix}*", count=1000):
                await client.delete(key)


def _member(place: Place, *plugins: Queue, **options: Any) -> Coordinator:
    chosen: dict[str, Any] = {"profile": QUICK, "unsafe_timings": True, "secret": SECRET}
    chosen |= options
    return Coordinator(place.store(), *plugins, **chosen)


# Queue.


async def _queue(options: argparse.Namespace) -> list[Row]:
    rounds: list[tuple[float, float, float, float]] = []
    for _ in range(options.rounds):
        async with Place() as place, Place() as other:
            ours = await _our_queue(place, options, batch=1)
            listed = await _list_queue(place, options)
            locked = await _lock_queue(place, options)
            batched = await _our_queue(other, options, batch=BATCH)
        rounds.append((ours, listed, locked, batched))
    ours, listed, locked, batched = (statistics.median(each) for each in zip(*rounds, strict=True))
    to_list = statistics.median(each[0] / each[1] for each in rounds)
    to_lock = statistics.median(each[0] / each[2] for each in rounds)
    bar = f"at least {QUEUE_BAR:g}"
    return [
        ("tickets claimed and done per second", f"{ours:,.0f}", ""),
        (f"the same, taken {BATCH} at a time", f"{batched:,.0f}", ""),
        ("redis-py, reliable list", f"{listed:,.0f}", ""),
        ("redis-py, Lock and pop", f"{locked:,.0f}", ""),
        ("of the reliable list", f"{to_list:.2f}", _bar(to_list >= QUEUE_BAR, bar)),
        ("of Lock and pop", f"{to_lock:.2f}", _bar(to_lock >= QUEUE_BAR, bar)),
    ]


async def _together(work: Callable[[int], Awaitable[None]], workers: int, count: int) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(workers)))
    return count / (time.perf_counter() - begun)


async def _our_queue(place: Place, options: argparse.Namespace, *, batch: int) -> float:
    queue = Queue("bench", window=options.tickets)
    async with _member(place, queue) as coordinator:
        for _ in range(options.tickets):
            await queue.enqueue(BODY)
        await _until(lambda: _is_ready(coordinator, queue, options.tickets))
        left, finished = options.tickets, asyncio.Event()

        async def work() -> None:
            nonlocal left
            async for ticket in queue.claim(batch=batch):
                await ticket.complete(RESULT)
                left -= 1
                if left == 0:
                    finished.set()

        begun = time.perf_counter()
        workers = [asyncio.ensure_future(work()) for _ in range(options.workers)]
        async with asyncio.timeout(LIMIT_S):
            await finished.wait()
        rate = options.tickets / (time.perf_counter() - begun)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return rate


async def _is_ready(coordinator: Coordinator, queue: Queue, tickets: int) -> bool:
    return (await coordinator.store.depth(queue.keys.ready)).items >= tickets


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await holds():  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.05)


async def _list_queue(place: Place, options: argparse.Namespace) -> float:
    name, body = f"{place.prefix}:list", json.dumps(BODY)
    async with redis.asyncio.Redis.from_url(URL) as client:
        for number in range(options.tickets):
            await client.lpush(name, json.dumps({"id": number, "body": body}))

        async def work(number: int) -> None:
            mine = f"{name}:taken:{number}"
            while (item := await client.lmove(name, mine, "RIGHT", "LEFT")) is not None:
                ticket = json.loads(item)
                async with client.pipeline(transaction=True) as pipe:
                    key = f"{name}:done:{ticket['id']}"
                    pipe.set(key, json.dumps(RESULT), nx=True, ex=DONE_TTL_S)
                    pipe.lrem(mine, 1, item)  # pyright: ignore[reportArgumentType] - it takes bytes
                    await pipe.execute()

        return await _together(work, options.workers, options.tickets)


async def _lock_queue(place: Place, options: argparse.Namespace) -> float:
    """The lock is that of one item, as people use it against double work."""
    name, body = f"{place.prefix}:locked", json.dumps(BODY)
    async with redis.asyncio.Redis.from_url(URL) as client:
        for number in range(options.tickets):
            await client.lpush(name, json.dumps({"id": number, "body": body}))

        async def work(number: int) -> None:
            while (item := await client.rpop(name)) is not None:
                assert isinstance(item, bytes)
                ticket = json.loads(item)
                async with client.lock(f"{name}:lock:{ticket['id']}", timeout=30.0):
                    key = f"{name}:done:{ticket['id']}"
                    await client.set(key, json.dumps(RESULT), nx=True, ex=DONE_TTL_S)

        return await _together(work, options.workers, options.tickets)


# Signals.


async def _signals(options: argparse.Namespace) -> list[Row]:
    rounds: list[Round] = []
    async with (
        Place() as place,
        _member(place, member_id="a") as a,
        _member(place, member_id="b") as b,
        _echo(place) as echo,
    ):

        async def answer(delivery: Delivery) -> None:
            signal = delivery.signal
            await b.send_signal("a", "completion", correlation_id=signal.correlation_id)

        async def trip(name: str) -> float:
            begun = time.perf_counter()
            await a.send_signal("b", "ask", correlation_id=name)
            await a.block_until_signal(correlation_id=name, timeout_s=30.0)
            return time.perf_counter() - begun

        b.on_signal("ask", answer)
        for number in range(50):
            await trip(f"warm-{number}")
        while _undisturbed(rounds) < options.signals and len(rounds) < ROUNDS_MAX:
            stolen, times, bare = _stolen_s(), list[float](), list[float]()
            for number in range(ROUND):
                times.append(await trip(f"c{len(rounds)}-{number}"))
                bare.append(await echo())
            rounds.append(Round(times, bare, _stolen_s() - stolen))
    return _signal_rows(rounds, options.signals)


@dataclasses.dataclass(frozen=True)
class Round:
    """Trips one after another, by ours and by redis-py in turns."""

    times: list[float]
    bare: list[float]
    stolen_s: float
    """What the host took from this machine meanwhile."""


def _undisturbed(rounds: list[Round]) -> int:
    return sum(len(each.times) for each in rounds if each.stolen_s <= STOLEN_MAX_S)


def _stolen_s() -> float:
    """Time that this machine's cores wanted to run and their host did not let them."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def _signal_rows(rounds: list[Round], wanted: int) -> list[Row]:
    quiet = [each for each in rounds if each.stolen_s <= STOLEN_MAX_S]
    judged = quiet if _undisturbed(rounds) >= wanted else rounds
    p50, p99 = _percentiles_ms([time_s for each in judged for time_s in each.times])
    bare_p50, bare_p99 = _percentiles_ms([time_s for each in judged for time_s in each.bare])
    all_p50, all_p99 = _percentiles_ms([time_s for each in rounds for time_s in each.times])
    bar = _bar(p99 < SIGNAL_BAR_MS, f"under {SIGNAL_BAR_MS:g} ms")
    stolen_s = sum(each.stolen_s for each in rounds)
    counted = f"{len(judged)} of {len(rounds)} rounds of {ROUND}"
    return [
        ("signal and answer, p50 / p99", f"{p50:.2f} / {p99:.2f} ms", bar),
        ("redis-py, LPUSH and BLPOP there and back", f"{bare_p50:.2f} / {bare_p99:.2f} ms", ""),
        ("ours in times of that", f"{p50 / bare_p50:.1f} / {p99 / bare_p99:.1f}", ""),
        ("rounds that count", counted, f"{stolen_s:.1f} s were stolen by the host"),
        ("with all rounds, p50 / p99", f"{all_p50:.2f} / {all_p99:.2f} ms", ""),
    ]


def _percentiles_ms(times: list[float]) -> tuple[float, float]:
    ordered = sorted(times)
    p50, p99 = (ordered[int(len(ordered) * part)] * 1000.0 for part in (0.5, 0.99))
    return p50, p99


@contextlib.asynccontextmanager
async def _echo(place: Place) -> AsyncGenerator[Callable[[], Awaitable[float]]]:
    """Gives a function that sends one message to another client and times the way back."""
    ask, reply = f"{place.prefix}:ask", f"{place.prefix}:reply"
    ended, patient = False, dict[str, Any](socket_timeout=None)
    async with (
        redis.asyncio.Redis.from_url(URL, **patient) as one,
        redis.asyncio.Redis.from_url(URL, **patient) as other,
    ):

        async def answer() -> None:
            while not ended:
                found = await other.blpop(ask, timeout=1.0)
                if found is not None:
                    await other.lpush(reply, found[1])

        async def trip() -> float:
            begun = time.perf_counter()
            await one.lpush(ask, json.dumps(BODY))
            if await one.blpop(reply, timeout=30.0) is None:
                raise RuntimeError("the echo of redis-py did not answer within 30 s")
            return time.perf_counter() - begun

        # No cancellation: redis-py may swallow one that comes together with an answer.
        answering = asyncio.ensure_future(answer())
        try:
            yield trip
        finally:
            ended = True
            await answering


# Members.


async def _members(options: argparse.Namespace) -> list[Row]:
    """All in one process on one store object; the server's own time is shown beside."""
    async with Place() as place, redis.asyncio.Redis.from_url(URL) as client:
        store = place.store()
        members = [
            Coordinator(store, member_id=f"m{number:05d}", secret=SECRET, skip_cold_start=True)
            for number in range(options.members)
        ]
        for begin in range(0, len(members), 50):
            await asyncio.gather(*(each.start() for each in members[begin : begin + 50]))
        await _until(lambda: _has_leader(members))
        await asyncio.sleep(min(10.0, options.seconds))
        begun, own, server = time.perf_counter(), _cpu_s(), await _server_s(client)
        await asyncio.sleep(options.seconds)
        took = time.perf_counter() - begun
        part = (_cpu_s() - own) / took
        served = (await _server_s(client) - server) / took
        for begin in range(0, len(members), 50):
            await asyncio.gather(*(each.stop() for each in members[begin : begin + 50]))
    thousand, server_part = (each * 1000.0 / options.members for each in (part, served))
    return [
        (f"a core for {options.members} members in one process", f"{part:.1%}", ""),
        (
            "the same for a thousand",
            f"{thousand:.1%}",
            _bar(thousand < MEMBERS_BAR, f"under {MEMBERS_BAR:.0%}"),
        ),
        ("the server's core, for a thousand", f"{server_part:.1%}", ""),
    ]


async def _has_leader(members: list[Coordinator]) -> bool:
    return any(each.is_coordinator for each in members)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _server_s(client: redis.asyncio.Redis) -> float:
    info = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


# Elections.


async def _elections(options: argparse.Namespace) -> list[Row]:
    graceful = [await _graceful() for _ in range(options.elections)]
    crashes = [await _crash() for _ in range(options.elections)]
    limit_s = QUICK.lease_ttl + CRASH_SLACK_S
    return [
        (
            "elected after a graceful stop, worst",
            f"{max(graceful) * 1000.0:.0f} ms",
            _bar(max(graceful) < GRACEFUL_BAR_S, f"under {GRACEFUL_BAR_S * 1000:g} ms"),
        ),
        (
            f"elected after kill -9, lease {QUICK.lease_ttl:g} s, worst",
            f"{max(crashes):.2f} s",
            _bar(max(crashes) < limit_s, f"under {limit_s:g} s"),
        ),
    ]


async def _graceful() -> float:
    async with Place() as place:
        first = _member(place, member_id="a")
        await first.start()
        async with first.lead():
            pass
        async with _member(place, member_id="b") as second:
            await asyncio.sleep(1.0)
            begun = time.perf_counter()
            waiting = asyncio.ensure_future(_led(second))
            await first.stop()
            return await waiting - begun


async def _crash() -> float:
    async with Place() as place:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--lead", place.prefix), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        async with _member(place, member_id="b") as second:
            await asyncio.sleep(1.0)
            begun = time.perf_counter()
            process.kill()
            elapsed = await _led(second) - begun
            await process.wait()
            return elapsed


async def _led(member: Coordinator) -> float:
    async with member.lead():
        return time.perf_counter()


async def _lead(prefix: str) -> None:
    """In a process that is killed."""
    told = False

    async def work(term: Term) -> None:
        nonlocal told
        if not told:
            told = True
            print("leads", flush=True)

    store = make_store(URL, RealClock(), random.Random(), prefix=prefix)
    options: dict[str, Any] = {"profile": QUICK, "unsafe_timings": True, "secret": SECRET}
    async with Coordinator(store, member_id="a", work=work, **options):
        await asyncio.sleep(3600.0)


if __name__ == "__main__":
    sys.exit(main())
