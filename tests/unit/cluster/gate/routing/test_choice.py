from __future__ import annotations

import statistics
from collections import Counter

from squall.cluster.gate.routing.choice import (
    RoutingDecision,
    RoutingRequest,
    choose,
    unknown_names,
)
from squall.cluster.gate.routing.explanation import explanation_text
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.scores import DatacenterStatus
from squall.cluster.gate.routing.settings import RoutingSettings
from tests.unit.cluster.gate.lab import status

SETTINGS = RoutingSettings()


def decide(request: RoutingRequest, *statuses: DatacenterStatus) -> RoutingDecision:
    return choose(request, statuses, SETTINGS)


def where(*statuses: DatacenterStatus, **wanted: object) -> list[str]:
    request = RoutingRequest(**{"key": "ann/1", **wanted})  # type: ignore[arg-type]
    return [part.datacenter for part in decide(request, *statuses).parts]


def jobs(count: int, *statuses: DatacenterStatus) -> Counter[str]:
    chosen = Counter[str]()
    for number in range(count):
        chosen.update(where(*statuses, key=f"ann/{number}"))
    return chosen


# Buckets.


def test_a_better_bucket_beats_any_distance() -> None:
    near = status("near", Health.DEGRADED, 1.0)
    middle = status("middle", Health.BUSY, 50.0, free=0)
    far = status("far", rtt_ms=200.0)
    assert where(near, middle, far) == ["far"]
    assert where(near, middle, far, count=3) == ["far", "middle", "near"]


def test_within_a_bucket_the_nearer_one_wins() -> None:
    near, far = status("near", rtt_ms=5.0), status("far", rtt_ms=200.0)
    assert jobs(50, near, far) == {"near": 50}


def test_a_suspected_datacenter_is_the_last_resort() -> None:
    suspected = status("a", Health.DEGRADED, 1.0, suspected=True)
    degraded = status("b", Health.DEGRADED, 300.0)
    assert where(suspected, degraded) == ["b"]
    assert where(suspected) == ["a"]


def test_datacenters_that_fell_silent_together_get_no_job() -> None:
    held = status("a", Health.DEGRADED, suspected=True, held=True)
    assert where(held) == []


def test_unusable_datacenters_are_never_chosen_and_are_named() -> None:
    request = RoutingRequest(key="k")
    decision = decide(
        request,
        status("eu", Health.UNHEALTHY, reason="it has no worker"),
        status("us", Health.UNREACHABLE, reason="no manager heard for 51 s"),
        status("ap", Health.UNKNOWN),
    )
    assert decision.parts == ()
    assert decision.reason == (
        "a datacenter wanted, 0 can run it (ap is unknown; eu is unhealthy: it has no worker; "
        "us is unreachable: no manager heard for 51 s)"
    )


def test_a_job_that_needs_more_cores_than_are_free_goes_where_it_can_start() -> None:
    near = status("near", rtt_ms=5.0, free=4)
    far = status("far", rtt_ms=200.0, free=16)
    assert where(near, far, cores={"near": 8, "far": 8}) == ["far"]
    assert where(near, far, cores={"near": 2, "far": 2}) == ["near"]


def test_a_job_larger_than_any_datacenter_is_not_kept_from_an_empty_one() -> None:
    small, large = status("small", cores=8, free=8), status("large", cores=16, free=2)
    assert where(small, large, cores={"small": 100, "large": 100}) == ["small"]


# Sharing among the best.


def test_equal_datacenters_share_the_jobs() -> None:
    chosen = jobs(3000, status("a"), status("b"), status("c"))
    loads = [chosen[name] for name in "abc"]
    assert statistics.pstdev(loads) / statistics.mean(loads) < 0.1


def test_a_datacenter_with_more_free_cores_gets_more_jobs() -> None:
    chosen = jobs(3000, status("small", cores=8, free=8), status("large", cores=24, free=24))
    assert 2.0 < chosen["large"] / chosen["small"] < 4.5


def test_the_same_job_gets_the_same_answer() -> None:
    known = [status("a"), status("b"), status("c")]
    assert all(where(*known) == where(*reversed(known)) for _ in range(10))


