"""The text at the end of a run, word for word."""

from __future__ import annotations

from typing import Any

from squall.reporting.text.summary import render_summary
from squall.stats.reports import ErrorSample
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.verdict import Verdict

OPEN_RUN = """\
shop.py  Shop  open 50/s  10s  run 01J9Z4  VALID

THRESHOLDS  1 passed, 2 failed
  x   pay.p(99) < 800ms            912 ms  (service time)
  ok  errors < 5%                  3 %
  x   nothing.p(95) < 1s           no samples

STEPS              count     rate   failed      p50      p90      p95      p99    p99.9      max
  login              500   50.0/s        0  15.0 ms   120 ms   120 ms   120 ms   120 ms   120 ms
  pay                500   50.0/s      6 %  80.4 ms  80.4 ms  85.5 ms   5.00 s   5.00 s   5.00 s
  iteration          500   50.0/s      6 %  96.0 ms  96.8 ms  96.8 ms  96.8 ms  97.0 ms  97.0 ms
  times from the planned start; service time of login: p99 18 ms
CHECKS      97.9 % of 480     has_price 97.9 % (10 failed)
            checks do not fail a run; --threshold "checks > 99%" would
METRICS     orders       470, 47.0/s
            queue        last 4, min 3, max 4.5
            cached       80 % of 500
            server_time  p50 2.01 ms, p95 5.00 ms, p99 5.00 ms, max 5.00 ms (500 samples)
LOAD        500 starts planned, 500 made, 10 late (max 4 ms), 0 dropped
HTTP        1030 sent, 20 failed, 20 redirects, 0 reconnects, 200: 970  503: 10  timeout after 5 s: 10
            connect p99 0.8 ms (20 connections), first byte p99 75 ms, 120 kB out, 1.35 MB in
            other calls  10 requests not returned by a step (give them name=...)
GENERATOR   cpu 61 % of 1 core, loop lag p99 1.9 ms, gc 0.4 ms, 7 users busy at most of 200
ERRORS        10  pay  503 Service Unavailable
              10  pay  timeout after 5 s
              10  pay  KeyError: 'id'   shop.py:31 in pay
  first answer 503 in pay: http://127.0.0.1:8080/pay
    busy
  first KeyError in pay:
      File "shop.py", line 31, in pay
        order = response.json()["id"]
    KeyError: 'id'
Transfer/sec: 135 kB
Requests/sec: 102.0"""  # noqa: E501

MIXED_RUN = """\
mix.py  Browse  5 users + Buy  20 iterations by 5 users  5.1s  run 01J9Z4  INVALID  partial
INVALID  Browse.home blocked the loop at mix.py:14
         process 0 died

STEPS Browse       count     rate   failed      p50      max
  home                20   5.00/s        0  3.00 ms  4.00 ms
  iteration           20   5.00/s        0  5.00 ms  5.00 ms
STEPS Buy          count     rate   failed      p50      max
  home                20   5.00/s        0  3.00 ms  4.00 ms
  iteration           20   5.00/s        0  5.00 ms  5.00 ms
LOAD        Browse: 21 iterations started by 5 users, 1 interrupted
            Buy: 21 iterations started by 5 users, 1 interrupted
HTTP        69 sent, 0 redirects, 0 reconnects, 200: 40
            0 B out, 13.8 kB in
            other calls  29 requests not returned by a step (give them name=...)
GENERATOR   cpu 20 % of 2 cores, loop lag p99 1 ms, gc 0 ms, 10 users busy at most of 10
            process 0 ended early: killed by signal 9
WORKFLOWS   Buy failed: no rows left in users.csv
            Audit skipped: Buy failed
Transfer/sec: 2.30 kB
Requests/sec: 11.5"""


def test_an_open_run(make_outcome: Any) -> None:
    assert render_summary(make_outcome()) == OPEN_RUN


def test_several_workflows_have_a_block_each(make_mixed: Any) -> None:
    assert render_summary(make_mixed(), columns=("p50", "max")) == MIXED_RUN


def test_without_colour_there_is_no_escape_and_with_it_the_same_text(make_outcome: Any) -> None:
    plain = render_summary(make_outcome(), color=False)
    colored = render_summary(make_outcome(), color=True)
    assert "\x1b" not in plain
    assert "\x1b[31mx\x1b[0m" in colored
    for code in ("1", "2", "31", "32", "33", "0"):
        colored = colored.replace(f"\x1b[{code}m", "")
    assert colored == plain


