"""The judge of the chaos matrix finds what it is there to find."""

from __future__ import annotations

from typing import Any

from tests.cluster.lab.judge import Load, holes, problems


def document(*, sent: int = 100, answered: int = 100, unknown: int | None = None) -> dict[str, Any]:
    lost = [] if unknown is None else [{"reason": "w1 is dead", "unknown_requests": unknown}]
    requests = {"sent": sent, "answered": answered}
    return {"workflows": [{"requests": requests}], "losses": lost}


def counts(total: int = 100, **others: Any) -> dict[str, Any]:
    return {"total": total, "attempt_times": {}, "max_concurrent_requests": 4, **others}


def judged(result: dict[str, Any], seen: dict[str, Any], *, worker_lost: bool = False) -> list[str]:
    return problems(result, seen, Load(users=4), worker_lost=worker_lost)


def test_equal_sums_are_no_problem() -> None:
    assert judged(document(), counts()) == []
    assert judged(document(unknown=7), counts(107), worker_lost=True) == []


def test_a_request_too_many_or_too_few_is_found() -> None:
    assert "the target saw 101" in judged(document(), counts(101))[0]
    assert "gave only 99" in judged(document(), counts(99))[0]
    assert "the target saw 108" in judged(document(unknown=7), counts(108), worker_lost=True)[0]


def test_nothing_is_unknown_when_no_worker_was_lost() -> None:
    assert "7 requests are called unknown" in judged(document(unknown=7), counts(107))[0]


def test_two_attempts_at_one_share_must_not_overlap() -> None:
    times = {
        "job/1#1": {"first_s": 1.0, "last_s": 4.0},
        "job/1#2": {"first_s": 3.9, "last_s": 6.0},
        "job/2#1": {"first_s": 1.0, "last_s": 9.0},
    }
    assert judged(document(), counts(attempt_times=times)) == [
        "job/1: attempt 1 sent 0.100 s into the next"
    ]
    times["job/1#2"]["first_s"] = 4.0
    assert judged(document(), counts(attempt_times=times)) == []


def test_more_load_than_planned_is_found() -> None:
    assert "5 requests in flight" in judged(document(), counts(max_concurrent_requests=5))[0]
    made = {str(1000 + tenth): 11 for tenth in range(20)}
    fast = counts(220, fields={"made": made})
    found = problems(document(sent=220), fast, Load(rate_per_s=100), worker_lost=False)
    assert found == ["110 starts in a second, the plan allows 105"]


def test_a_while_without_load_is_a_hole_and_so_is_a_lost_share() -> None:
    made = {"1000": 3, "1010": 3, "1025": 1}
    assert holes(document(), counts(fields={"made": made})) == []
    late = made | {"1041": 1}
    assert holes(document(), counts(fields={"made": late})) == ["no start for 1.6 s"]
    assert holes(document(), counts(fields={"made": late}), layered=True) == []
    assert holes(document(unknown=0), counts(fields={"made": made})) == [
        "w1 is dead, although only managers died"
    ]
