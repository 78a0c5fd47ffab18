"""PostgreSQL, MySQL and MongoDB on one core against pgbench and the libraries alone.

Compared is the number of operations per second of CPU time of the generator. PostgreSQL and MariaDB
are those of this machine (ports 5432 and 3306, without a password); a database of each is made and
removed. MongoDB is a server of its wire protocol on core 0, because no other can be installed here.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import generators

USERS = 8
CORE = "0"
BAR = 0.85
"""Of the ratio to a library in a bare loop."""
PGBENCH_BAR = 0.50
ROUNDS = 5
START_TIMEOUT_S = 20.0
POSTGRES, MARIADB = "postgres://postgres@127.0.0.1:5432", "mysql://root@127.0.0.1:3306"
NAMES = {"postgres": "PostgreSQL", "mysql": "MySQL", "mongodb": "MongoDB"}

Row = tuple[str, float, float | None, float]


def rows(seconds: float, rounds: int) -> list[Row]:
    """(Name, our operations per second of CPU time, those of the peer, bar)."""
    whole = max(round(seconds), 1)
    found: list[Row] = []
    with _postgres() as postgres, _mariadb() as mysql, _mongodb() as mongodb:
        peers: list[tuple[str, str, str, Callable[[], float], float]] = [
            ("PostgreSQL row, pgbench", "postgres", postgres, lambda: _pgbench(postgres, whole), 0)
        ]
        urls = {"postgres": postgres, "mysql": mysql, "mongodb": mongodb}
        peers += [
            (f"{NAMES[kind]}, bare library", kind, url, _bare_of(kind, url, whole), BAR)
            for kind, url in urls.items()
        ]
        for name, kind, url, peer, bar in peers:
            # Each round has both, one after the other: they had the same machine.
            pairs = [(_ours(kind, url, whole), peer()) for _ in range(rounds)]
            ours = median(pair[0] for pair in pairs)
            ratio = median(pair[0] / pair[1] for pair in pairs)
            found.append((name, ours, ours / ratio, bar or PGBENCH_BAR))
    return found


def _ours(kind: str, url: str, seconds: int) -> float:
    os.environ["DATABASE"] = url
    more = ("--only", kind.capitalize())
    done = generators.squall("http://127.0.0.1", USERS, seconds, *more, file="hello_databases.py")
    if done.failed_checks:
        raise RuntimeError(f"{kind}: {done.failed_checks} calls failed")
    return 1 / done.cost_s


def _bare_of(kind: str, url: str, seconds: int) -> Callable[[], float]:
    program = [sys.executable, str(generators.HERE / "bare_databases.py")]

    def bare() -> float:
        count, cpu_s = generators.run([*program, kind, url, str(USERS), str(seconds)]).split()
        return int(count) / float(cpu_s)

    return bare


def _pgbench(url: str, seconds: int) -> float:
    command = ["pgbench", "-S", "-M", "prepared", "-c", str(USERS), "-j", "1", "-n"]
    before = generators.cpu_s()
    text = generators.run([*command, "-T", str(seconds), url])
    found = re.search(r"number of transactions actually processed: (\d+)", text)
    if found is None:
        raise RuntimeError(f"pgbench said something new:\n{text}")
    return int(found[1]) / (generators.cpu_s() - before)


@contextmanager
def _postgres() -> Generator[str]:
    url = f"{POSTGRES}/squall_bench_{secrets.token_hex(4)}"
    name = url.rpartition("/")[2]
    run = ["psql", "-q", f"{POSTGRES}/postgres", "-c"]
    subprocess.run([*run, f"CREATE DATABASE {name}"], check=True)
    try:
        subprocess.run(["pgbench", "-i", "-q", "-s", "1", url], check=True, capture_output=True)
        yield url
    finally:
        subprocess.run([*run, f"DROP DATABASE {name} WITH (FORCE)"], check=True)


@contextmanager
def _mariadb() -> Generator[str]:
    name = f"squall_bench_{secrets.token_hex(4)}"
    run = ["mariadb", "-h127.0.0.1", "-uroot", "-e"]
    rows = "INSERT INTO accounts SELECT seq, seq FROM seq_1_to_1000"
    table = "CREATE TABLE accounts (id INT PRIMARY KEY, balance INT)"
    subprocess.run([*run, f"CREATE DATABASE {name}; USE {name}; {table}; {rows}"], check=True)
    try:
        yield f"{MARIADB}/{name}"
    finally:
        subprocess.run([*run, f"DROP DATABASE {name}"], check=True)


@contextmanager
def _mongodb() -> Generator[str]:
    process = subprocess.Popen(
        ["taskset", "-c", CORE, sys.executable, __file__, "--mongodb"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(START_TIMEOUT_S)
        process.stdout.close()


def _serve_mongodb() -> None:
    """Until standard input ends."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.lab.mongodb_server import running_mongodb_server

    with running_mongodb_server() as server:
        server.documents["accounts"].append({"_id": 1, "balance": 7})
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--mongodb", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mongodb:
        _serve_mongodb()
    else:
        began = time.perf_counter()
        for name, ours, peer, bar in rows(options.seconds, options.rounds):
            ratio = ours / peer if peer else 0.0
            print(f"{name:<32}{ours:>10.0f}{peer or 0:>10.0f}{ratio:>8.2f}{bar:>8.2f}")
        print(f"{time.perf_counter() - began:.0f} s")
