"""The counts of a running target: exact under load, across processes, after a reset."""

from __future__ import annotations

import http.client
import json
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from tests.lab.target import TargetHandle, running_target, start_target

CONNECTIONS = 20


def load(target: TargetHandle, paths: list[str], headers: dict[str, str] | None = None) -> None:
    """Send all paths in order on each of 20 connections at the same time."""
    together = threading.Barrier(CONNECTIONS)

    def client() -> None:
        connection = target.connect()
        connection.connect()
        together.wait()
        for path in paths:
            connection.request("GET", path, headers=headers or {})
            connection.getresponse().read()
        together.wait()
        connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(client) for _ in range(CONNECTIONS)]:
            done.result()


def test_counts_are_exact_under_concurrent_connections(target: TargetHandle) -> None:
    load(target, ["/a", "/b?x=1", "/b?x=2", "/missing", "/slow?delay=20ms"] * 10)
    told = target.counts()
    each = 10 * CONNECTIONS
    assert told["total"] == 5 * each
    assert told["paths"] == {"/a": each, "/b": 2 * each, "/missing": each, "/slow": each}
    assert told["methods"]["GET /b"] == 2 * each
    assert told["statuses"] == {"200": 4 * each, "404": each}
    assert told["connections"]["opened"] == CONNECTIONS
    assert told["connections"]["max_open"] == CONNECTIONS
    assert told["connections"]["silent"] == 0
    assert 2 <= told["max_concurrent_requests"] <= CONNECTIONS
    assert told["delays"]["/slow"]["count"] == each
    assert told["all_delays"]["count"] == 5 * each
    assert told["first_arrival_s"] < told["last_arrival_s"] < told["now_s"]


def test_asking_for_counts_changes_nothing(target: TargetHandle) -> None:
    target.get("/a")
    first = target.counts()
    target.freeze(0.001)
    second = target.counts()
    for told in (first, second):
        del told["now_s"], told["now_unix_s"]
    assert first == second
    assert first["total"] == 1 and first["connections"]["opened"] == 1


def test_arrival_stamps_are_comparable_with_the_callers_clock(target: TargetHandle) -> None:
    before = time.perf_counter()
    target.get("/a")
    after = time.perf_counter()
    assert before <= target.counts()["first_arrival_s"] <= after


def test_a_connection_without_a_request_is_silent(target: TargetHandle) -> None:
    with socket.create_connection((target.host, target.port)):
        while (told := target.counts()["connections"])["silent"] == 0:
            time.sleep(0.01)
        assert told == {"opened": 1, "open": 1, "max_open": 0, "silent": 1}


def test_attempt_headers_are_counted_by_value(target: TargetHandle) -> None:
    load(target, ["/a"] * 5, {"X-Squall-Attempt": "shop/0/1"})
    load(target, ["/a"] * 3, {"x-squall-attempt": "shop/0/2"})
    assert target.counts()["attempts"] == {
        "shop/0/1": 5 * CONNECTIONS,
        "shop/0/2": 3 * CONNECTIONS,
    }


def test_reset_starts_anew_and_forgets_answers_still_under_way(target: TargetHandle) -> None:
    connection = target.connect()
    connection.request("GET", "/slow?delay=150ms")
    while target.counts()["total"] == 0:
        time.sleep(0.005)
    target.reset()
    assert connection.getresponse().read() == b"ok\n"
    told = target.counts()
    assert told["total"] == 0 and told["statuses"] == {} and told["delays"] == {}
    connection.request("GET", "/slow")
    connection.getresponse().read()
    connection.close()
    assert target.counts()["statuses"] == {"200": 1}


def test_rows_and_counted_fields_tell_each_value(target: TargetHandle) -> None:
    for key in ("1", "2", "2"):
        target.get(f"/rows?key={key}")
    target.get("/login?count_field=user&user=grace")
    told = target.counts()["fields"]
    assert told == {"key": {"1": 1, "2": 2}, "user": {"grace": 1}}


def test_form_and_json_fields_are_counted_by_option() -> None:
    with running_target(["--count-field", "user"]) as target:
        connection = target.connect()
        for kind, body in (
            ("application/x-www-form-urlencoded", "user=ada&password=x"),
            ("application/json", '{"user": "bob"}'),
            ("application/x-www-form-urlencoded", "user=ada"),
        ):
            connection.request("POST", "/login", body, {"Content-Type": kind})
            connection.getresponse().read()
        connection.close()
        assert target.counts()["fields"] == {"user": {"ada": 2, "bob": 1}}


def test_identities_from_login_are_followed(target: TargetHandle) -> None:
    issued = [json.loads(target.get("/login"))["id"] for _ in range(4)]
    for identity in (issued[0], issued[1], issued[1], "made-up"):
        target.get(f"/use?id={identity}")
    told = target.counts()["ids"]
    assert told == {"issued": 4, "used": 2, "used_twice": 1, "unknown": 1}


