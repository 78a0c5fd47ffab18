from __future__ import annotations

import pytest

from squall.target import counts as counts_module
from squall.target.counts import Counts, Delays, summarise


def served(counts: Counts, method: str, path: str, delay_s: float, status: int = 200) -> None:
    endpoint = counts.endpoint(method, path)
    counts.arrived(endpoint, now_s=100.0)
    counts.in_flight -= 1
    endpoint.answered(status, delay_s)


def test_requests_are_counted_per_path_method_and_status() -> None:
    counts = Counts()
    served(counts, "GET", "/a", 0.001)
    served(counts, "GET", "/a", 0.001, status=503)
    served(counts, "POST", "/a", 0.001)
    served(counts, "GET", "/b", 0.001)
    told = summarise([counts.snapshot()])
    assert told["total"] == 4
    assert told["paths"] == {"/a": 3, "/b": 1}
    assert told["methods"] == {"GET /a": 2, "POST /a": 1, "GET /b": 1}
    assert told["statuses"] == {"200": 3, "503": 1}


def test_quantiles_are_samples_by_nearest_rank() -> None:
    counts = Counts()
    for n in range(1, 101):
        served(counts, "GET", "/a", n / 1000)
    told = summarise([counts.snapshot()])["delays"]["/a"]
    assert told["count"] == 100
    assert told["p50_ms"] == pytest.approx(50)
    assert told["p95_ms"] == pytest.approx(95)
    assert told["p99_ms"] == pytest.approx(99)
    assert told["mean_ms"] == pytest.approx(50.5)
    assert (told["min_ms"], told["max_ms"]) == (pytest.approx(1), pytest.approx(100))


def test_a_path_joins_the_delays_of_its_methods() -> None:
    counts = Counts()
    served(counts, "GET", "/a", 0.010)
    served(counts, "POST", "/a", 0.030)
    told = summarise([counts.snapshot()])["delays"]["/a"]
    assert (told["count"], told["min_ms"], told["max_ms"]) == (2, pytest.approx(10), 30)


def test_an_endpoint_without_answers_has_no_quantiles() -> None:
    counts = Counts()
    counts.arrived(counts.endpoint("GET", "/hang"), now_s=1.0)
    told = summarise([counts.snapshot()])
    assert told["total"] == 1
    assert told["delays"]["/hang"]["count"] == 0
    assert told["delays"]["/hang"]["p99_ms"] is None


def test_past_the_sample_limit_totals_stay_exact_and_quantiles_plausible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counts_module, "MAX_SAMPLES", 1000)
    counts = Counts()
    for n in range(20_000):
        served(counts, "GET", "/a", (n % 1000 + 1) / 1000)
    told = summarise([counts.snapshot()])["delays"]["/a"]
    assert told["count"] == 20_000
    assert told["mean_ms"] == pytest.approx(500.5)
    assert (told["min_ms"], told["max_ms"]) == (1, 1000)
    assert told["p50_ms"] == pytest.approx(500, rel=0.1)


def test_samples_of_a_process_past_the_limit_weigh_for_all_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counts_module, "MAX_SAMPLES", 100)
    busy, idle = Counts(), Counts()
    for _ in range(900):
        served(busy, "GET", "/a", 0.001)
    for _ in range(100):
        served(idle, "GET", "/a", 0.050)
    told = summarise([busy.snapshot(), idle.snapshot()])["delays"]["/a"]
    assert told["count"] == 1000
    assert told["p50_ms"] == pytest.approx(1)
    assert told["p95_ms"] == pytest.approx(50)


def test_processes_are_summed() -> None:
    one, two = Counts(), Counts()
    served(one, "GET", "/a", 0.001)
    served(two, "GET", "/a", 0.003)
    one.attempt("1", 1.0)
    two.attempt("1", 1.0)
    one.field("user", "ada")
    two.field("user", "ada")
    one.issued("5")
    two.used("5")
    two.lost("reset")
    told = summarise([one.snapshot(), two.snapshot()])
    assert told["paths"] == {"/a": 2}
    assert told["attempts"] == {"1": 2}
    assert told["fields"] == {"user": {"ada": 2}}
    assert told["unanswered"] == {"reset": 1}
    assert told["ids"] == {"issued": 1, "used": 1, "used_twice": 0, "unknown": 0}


def test_identities_used_twice_or_never_issued_are_told_apart() -> None:
    counts = Counts()
    for identity in ("1", "2", "3"):
        counts.issued(identity)
    for identity in ("1", "2", "2", "9"):
        counts.used(identity)
    told = summarise([counts.snapshot()])["ids"]
    assert told == {"issued": 3, "used": 2, "used_twice": 1, "unknown": 1}


def test_the_highest_number_at_the_same_time_is_kept() -> None:
    counts = Counts()
    endpoint = counts.endpoint("GET", "/a")
    for now_s in (1.0, 2.0, 3.0):
        counts.arrived(endpoint, now_s)
    counts.in_flight -= 2
    counts.arrived(endpoint, 4.0)
    counts.connection_counted()
    counts.connection_counted()
    counts.open -= 1
    told = summarise([counts.snapshot()])
    assert told["max_concurrent_requests"] == 3
    assert told["connections"] == {"opened": 2, "open": 1, "max_open": 2, "silent": 0}
    assert (told["first_arrival_s"], told["last_arrival_s"]) == (1.0, 4.0)


def test_clearing_forgets_numbers_but_not_what_is_open_now() -> None:
    counts = Counts()
    endpoint = counts.endpoint("GET", "/a")
    served(counts, "GET", "/a", 0.001)
    counts.connection_counted()
    counts.arrived(endpoint, 1.0)
    counts.field("user", "ada")
    counts.clear()
    told = summarise([counts.snapshot()])
    assert told["total"] == 0
    assert told["paths"] == {} and told["fields"] == {} and told["first_arrival_s"] is None
    assert told["connections"] == {"opened": 0, "open": 1, "max_open": 1, "silent": 0}
    assert told["max_concurrent_requests"] == 1
    # A request that still holds the endpoint goes on counting in the same object.
    counts.arrived(endpoint, 2.0)
    assert summarise([counts.snapshot()])["paths"] == {"/a": 1}


def test_paths_and_values_beyond_the_limits_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counts_module, "MAX_ENDPOINTS", 2)
    monkeypatch.setattr(counts_module, "MAX_VALUES", 2)
    counts = Counts()
    for n in range(5):
        served(counts, "GET", f"/{n}", 0.001)
        counts.field("user", str(n))
    told = summarise([counts.snapshot()])
    assert told["paths"] == {"/0": 1, "/1": 1, "(other)": 3}
    assert told["fields"] == {"user": {"0": 1, "1": 1, "(other)": 3}}


def test_delays_keep_lowest_highest_and_sum() -> None:
    delays = Delays()
    for seconds in (0.2, 0.1, 0.3):
        delays.add(seconds)
    assert (delays.lowest_s, delays.highest_s, delays.count) == (0.1, 0.3, 3)
    assert delays.sum_s == pytest.approx(0.6)


def test_senders_are_told_apart_by_when_they_sent_and_how_many_at_once() -> None:
    counts = Counts()
    for now_s in (1.0, 1.2, 2.5):
        counts.attempt("a#1", now_s)
    counts.attempt_over("a#1")
    counts.attempt("a#2", 3.0)
    times = summarise([counts.snapshot()])["attempt_times"]
    first, second = times["a#1"], times["a#2"]
    assert (first["requests"], first["max_in_flight"], first["in_flight"]) == (3, 3, 2)
    assert first["seconds"] == {1: 2, 2: 1}
    assert first["last_s"] < second["first_s"]
