"""A group of three members beside etcd, and how fast another member leads.

Both groups are three processes on loopback with fsync on, and live through the whole run;
their clients take turns, round by round, and the ratio is taken within a round. Payload
and number of clients are the same, each client has one command under way at the leader.
Squall's clients talk over its sealed wire, those of etcd gRPC in clear text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import uvloop

from group_etcd import Etcd
from group_member import Commit, Done, GoAside, Who, board
from lab.scenarios.campaign import run_campaign
from squall.cluster.wire.errors import WireError
from squall.cluster.wire.links.peer import Peer
from squall.runtime.real.runtime import RealRuntime

HERE = Path(__file__).parent
RATE_BAR = 1.0
P99_BAR = 2.0
FAILOVER_BAR_S = 5.0
HAND_OVER_BAR_S = 0.2
SIMULATED_BAR = 50.0
CLIENTS = 64
SIZE = 256
TRY_S = 1.0
PAUSE_S = 0.002
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Squall:
    """Three members of a group as processes."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.ports = ports
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        return [f"m{number}" for number in range(len(self.ports))]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def start(self, name: str) -> None:
        words = [
            sys.executable, str(HERE / "group_member.py"), "serve", "--name", name,
            "--ports", ",".join(map(str, self.ports)), "--data", str(self._folder / name),
        ]  # fmt: skip
        self._processes[name] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.communicate()

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)


class Asker:
    """One client that knows all members and looks for the one that leads."""

    def __init__(self, squall: Squall) -> None:
        made, _ = board(RealRuntime("asker"))
        self._peers = {
            name: Peer(made, ("127.0.0.1", port))
            for name, port in zip(squall.names, squall.ports, strict=True)
        }
        for peer in self._peers.values():
            peer.start()

    async def leader(self) -> str:
        while True:
            for name, peer in self._peers.items():
                with contextlib.suppress(WireError):
                    said: Done = await peer.request(Who(), TRY_S)
                    if said.primary == name:
                        return name
            await asyncio.sleep(PAUSE_S)

    async def commit(self, first: str) -> str:
        """Who committed it, after as many tries as it took."""
        order = [first, *(name for name in self._peers if name != first)]
        while True:
            for name in order:
                if self._peers[name].control.session is None:
                    continue
                with contextlib.suppress(WireError):
                    await self._peers[name].request(Commit(bytes(SIZE)), TRY_S)
                    return name
            await asyncio.sleep(PAUSE_S)

    async def caught_up(self, name: str) -> None:
        """Returns when that member holds what was committed before."""
        leader = await self.leader()
        wanted: Done = await self._peers[leader].request(Who(), TRY_S)
        while True:
            with contextlib.suppress(WireError):
                said: Done = await self._peers[name].request(Who(), TRY_S)
                if said.op >= wanted.op:
                    return
            await asyncio.sleep(PAUSE_S)

    async def hand_over(self, name: str) -> None:
        await self._peers[name].request(GoAside(), TRY_S)

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()


async def _main(options: argparse.Namespace) -> int:
    version = Etcd.version()
    rows: list[tuple[str, str, str]] = []
    with _groups(bool(version)) as (squall, etcd):
        asker = Asker(squall)
        await asker.commit("m0")
        rounds = [await _round(asker, squall, etcd, options) for _ in range(options.rounds)]
        rows += _throughput(rounds, version)
        handed = [await _hand_over(asker) for _ in range(options.hand_overs)]
        failed = [await _failover(asker, squall) for _ in range(options.failovers)]
        await asker.close()
    rows += [
        _row("failover after kill -9, median / worst", failed, 1.0, "s", FAILOVER_BAR_S),
        _row("planned hand-over, median / worst", handed, 1e3, "ms", HAND_OVER_BAR_S),
    ]
    speed = await asyncio.to_thread(_simulated, options.seeds)
    holds = _bar(speed >= SIMULATED_BAR, f"at least {SIMULATED_BAR:g}")
    rows.append(("simulated seconds in a second, 5 members", f"{speed:.0f}", holds))
    print(
        f"3 members, {SIZE} bytes, {CLIENTS} clients, {options.rounds} rounds of "
        f"{options.seconds:g} s, {os.cpu_count()} cores"
    )
    for what, shown, bar in rows:
        print(f"  {what:<42}{shown:<24}{bar}")
    return 1 if options.check and any("MISSED" in bar for _, _, bar in rows) else 0


Round = tuple[dict[str, float], dict[str, float]]


async def _round(
    asker: Asker, squall: Squall, etcd: Etcd | None, options: argparse.Namespace
) -> Round:
    """Whoever is second finds a machine that the first has warmed up: they take turns."""
    theirs: dict[str, float] = {}
    first = random.random() < 0.5
    if etcd is not None and first:
        theirs = await asyncio.to_thread(_load_etcd, etcd, options.seconds)
    leader = await asker.leader()
    port = squall.ports[squall.names.index(leader)]
    words = ["group_member.py", "load", "--ports", str(port)]
    ours = await asyncio.to_thread(_load, words, options.seconds, squall.pids)
    if etcd is not None and not first:
        theirs = await asyncio.to_thread(_load_etcd, etcd, options.seconds)
    return ours, theirs