def silences(target: TargetHandle, path: str, for_s: float) -> list[float]:
    """How long this client heard nothing, again and again, from before a freeze until after it. A
    client that stands still itself hears nothing either."""
    found: list[float] = []
    last = time.perf_counter()
    until = last + for_s + 1.0
    target.freeze(for_s)
    while last < until:
        target.get(path)
        found.append(time.perf_counter() - last)
        last = time.perf_counter()
    return sorted(found)


def test_a_freeze_holds_every_answer_for_its_time(target: TargetHandle) -> None:
    found = silences(target, "/a", 1.5)
    assert found[-1] > 1.0
    # A client that waits for each answer meets the freeze in one request only, and perhaps a
    # machine that stands still in another.
    assert found[-3] < found[-1] / 2
    assert target.counts()["paths"]["/a"] == len(found)


def test_connections_are_accepted_by_the_kernel_during_a_freeze(target: TargetHandle) -> None:
    def is_seen() -> bool:
        target.freeze(1.0)
        time.sleep(0.1)
        started = time.perf_counter()
        with socket.create_connection((target.host, target.port), timeout=60) as connection:
            accepted_after = time.perf_counter() - started
            connection.sendall(b"GET /?close=1 HTTP/1.1\r\nHost: a\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        answered_after = time.perf_counter() - started
        return answered_after > 0.3 and accepted_after < answered_after / 2

    # A test that stands still meanwhile comes after the freeze.
    assert any(is_seen() for _ in range(5))


def test_a_delay_distribution_is_reported_as_it_was(target: TargetHandle) -> None:
    load(target, ["/d?delay=lognormal:10ms,0.5"] * 40)
    told = target.counts()["delays"]["/d"]
    assert told["count"] == 40 * CONNECTIONS
    # The reported times are real ones, so a busy machine moves them up, never down.
    assert told["p50_ms"] > 8.5
    assert told["p95_ms"] > 10 * math.exp(1.645 * 0.5) * 0.8
    assert told["min_ms"] < told["p50_ms"] < told["p95_ms"] < told["p99_ms"] <= told["max_ms"]
    assert told["p50_ms"] < told["mean_ms"] < told["p95_ms"]


def test_the_same_seed_gives_the_same_statuses() -> None:
    def statuses() -> list[int]:
        with running_target(["--seed", "42"]) as target:
            connection = target.connect()
            seen: list[int] = []
            for _ in range(60):
                connection.request("GET", "/a?status=200:1,503:1")
                response = connection.getresponse()
                response.read()
                seen.append(response.status)
            connection.close()
            return seen

    first = statuses()
    assert set(first) == {200, 503}
    assert statuses() == first


# Processes, signals, TLS.


def test_several_processes_count_as_one_target() -> None:
    with running_target(["--workers", "2"]) as target:
        load(target, ["/a", "/login"] * 5)
        issued = {json.loads(target.get("/login"))["id"] for _ in range(30)}
        token = json.loads(target.get("/login"))["token"]
        # New connections reach either process, and each must know the token.
        for _ in range(10):
            connection = target.connect()
            connection.request("GET", "/inbox?strict=1", headers={"X-Token": token})
            assert connection.getresponse().status == 200
            connection.close()
        told = target.counts()
        assert len(issued) == 30
        assert told["paths"]["/a"] == 5 * CONNECTIONS
        assert told["ids"]["issued"] == 5 * CONNECTIONS + 31
        target.reset()
        assert all(target.counts()["total"] == 0 for _ in range(5))
        assert silences(target, "/a", 1.0)[-1] > 0.3
        assert target.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_with_connections_open(number: signal.Signals) -> None:
    target = start_target()
    connection = target.connect()
    connection.request("GET", "/a?hang=1")
    target.process.send_signal(number)
    assert target.process.wait(timeout=30) == 0
    connection.close()
    target.stop()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_ends_when_its_starter_is_gone(workers: str) -> None:
    target = start_target("--workers", workers)
    assert target.process.stdin is not None
    target.process.stdin.close()
    assert target.process.wait(timeout=30) == 0
    target.stop()


def test_tls_serves_the_same(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    with running_target(["--cert", str(tmp_path / "cert.pem")]) as target:
        assert target.url.startswith("https://")
        assert target.get("/") == b"hello world\n"
        connection = target.connect()
        connection.request("GET", "/a?resets=1")
        with pytest.raises(OSError):
            connection.getresponse()
        connection.close()
        told = target.counts()
        assert told["paths"] == {"/": 1, "/a": 1}
        assert told["unanswered"] == {"reset": 1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "0"], "--workers 0"),
        (["--port", "99999"], "--port 99999"),
        (["--cert", "/no/such.pem"], "/no/such.pem: No such file"),
        (["--key", "k.pem"], "--key needs --cert"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "squall.target", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_taken_port_is_said_in_one_line(target: TargetHandle) -> None:
    command = [sys.executable, "-m", "squall.target", "--port", str(target.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{target.port}" in done.stderr


def test_keep_alive_holds_one_connection(target: TargetHandle) -> None:
    connection: http.client.HTTPConnection = target.connect()
    for _ in range(50):
        connection.request("GET", "/a")
        connection.getresponse().read()
    assert target.counts()["connections"] == {"opened": 1, "open": 1, "max_open": 1, "silent": 0}
    connection.close()
