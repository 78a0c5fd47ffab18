"""The acceptance of the coordination library at full size, as a command.

    python -m tests.services.coordination.acceptance queue --store redis
    python -m tests.services.coordination.acceptance all --store s3

`winner`: 50 members start in one moment, 20 times. `start`: on the defaults a fresh group goes
through its phases, and its coordinator ends when it is asked to. `failover`: one of five processes
leads and is killed, five times on short timings and once on the defaults. `pause`: the coordinator
is stopped between a decision and its write, knowing of it and not. `rotation` (Redis, S3): the
secret is changed under 20 signals a second of five processes. `queue`: 5,000 tickets (S3: 500),
ten workers, every five seconds one of them or the coordinator is killed and started again.
`schedule`: a job every two seconds for two minutes with three kills of the coordinator. `ttl`:
records that expire and records that are refreshed in their last moment, with three kills of the
coordinator. `outage` (S3): errors 500, 503 and no answer at all, 20 s each. `clock`: one member an
hour off. `cut` (Redis, S3): 50 times a proxy cuts only the coordinator from the store. `absence`
(Redis, S3): the store is away for three minutes, on the default profile. `contention` (Redis):
answers are late for two minutes. Each ends with 0 if every promise held, over everything that was
written down; the tests beside have the same at a smaller size. S3 is moto or, with
`--s3 seaweedfs`, a real server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from squall.coordination import ANY, Coordinator, Put, Queue, StoreUnavailableError
from squall.coordination.queue.records import Final
from squall.coordination.stores.open import make_store
from squall.coordination.timing import PROFILES
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.acceptance.clean_start import StartLab
from tests.services.coordination.acceptance.crash_failover import CrashLab
from tests.services.coordination.acceptance.cut_leader import running
from tests.services.coordination.acceptance.long_outage import (
    FULL_BREAKER,
    FULL_RETRY,
    Outage,
    Size,
)
from tests.services.coordination.acceptance.one_winner import agreed_within_s, play_rounds
from tests.services.coordination.acceptance.paused_leader import PausedLab
from tests.services.coordination.acceptance.secret_rotation import RotationLab, change_the_secret
from tests.services.coordination.acceptance.slow_store import slow_down
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import (
    BUCKET,
    REDIS_URL,
    Place,
    forget_redis,
)
from tests.services.coordination.lab.processes import Lab
from tests.services.coordination.lab.queue_workers import WorkLab, check_runs, check_tickets
from tests.services.coordination.lab.s3_servers import SERVERS
from tests.services.coordination.programs.worker import EVERY_S, QUEUE, SECRET, VISIBILITY_S, expiry

KINDS = ("memory", "sqlite", "redis", "s3")
SHARED = ("sqlite", "redis", "s3")
PARTS = (
    *("winner", "start", "failover", "pause", "rotation"),
    *("queue", "schedule", "ttl", "outage", "clock", "cut", "absence", "contention"),
)
ONLY = {
    "winner": KINDS,
    "rotation": ("redis", "s3"),
    "outage": ("s3",),
    "cut": ("redis", "s3"),
    "absence": ("redis", "s3"),
    "contention": ("redis",),
}
"""Stores that a part is for; all that processes can share if it is not named."""
ORDER_KEYS = ("", "", "ada", "bob")
KILL_EVERY_S = 5.0
OUTAGE_S = 20.0
AWAY_S = 180.0
LATE_FOR_S = 120.0
RESULTS_S = 900.0
EXPIRING = 20
EXPIRES_S = 4.0
SWEPT_S = 10.0
"""An interval of the sweep, its own time on a busy machine, and a slow store."""
MANY = 1_000_000
S3_SCALE = 3.0
QUEUE_S3_SCALES = {"moto": 6.0, "seaweedfs": 2.0}
"""Ten workers ask for heartbeats, leases and work all the time: on the scale of the other parts
that is 50 requests a second, most of what moto answers on two cores."""
WINNERS = 50
CRASHES = 5
PAUSES = 5
TIMEOUT_S = 120.0
TALKERS = 5
SIGNALS_PER_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--store", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--tickets", type=int, default=0, help="5000, on S3 500")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the schedule")
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20, help="of members that start together")
    parser.add_argument("--s3", choices=SERVERS, default="moto", help="which server (moto)")
    options = parser.parse_args()
    failed = False
    for kind in KINDS if options.store == "all" else (options.store,):
        for part in PARTS if options.part == "all" else (options.part,):
            if kind not in ONLY.get(part, SHARED):
                continue
            begun = time.monotonic()
            try:
                told = PARTS_OF[part](kind, options)
                print(f"{part} on {kind}: holds, {told}, {time.monotonic() - begun:.0f} s")
            except AssertionError:
                failed = True
                print(f"{part} on {kind}: FAILED\n{traceback.format_exc()}")
            sys.stdout.flush()
    return 1 if failed else 0


@contextmanager
def served(kind: str, s3: str) -> Iterator[tuple[str, str, Path]]:
    """URL, prefix and a folder; S3 is a process of its own."""
    prefix = f"accept.{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory() as folder:
        journals = Path(folder, "journals")
        journals.mkdir()
        if kind == "memory":
            yield "memory://", prefix, journals
        elif kind == "sqlite":
            yield f"sqlite:///{folder}/store.db", prefix, journals
        elif kind == "redis":
            try:
                yield REDIS_URL, prefix, journals
            finally:
                forget_redis(REDIS_URL, prefix)
        else:
            with SERVERS[s3]() as endpoint:
                yield _s3_url(endpoint, prefix), prefix, journals


def _s3_url(endpoint: str, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}?endpoint={endpoint}&region=us-east-1"


def _scale(kind: str) -> float:
    return S3_SCALE if kind == "s3" else 1.0


def _winner(kind: str, options: argparse.Namespace) -> str:
    with served(kind, options.s3) as (url, prefix, _):

        async def play() -> str:
            place = Place(kind, url, prefix)
            found = await play_rounds(place, WINNERS, options.rounds, patience_s=TIMEOUT_S)
            found.check(agreed_within_s(kind))
            return (
                f"{WINNERS} members, {len(found.epochs)} rounds, agreed within"
                f" {min(found.took_s):.1f} to {max(found.took_s):.1f} s, epochs"
                f" {found.epochs[0]} to {found.epochs[-1]}"
            )

        return asyncio.run(play())


def _start(kind: str, options: argparse.Namespace) -> str:
    with served(kind, options.s3) as (url, prefix, folder):
        lab = StartLab(url, prefix, folder, _scale(kind), defaults=True)
        try:
            told = lab.begin_fresh()
            took_s = lab.stop_the_leader()
        finally:
            lab.close()
        lab.check()
        assert took_s <= lab.handed_over_s, f"{took_s:.1f} s"
        return f"{told}; handed over after {took_s:.1f} s"


def _failover(kind: str, options: argparse.Namespace) -> str:
    short = _crashes(kind, options, CRASHES, defaults=False)
    return f"{short}; on the defaults {_crashes(kind, options, 1, defaults=True)}"


def _crashes(kind: str, options: argparse.Namespace, count: int, *, defaults: bool) -> str:
    with served(kind, options.s3) as (url, prefix, folder):
        lab = CrashLab(url, prefix, folder, _scale(kind), defaults=defaults)
        try:
            lab.begin()
            took_s = [lab.kill_the_leader() for _ in range(count)]
        finally:
            lab.close()
        lab.check()
        return f"{count} kills, followed after {min(took_s):.1f} to {max(took_s):.1f} s"


def _pause(kind: str, options: argparse.Namespace) -> str:
    told: list[str] = []
    for holds in ("aware", "unaware"):
        with served(kind, options.s3) as (url, prefix, folder):
            lab = PausedLab(url, prefix, folder, _scale(kind), holds)
            try:
                lab.begin()
                reasons: list[str] = []
                for _ in range(PAUSES):
                    found = lab.pause_the_leader()
                    lab.check_pause(found)
                    reasons.append(found["reason"])
            finally:
                lab.close()
            effects = asyncio.run(lab.check_effects())
            lab.check()
            told.append(f"{holds}: {', '.join(reasons)}, {effects} effects once")
    return "; ".join(told)


def _rotation(kind: str, options: argparse.Namespace) -> str:
    with served(kind, options.s3) as (url, prefix, folder):
        # On S3 the coordinator notes its key every five minutes: that is not waited for.
        look_s = 5.0 if kind == "s3" else None
        lab = RotationLab(
            *(url, prefix, folder, _scale(kind)),
            members=TALKERS,
            per_s=SIGNALS_PER_S,
            look_s=look_s,
        )
        try:
            return asyncio.run(change_the_secret(lab))
        finally:
            lab.close()


def _queue(kind: str, options: argparse.Namespace) -> str:
    tickets = options.tickets or (500 if kind == "s3" else 5000)
    with served(kind, options.s3) as (url, prefix, folder):
        members = [f"w{number}" for number in range(options.workers)]
        scale = QUEUE_S3_SCALES[options.s3] if kind == "s3" else 1.0
        lab = WorkLab(url, prefix, folder, members, scale)
        lab.only = "queue"
        try:
            return asyncio.run(_run_queue(lab, tickets))
        finally:
            lab.close()


async def _run_queue(lab: WorkLab, tickets: int) -> str:
    for name in lab.members:
        lab.start(name)
    store = make_store(lab.url, RealClock(), random.Random(), prefix=lab.prefix)
    producer = Queue(QUEUE, visibility_timeout=VISIBILITY_S * lab.scale)
    options = {"profile": lab.timing, "unsafe_timings": True, "secret": SECRET}
    made: dict[str, str] = {}
    numbers: dict[str, int] = {}
    kills = 0
    async with Coordinator(store, producer, eligible=False, **options):

        async def produce() -> None:
            for number in range(tickets):
                key = ORDER_KEYS[number % len(ORDER_KEYS)]
                ticket_id = await _enqueue(producer, number, key)
                made[ticket_id], numbers[ticket_id] = key, number

        async def strike() -> None:
            nonlocal kills
            while True:
                # Not before something was done since the last one: where a machine takes longer
                # to start a process than kills are apart, nothing would ever be.
                before = len(lab.lines("done"))
                await asyncio.sleep(KILL_EVERY_S * lab.scale)
                while len(lab.lines("done")) == before:
                    await asyncio.sleep(0.5)
                acts = lab.lines("acts")
                leader = acts[-1]["member"] if acts else lab.members[0]
                victim = leader if kills % 2 == 0 else random.choice(lab.members)
                lab.kill(victim)
                kills += 1
                lab.start(victim)

        striking = asyncio.ensure_future(strike())
        await produce()
        # Twice under one name is one ticket.
        twice = [await producer.enqueue(-1, dedup_id="once") for _ in range(2)]
        assert twice[0] == twice[1]
        made[twice[0]], numbers[twice[0]] = "", -1
        finals = {each: await _final(producer, each) for each in made}
        striking.cancel()
    await store.close()
    states = {each: final.state for each, final in finals.items()}
    dead = list(states.values()).count("dead_letter")
    check_tickets(lab, made, numbers, states, strikes=kills * 2)
    lab.check()
    stale = sum(line["error"] == "StaleClaimError" for line in lab.lines("refused"))
    return f"{len(made)} tickets, {kills} kills, {dead} dead letters, {stale} late completions"


async def _enqueue(producer: Queue, number: int, key: str) -> str:
    """Under a name, so that it may be tried again where a busy S3 gave no answer."""
    while True:
        try:
            return await producer.enqueue(number, order_key=key, dedup_id=f"number-{number}")
        except StoreUnavailableError:
            continue


async def _final(producer: Queue, ticket_id: str) -> Final:
    deadline = time.monotonic() + RESULTS_S
    while True:
        try:
            return await producer.result(ticket_id, timeout_s=deadline - time.monotonic())
        except StoreUnavailableError:
            assert time.monotonic() < deadline, f"{ticket_id} has no end"


def _schedule(kind: str, options: argparse.Namespace) -> str:
    """The job of a worker is due every half a second; so it is four times as dense as asked."""
    with served(kind, options.s3) as (url, prefix, folder):
        lab = WorkLab(url, prefix, folder, ["a", "b", "c"], _scale(kind))
        try:
            for name in lab.members:
                lab.start(name)
            lab.until_acts(0.0, within_s=60.0 * lab.scale)
            for _ in range(3):
                time.sleep(options.seconds / 4.0)
                leader = lab.leader()
                lab.kill(leader)
                lab.until_acts(
                    time.monotonic(),
                    by=[each for each in lab.members if each != leader],
                    within_s=lab.failover_s,
                )
                lab.start(leader)
            time.sleep(options.seconds / 4.0)
        finally:
            lab.close()
        check_runs(lab)
        lab.check()
        slots = {line["slot"] for line in lab.lines("ran")}
        due = options.seconds / (EVERY_S * lab.scale)
        assert len(slots) > 0.5 * due, f"{len(slots)} of about {due:.0f} due times ran"
        return f"{len(slots)} due times, each once, 3 kills of the coordinator"


def _ttl(kind: str, options: argparse.Namespace) -> str:
    with served(kind, options.s3) as (url, prefix, folder):
        lab = WorkLab(url, prefix, folder, ["a", "b", "c"], _scale(kind))
        try:
            for name in lab.members:
                lab.start(name)
            lab.until_acts(0.0, within_s=60.0 * lab.scale)
            told = asyncio.run(_run_ttl(lab))
        finally:
            lab.close()
        lab.check()
        return told


async def _run_ttl(lab: WorkLab) -> str:
    """Each round: half of the records expire, the others are refreshed shortly before, and the
    coordinator is killed at the moment at which the first ones are over."""
    store = make_store(lab.url, RealClock(), random.Random(), prefix=lab.prefix)
    ttl = expiry(lab.scale)
    options = {"profile": lab.timing, "unsafe_timings": True, "secret": SECRET}
    removed, slowest_s = 0, 0.0
    async with Coordinator(store, ttl, eligible=False, **options) as member:

        async def put(names: list[str], lasts_s: float) -> None:
            until = member.parts.store_time() + lasts_s
            body = json.dumps({"until": until}).encode()
            for name in names:
                await member.store.write(Put(name, body, expect=ANY, ttl_s=3600.0))

        fresh: list[str] = []
        for number in range(3):
            over = [f"session/{number}-over-{each}" for each in range(EXPIRING)]
            held = [f"session/{number}-held-{each}" for each in range(EXPIRING)]
            await put([*over, *held], EXPIRES_S * lab.scale)
            ends = time.monotonic() + EXPIRES_S * lab.scale
            await asyncio.sleep(EXPIRES_S * lab.scale / 2.0)
            await put(held, 3600.0)
            fresh += held
            await asyncio.sleep(max(0.0, ends - time.monotonic()))
            assert [each for each in over if await ttl.get(each) is not None] == []
            leader = lab.leader()
            lab.kill(leader)
            struck = time.monotonic()
            others = [each for each in lab.members if each != leader]
            within_s = lab.failover_s
            await asyncio.to_thread(lab.until_acts, struck, by=others, within_s=within_s)
            lab.start(leader)
            led = time.monotonic()
            while any(record is not None for record in await member.store.get(*over)):
                took_s = time.monotonic() - led
                assert took_s < SWEPT_S * lab.scale, "records past their time are not removed"
                await asyncio.sleep(0.1)
            slowest_s = max(slowest_s, time.monotonic() - led)
            removed += len(over)
        gone = [each for each in fresh if await ttl.get(each) is None]
        assert gone == [], f"{gone} were refreshed in time and are gone"
    await store.close()
    return (
        f"{removed} records removed at most {slowest_s:.1f} s after a successor led, "
        f"{len(fresh)} refreshed ones kept, 3 kills of the coordinator"
    )


def _outage(kind: str, options: argparse.Namespace) -> str:
    told: list[str] = []
    with served(kind, options.s3) as (url, prefix, folder):
        endpoint = url.partition("endpoint=")[2].partition("&")[0]
        proxy = FaultyS3(endpoint)
        lab = Lab(_s3_url(proxy.endpoint, prefix), prefix, folder, ["a", "b"], _scale(kind))
        try:
            for name in lab.members:
                lab.start(name)
            lab.until_acts(0.0, within_s=90.0)
            lab.until_acked(0.0)
            for status in (500, 503, 0):
                proxy.fail_next(MANY, status) if status else proxy.hang()
                time.sleep(OUTAGE_S)
                assert not [
                    line for line in lab.lines("acts") if line["at"] > time.monotonic() - 2.0
                ], "a member acts although the store does not answer"
                proxy.fail_next(0, 503)
                proxy.answer_again()
                back = time.monotonic()
                took_s = lab.until_acts(back, within_s=3 * lab.failover_s)
                lab.until_acked(back)
                told.append(f"{status or 'no answer'}: led again after {took_s:.1f} s")
            assert lab.lines("dead") == []
        finally:
            lab.close()
            proxy.close()
        lab.check()
    return "; ".join(told)


def _clock(kind: str, options: argparse.Namespace) -> str:
    with served(kind, options.s3) as (url, prefix, folder):
        lab = Lab(url, prefix, folder, ["a", "b", "c"], _scale(kind))
        try:
            for name, offset in (("a", 3600.0), ("b", 0.0), ("c", -3600.0)):
                lab.start(name, offset=offset)
            lab.until_acts(0.0, within_s=60.0 * lab.scale)
            since = time.monotonic()
            time.sleep(3.0 * lab.timing.dead_after)
            lab.until_acts(since, within_s=lab.failover_s)
            assert lab.lines("dead") == []
            acked = {line["member"] for line in lab.lines("acked")}
            assert acked == {"a", "b", "c"}, f"only signals of {acked} were believed"
        finally:
            lab.close()
        lab.check()
        return "an hour early and an hour late, no death, all signals believed"


def _cut(kind: str, options: argparse.Namespace) -> str:
    """A cable that is pulled and a server that is stopped, in turn."""
    with served(kind, options.s3) as (url, prefix, folder):
        with running(url, prefix, folder, _scale(kind)) as lab:
            pauses = [
                lab.cut_the_leader(silently=number % 2 == 0) for number in range(options.cuts)
            ]
            changes = lab.check_leading()
            effects = asyncio.run(lab.check_effects())
        assert changes >= options.cuts, f"{changes} changes after {options.cuts} cuts"
        return (
            f"{options.cuts} cuts, {effects} effects in the order of their epochs, nobody acted "
            f"for {min(pauses):.1f} to {max(pauses):.1f} s"
        )


def _absence(kind: str, options: argparse.Namespace) -> str:
    with served(kind, options.s3) as (url, prefix, _):
        size = Size(
            PROFILES["s3" if kind == "s3" else "normal"],
            AWAY_S,
            FULL_RETRY,
            FULL_BREAKER,
            unsafe=False,
        )

        async def away() -> str:
            async with Outage(Place(kind, url, prefix), size) as outage:
                await outage.short()
                calls = await outage.long()
                outage.check(calls)
                assert calls.quickest_refusal_s < 0.01, calls
                return (
                    f"{calls.failed} calls of at least {calls.shortest_failure_s:.1f} s opened the"
                    f" circuit, {calls.refused} refused at once, {calls.probes} probes, no death"
                )

        return asyncio.run(away())


def _contention(kind: str, options: argparse.Namespace) -> str:
    with served(kind, options.s3) as (url, prefix, _):

        async def late() -> str:
            place = Place(kind, url, prefix)
            found = await slow_down(place, LATE_FOR_S)
            await place.close()
            found.check()
            ratios = ", ".join(f"{ratio:.2f}" for _, ratio in found.told)
            return f"told {len(found.told)} times in {LATE_FOR_S:.0f} s, ratios {ratios}"

        return asyncio.run(late())


PARTS_OF = {
    "winner": _winner,
    "start": _start,
    "failover": _failover,
    "pause": _pause,
    "rotation": _rotation,
    "queue": _queue,
    "schedule": _schedule,
    "ttl": _ttl,
    "outage": _outage,
    "clock": _clock,
    "cut": _cut,
    "absence": _absence,
    "contention": _contention,
}

if __name__ == "__main__":
    sys.exit(main())