def _load_etcd(etcd: Etcd, seconds: float) -> dict[str, float]:
    port = etcd.leader()
    before = etcd.revision(port)
    found = _load(["group_etcd.py", "--port", str(port)], seconds, etcd.pids)
    stored = etcd.revision(port) - before
    if stored != found["count"]:
        raise SystemExit(f"etcd answered {found['count']} puts and stored {stored}")
    return found


def _load(words: list[str], seconds: float, pids: list[int]) -> dict[str, float]:
    before = _cpu_s(pids)
    script, *rest = words
    said = subprocess.run(
        [sys.executable, str(HERE / script), *rest, "--clients", str(CLIENTS),
         "--seconds", str(seconds), "--size", str(SIZE)],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(said.stdout)
    found["cpu_us"] = 1e6 * (_cpu_s(pids) - before) / found["count"]
    return found


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def _throughput(rounds: list[Round], version: str) -> list[tuple[str, str, str]]:
    def shown(which: int) -> list[str]:
        def median(name: str) -> float:
            return statistics.median(each[which][name] for each in rounds)

        return [
            f"{median('rate'):,.0f}",
            f"{median('p50_ms'):.1f} / {median('p99_ms'):.1f} ms",
            f"{median('cpu_us'):.0f} us, clients {median('client_cpu'):.0%} of a core",
        ]

    names = ("commits per second", "p50 / p99 of a commit", "CPU of the members per commit")
    rows = [(f"{name}, Squall", value, "") for name, value in zip(names, shown(0), strict=True)]
    if not version:
        return [*rows, ("etcd is not installed: no comparison", "", "")]
    rows += [(f"{name}, etcd", value, "") for name, value in zip(names, shown(1), strict=True)]
    rate = statistics.median(ours["rate"] / theirs["rate"] for ours, theirs in rounds)
    p99 = statistics.median(ours["p99_ms"] / theirs["p99_ms"] for ours, theirs in rounds)
    return [
        *rows,
        (f"throughput of etcd {version}", f"{rate:.2f}", _bar(rate >= RATE_BAR, "at least 1")),
        (f"p99 of etcd {version}", f"{p99:.2f}", _bar(p99 <= P99_BAR, "at most 2")),
    ]


async def _failover(asker: Asker, squall: Squall) -> float:
    """Seconds from the death of the primary to the next commit that is acknowledged."""
    name = await asker.leader()
    others = [other for other in squall.names if other != name]
    squall.kill(name)
    began = time.perf_counter()
    await asker.commit(others[0])
    took = time.perf_counter() - began
    squall.start(name)
    await asker.caught_up(name)
    return took


async def _hand_over(asker: Asker) -> float:
    """The longest time between two acknowledged commits while the primary hands over."""
    name = await asker.leader()
    longest, led = 0.0, name
    last = time.perf_counter()
    end, asked = last + 1.0, False
    while last < end:
        led = await asker.commit(led)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if not asked and now > end - 0.7:
            await asker.hand_over(name)
            asked = True
    if led == name:
        raise SystemExit(f"{name} still leads after a hand-over")
    return longest


def _simulated(seeds: int) -> float:
    """By the time of the processor: it is one thread, and others may use the machine."""
    parameters = {"members": "5", "lan": "1"}
    began = time.thread_time()
    result = run_campaign("group", range(1, seeds + 1), parameters=parameters)
    if result.failures:
        raise SystemExit(f"seed {result.failures[0].seed} of the simulation failed")
    return result.simulated_s / (time.thread_time() - began)


@contextlib.contextmanager
def _groups(with_etcd: bool) -> Generator[tuple[Squall, Etcd | None]]:
    with tempfile.TemporaryDirectory(prefix="squall-bench-") as folder:
        ports = _free_ports(9)
        squall = Squall(Path(folder), ports[:3])
        etcd = Etcd(Path(folder), ports[3:]) if with_etcd else None
        try:
            for name in squall.names:
                squall.start(name)
            if etcd is not None:
                etcd.start()
            yield squall, etcd
        finally:
            squall.stop()
            if etcd is not None:
                etcd.stop()


def _free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(20_000, 32_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _row(
    what: str, taken: list[float], scale: float, unit: str, bar: float
) -> tuple[str, str, str]:
    shown = f"{statistics.median(taken) * scale:.1f} / {max(taken) * scale:.1f} {unit}"
    return what, shown, _bar(max(taken) < bar, f"under {bar * scale:g} {unit}")


def _bar(holds: bool, shown: str) -> str:
    return f"{shown}: {'holds' if holds else 'MISSED'}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (7)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (3)")
    parser.add_argument("--hand-overs", type=int, default=10, help="planned changes (10)")
    parser.add_argument("--failovers", type=int, default=5, help="primaries killed (5)")
    parser.add_argument("--seeds", type=int, default=20, help="of the simulation (20)")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.seeds = 1, 1.0, 3
        options.hand_overs, options.failovers = 2, 1
    return options


def main() -> int:
    return uvloop.run(_main(_options()))


if __name__ == "__main__":
    sys.exit(main())