def test_a_datacenter_that_leaves_moves_only_its_own_jobs() -> None:
    known = [status("a"), status("b"), status("c")]
    for number in range(200):
        before = where(*known, key=f"k{number}")
        after = where(*known[:2], key=f"k{number}")
        assert before == after or before == ["c"]


def test_a_score_within_a_fifth_of_the_best_shares_and_a_worse_one_does_not() -> None:
    # (30 + 50) and (44 + 50): 17 % apart; (60 + 50): 37 %.
    chosen = jobs(300, status("a", rtt_ms=30.0), status("b", rtt_ms=44.0), status("c", rtt_ms=60.0))
    assert chosen["a"] > 0
    assert chosen["b"] > 0
    assert chosen["c"] == 0


def test_load_sends_jobs_further_away_before_the_near_one_is_full() -> None:
    near = status("near", rtt_ms=1.0, cores=100, free=2)
    far = status("far", rtt_ms=40.0, cores=100, free=100)
    assert jobs(50, near, far) == {"far": 50}


# Before the first round trip.


def test_of_busy_datacenters_the_one_with_the_shortest_queue_per_core_gets_the_job() -> None:
    small = status("small", Health.BUSY, cores=4, free=0, queued=2)
    large = status("large", Health.BUSY, cores=16, free=0, queued=4)
    assert jobs(20, small, large) == {"large": 20}
    (part,) = decide(RoutingRequest(key="ann/1"), small, large).parts
    assert "2 are within 20 %: by the jobs that wait per core" in explanation_text(part.explanation)
    equal = [status(name, Health.BUSY, cores=4, free=0, queued=2) for name in ("a", "b")]
    assert set(jobs(40, *equal)) == {"a", "b"}, "equal ones are drawn"


def test_without_round_trips_the_most_free_cores_win() -> None:
    known = [status("a", rtt_ms=None, free=4), status("b", rtt_ms=None, free=20)]
    decision = decide(RoutingRequest(key="k"), *known)
    assert decision.parts[0].datacenter == "b"
    assert "round trips are not known yet" in decision.parts[0].explanation.rule


def test_one_datacenter_without_a_round_trip_is_taken_as_far_and_not_excluded() -> None:
    unmeasured, measured = status("a", rtt_ms=None), status("b", rtt_ms=30.0)
    assert where(unmeasured, measured) == ["b"]
    assert where(unmeasured, measured, count=2) == ["b", "a"]


# Several and named datacenters.


def test_any_two_are_the_two_best() -> None:
    known = [status("a", rtt_ms=10.0), status("b", rtt_ms=300.0), status("c", rtt_ms=60.0)]
    decision = decide(RoutingRequest(key="k", count=2), *known)
    assert [(part.datacenter, part.share) for part in decision.parts] == [("a", 0.5), ("c", 0.5)]


def test_any_three_of_two_are_refused_in_one_line() -> None:
    decision = decide(RoutingRequest(key="k", count=3), status("a"), status("b"))
    assert decision.parts == ()
    assert decision.reason == "3 datacenters wanted, 2 can run it (a is healthy; b is healthy)"


def test_named_datacenters_get_their_shares_also_when_busy() -> None:
    weights = (("eu", 0.6), ("us", 0.4))
    request = RoutingRequest(key="k", weights=weights)
    decision = decide(
        request, status("eu", Health.BUSY, free=0), status("us", rtt_ms=300.0), status("ap")
    )
    assert [(part.datacenter, part.share) for part in decision.parts] == list(weights)


def test_a_named_datacenter_that_is_away_is_not_replaced_silently() -> None:
    request = RoutingRequest(key="k", weights=(("eu", 1.0),))
    away = status("eu", Health.UNREACHABLE, reason="no manager heard for 51 s")
    decision = decide(request, away, status("us"))
    assert decision.parts == ()
    assert decision.reason.startswith(
        "eu cannot run its part: is unreachable: no manager heard for 51 s"
    )


def test_a_fallback_replaces_a_named_datacenter_and_says_so() -> None:
    away = status("eu", Health.UNREACHABLE)
    weights = (("eu", 0.6), ("us", 0.4))
    request = RoutingRequest(key="k", weights=weights, fallback=True)
    decision = decide(request, away, status("us"), status("ap"))
    assert [(p.datacenter, p.replaces) for p in decision.parts] == [("ap", "eu"), ("us", "")]
    assert "in place of eu" in decision.parts[0].explanation.rule


