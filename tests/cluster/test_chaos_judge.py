"""The judge of the chaos matrix finds what it is there to find."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

from squall.reporting.loss_lines import STARTED_LATE
from tests.cluster.lab.gate_judge import overlapping_tries, parts_of, whole_plan
from tests.cluster.lab.judge import (
    Load,
    below_target_s,
    holes,
    most_in_a_second,
    problems,
    stated_and_real,
    too_wide,
    unsaid,
)
from tests.lab.arrivals import Arrival, running_arrivals_target, seen_of


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


def test_every_second_of_the_arrivals_is_looked_at() -> None:
    even = [at / 128 for at in range(3 * 128)]
    assert most_in_a_second(even) == 128
    burst = sorted([*even, *(1.45 + at / 1000 for at in range(10))])
    assert most_in_a_second(burst) == 138
    seen = counts(len(burst), arrivals_s=burst)
    found = problems(document(sent=len(burst)), seen, Load(rate_per_s=128), worker_lost=False)
    assert found == ["138 starts in a second, the plan allows 134"]


def test_the_time_below_the_target_is_measured() -> None:
    whole = [at / 100 for at in range(1000)]
    assert below_target_s(whole, 100, 2.0, 10.0) == 0.0
    # Half of it is missing from 4 to 7.
    halved = [at for n, at in enumerate(whole) if not (4.0 <= at < 7.0 and n % 2)]
    assert 2.8 <= below_target_s(halved, 100, 2.0, 10.0) <= 3.3
    # A third of it is missing at the end.
    ended = [at for n, at in enumerate(whole) if at < 6.0 or n % 3]
    assert 3.2 <= below_target_s(ended, 100, 2.0, 10.0) <= 3.8


def test_an_unknown_interval_may_be_as_wide_as_the_facts_allow() -> None:
    assert stated_and_real(document(sent=100, unknown=30), counts(110)) == (30, 10)
    bound = {"ratio": 3.0, "silent_s": 0.3, "rate_per_s": 100.0, "in_flight": 4}
    assert too_wide(30, 10, **bound) == []
    assert too_wide(35, 0, **bound) == []
    assert "36 requests are called unknown, 0 were" in too_wide(36, 0, **bound)[0]


def test_a_loss_that_nobody_names_is_found() -> None:
    loss = {"share": 0, "attempt": 1, "worker": "w1", "unknown_requests": 0, "reason": ""}
    result = document() | {"losses": [loss]}
    live = "   11.0 s  Load share 0 on w1 lost: worker w1 restarted"
    log = "warning share_lost node=m1 job=g-6 workflow=Load share=0 attempt=1 reason=x"
    assert unsaid(result, live, log) == []
    early = "   11.0 s  Load share 0 on w1 ended early: killed by SIGKILL"
    ended = 'shares_ended_early job=g-6 workflow=Load attempts="0#1 3#1" reason=x'
    assert unsaid(result, early, ended) == []
    assert unsaid(result, "", log) == ["the live output does not name the loss of share 0 on w1"]
    assert unsaid(result, live, log.replace("attempt=1", "attempt=12")) == [
        "no log names the loss of share 0, attempt 1"
    ]
    assert unsaid(document() | {"losses": [loss | {"reason": STARTED_LATE}]}, "", "") == []


def test_arrivals_are_counted_by_sender_and_in_flight() -> None:
    arrivals = [Arrival(1.0, 1.2, "a#1"), Arrival(1.1, 1.3, "a#1"), Arrival(1.2, 1.4, "a#2")]
    seen = seen_of(arrivals)
    assert (seen["total"], seen["max_concurrent_requests"]) == (3, 2)
    assert seen["attempt_times"]["a#1"] == {"first_s": 1.0, "last_s": 1.1}


def test_the_target_stamps_what_arrives_while_it_stands_still() -> None:
    request = b"GET /?delay=20ms HTTP/1.1\r\nHost: t\r\nX-Squall-Attempt: job/0#1\r\n\r\n"
    with running_arrivals_target() as target:
        address = (target.host, target.port)
        with (
            socket.create_connection(address) as first,
            socket.create_connection(address) as second,
        ):
            os.kill(target.process.pid, signal.SIGSTOP)
            sent: list[float] = []
            for connection in (first, second):
                sent.append(time.time())
                connection.sendall(request)
                time.sleep(0.2)
            os.kill(target.process.pid, signal.SIGCONT)
            for connection in (first, second):
                assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
        one, other = target.arrivals()
        assert sent[0] <= one.at_s < sent[1] <= other.at_s < one.until_s
        assert {one.sender, other.sender} == {"job/0#1"}
        assert target.counts() == {"total": 2}
        assert target.seen()["max_concurrent_requests"] == 2
        target.reset()
        assert target.arrivals() == []


def split(*, eu: int = 60, us: int = 40, planned: int = 100, dropped: int = 0) -> dict[str, Any]:
    """The result of a job over two datacenters that sent 100 requests."""
    made = document()
    made["workflows"][0]["starts"] = {"planned": planned, "dropped": dropped}
    parts = (("eu", eu), ("us", us))
    made["datacenters"] = [{"name": name, "requests": {"sent": sent}} for name, sent in parts]
    return made


def test_the_parts_of_datacenters_must_add_up_to_the_whole() -> None:
    assert list(parts_of(split(), ("us", "eu"))) == []
    assert "the datacenters sent 99 requests, the whole job 100" in [*parts_of(split(us=39), ())]
    assert "the result has the datacenters eu, us" in [*parts_of(split(), ("eu", "us", "ap"))]


def test_a_part_of_the_plan_that_nobody_made_is_found() -> None:
    assert list(whole_plan(split(), 100)) == []
    assert list(whole_plan(split(planned=110, dropped=10), 110)) == []
    assert "100 starts were planned, the file says 140" in [*whole_plan(split(), 140)]
    assert "100 requests were sent of 140, 0 were dropped" in [*whole_plan(split(planned=140), 140)]


def test_two_tries_of_a_part_must_not_overlap() -> None:
    def seen(*spans: tuple[str, float, float]) -> dict[str, Any]:
        times = {f"{local}/Load/0#1": {"first_s": a, "last_s": b} for local, a, b in spans}
        return counts(attempt_times=times)

    apart = seen(("g-5.eu1", 1.0, 4.0), ("g-5.us2", 4.5, 9.0))
    assert list(overlapping_tries(apart, is_split=False)) == []
    both = seen(("g-5.eu1", 1.0, 4.0), ("g-5.us1", 1.0, 4.0))
    assert list(overlapping_tries(both, is_split=True)) == []
    assert "g-5.us1 began 3.000 s before g-5.eu1 ended" in [
        *overlapping_tries(both, is_split=False)
    ]
    again = seen(("g-5.eu1", 1.0, 4.0), ("g-5.eu2", 3.0, 9.0))
    assert "g-5.eu2 began 1.000 s before g-5.eu1 ended" in [
        *overlapping_tries(again, is_split=True)
    ]


def test_a_datacenter_whose_loss_the_live_output_does_not_name_is_found() -> None:
    made = document(unknown=7)
    gone = {"share": 0, "attempt": 1, "worker": "", "datacenter": "eu"}
    made["losses"] = [{**made["losses"][0], **gone}]
    assert unsaid(made, "9.1 s  part 0 in eu is lost: eu is unreachable", "") == []
    assert unsaid(made, "", "") == ["the live output does not name the loss of datacenter eu"]