def test_no_threshold_no_section_but_a_total_failure_is_shown(make_outcome: Any) -> None:
    builtin = ThresholdResult(
        expression="errors < 100%", passed=True, value=3.0, unit="%", samples=9, builtin=True
    )
    assert "THRESHOLDS" not in render_summary(make_outcome(thresholds=[builtin]))
    failed = ThresholdResult(
        expression="errors < 100%", passed=False, value=100.0, unit="%", samples=9, builtin=True
    )
    assert "x   errors < 100%                100 %" in render_summary(
        make_outcome(thresholds=[failed])
    )


def test_the_hint_about_checks_goes_once_checks_are_judged(make_outcome: Any) -> None:
    judged = ThresholdResult(
        expression="checks > 99%", passed=False, value=97.9, unit="%", samples=480
    )
    assert "checks do not fail a run" not in render_summary(make_outcome(thresholds=[judged]))


def test_other_calls_are_shown_only_when_there_are_some(make_outcome: Any) -> None:
    outcome = make_outcome()
    outcome.stats.workflows["Shop"].requests.sent -= 10
    assert "other calls" not in render_summary(outcome)


def test_reasons_follow_a_bad_verdict(make_outcome: Any) -> None:
    text = "generator at 98 % CPU for 8 of 10 s; start again with fewer VUs or more processes"
    verdict = Verdict(state="DEGRADED", reasons=[text])
    lines = render_summary(make_outcome(verdict=verdict)).splitlines()
    assert lines[0].endswith("DEGRADED")
    assert lines[1] == f"DEGRADED  {text}"


def test_an_aborted_and_an_interrupted_run_say_so_in_the_first_line(make_outcome: Any) -> None:
    aborted = render_summary(make_outcome(aborted_by="pay.p(99) < 800ms, abort"))
    assert aborted.splitlines()[0].endswith("VALID  ended early by pay.p(99) < 800ms, abort")
    interrupted = render_summary(make_outcome(status="interrupted", interrupted=True))
    assert interrupted.splitlines()[0].endswith("VALID  interrupted")


def test_a_failing_check_hook_is_an_error_without_a_count(make_outcome: Any) -> None:
    outcome = make_outcome()
    outcome.stats.add(
        ErrorSample(workflow="Shop", row="has_price", reason="TypeError: x", at_s=1.0)
    )
    assert "   -  has_price  TypeError: x" in render_summary(outcome)


def test_long_tracebacks_keep_the_lines_nearest_to_the_mistake(make_outcome: Any) -> None:
    outcome = make_outcome()
    frames = "".join(f'  File "deep.py", line {n}, in f\n' for n in range(30))
    outcome.stats.add(
        ErrorSample(
            workflow="Shop",
            row="login",
            reason="RecursionError",
            at_s=1.0,
            traceback=f"Traceback (most recent call last):\n{frames}RecursionError\n",
        )
    )
    text = render_summary(outcome)
    assert "line 29" in text
    assert "line 10," not in text


def test_many_kinds_of_errors_end_in_a_count(make_outcome: Any) -> None:
    outcome = make_outcome()
    for number in range(40):
        outcome.stats.add(
            ErrorSample(workflow="Shop", row="login", reason=f"Odd: {number}", at_s=1.0)
        )
    assert "... and 23 more kinds (--json has them all)" in render_summary(outcome)


def test_a_step_without_samples_shows_dashes(make_outcome: Any) -> None:
    outcome = make_outcome()
    row = outcome.stats.workflows["Shop"].rows["login"]
    row.outcomes.clear()
    row.response = None
    row.count = row.ok = 0
    line = next(line for line in render_summary(outcome).splitlines() if "  login " in line)
    assert line.split() == ["login", "0", "0", "0", "-", "-", "-", "-", "-", "-"]


def test_the_last_two_lines_are_transfer_and_requests(make_outcome: Any, make_mixed: Any) -> None:
    for outcome in (make_outcome(), make_mixed()):
        last = render_summary(outcome).splitlines()[-2:]
        assert last[0].startswith("Transfer/sec: ")
        assert last[1].startswith("Requests/sec: ")


def test_the_numbers_by_datacenter_follow_the_steps(in_two_datacenters: Any) -> None:
    lines = render_summary(in_two_datacenters, columns=("p50", "p99")).splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("BY DATACENTER"))
    assert lines[at].split() == ["BY", "DATACENTER", "count", "rate", "failed", "p50", "p99"]
    assert lines[at + 1] == "  eu  60 %  completed  VALID  515 requests sent  try 2"
    assert lines[at + 2].split()[:3] == ["login", "250", "25.0/s"]
    assert lines[at + 5] == (
        "  us  40 %  lost  INVALID  515 requests sent  began 1.5 s later  no manager answers"
    )
    assert lines[at + 9].startswith("CHECKS")


def test_a_run_in_one_place_has_no_section_by_datacenter(make_outcome: Any) -> None:
    assert "BY DATACENTER" not in render_summary(make_outcome())