def test_a_fallback_is_only_taken_from_its_list() -> None:
    away = status("eu", Health.UNREACHABLE)
    request = RoutingRequest(key="k", weights=(("eu", 1.0),), fallback=("ap",))
    assert [p.datacenter for p in decide(request, away, status("us"), status("ap")).parts] == ["ap"]
    assert decide(request, away, status("us")).parts == ()


def test_a_fallback_never_runs_two_parts_of_one_job() -> None:
    away = status("eu", Health.UNREACHABLE)
    request = RoutingRequest(key="k", weights=(("eu", 0.5), ("us", 0.5)), fallback=True)
    assert decide(request, away, status("us")).parts == ()


def test_names_that_the_gate_does_not_know_are_found() -> None:
    request = RoutingRequest(key="k", weights=(("eu", 0.5), ("mars", 0.5)), fallback=("moon",))
    assert unknown_names(request, ["eu", "us"]) == ["mars", "moon"]


# Refusals.


def test_a_datacenter_that_refused_the_job_comes_last() -> None:
    known = [status("a", rtt_ms=5.0), status("b", Health.DEGRADED, 300.0)]
    assert where(*known, refused={"a": "no worker has Python 3.13"}) == ["b"]
    both = {"a": "no core", "b": "no core"}
    assert where(*known, refused=both) == ["a"]


def test_a_cool_down_moves_other_jobs_too_but_never_excludes() -> None:
    hot, other = status("a", rtt_ms=5.0, cool_down=3.0), status("b", rtt_ms=60.0)
    assert where(hot, other) == ["b"]
    assert where(hot) == ["a"]


def test_a_named_datacenter_that_refused_is_replaced_if_allowed_and_else_reported() -> None:
    known = [status("eu"), status("us")]
    refused = {"eu": "needs 8 cores, 0 are free"}
    assert where(*known, weights=(("eu", 1.0),), refused=refused, fallback=True) == ["us"]
    request = RoutingRequest(key="k", weights=(("eu", 1.0),), refused=refused, fallback=True)
    assert [p.datacenter for p in decide(request, known[0]).parts] == ["eu"]


# Explanations.


def test_the_explanation_shows_the_numbers_of_the_decision() -> None:
    us = status("us", rtt_ms=92.0, cores=40, free=32)
    ap = status("ap", rtt_ms=80.0, cores=40, free=40, cool_down=3.0)
    request = RoutingRequest(key="k", refused={"ap": "needs 8 cores, 0 are free, 3 jobs wait"})
    decision = decide(request, us, ap)
    assert explanation_text(decision.parts[0].explanation).splitlines() == [
        "chosen of ap, us",
        "  us  healthy  score 170 = (92 ms + 50) x 1.2 load x 1.0   chosen",
        "  ap  healthy  score 390 = (80 ms + 50) x 1.0 load x 1.0 x 3.0 cool-down   "
        "refused: needs 8 cores, 0 are free, 3 jobs wait",
    ]


def test_the_explanation_of_a_part_says_its_share_and_what_was_unusable() -> None:
    request = RoutingRequest(key="k", count=2)
    gone = status("eu", Health.UNREACHABLE, reason="no manager heard for 51 s")
    decision = decide(request, gone, status("us"), status("ap"))
    lines = explanation_text(decision.parts[0].explanation).splitlines()
    assert lines[0] == "chosen of ap, eu, us for 50 % (2 are within 20 %: by its key)"
    assert "  eu  unreachable  no manager heard for 51 s" in lines


def test_the_explanation_of_a_hundred_candidates_stays_short() -> None:
    known = [status(f"dc{number:02d}", rtt_ms=10.0 + number) for number in range(100)]
    decision = decide(RoutingRequest(key="k", count=100), *known)
    texts = [explanation_text(part.explanation) for part in decision.parts]
    assert len(texts) == 100
    assert "and 92 more for 1 %" in texts[0].splitlines()[0]
    assert sum(map(len, texts)) < 100_000
    scores = [line.partition("score ")[2] for line in texts[0].splitlines()[1:]]
    assert len(scores) == 8
