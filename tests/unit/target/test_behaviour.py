from __future__ import annotations

from random import Random
from statistics import fmean, median

import pytest

from squall.target.behaviour import (
    CACHE_ENTRIES,
    BadBehaviour,
    Behaviours,
    Delay,
    parse_delay,
    parse_duration,
    parse_query,
    parse_statuses,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("1.5s", 1.5), ("300us", 0.0003), ("1m", 60.0), ("20", 0.02), ("0", 0.0)],
)
def test_durations_are_read_with_their_unit_and_bare_numbers_are_milliseconds(
    text: str, seconds: float
) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "ms", "-1ms", "1h", "1 s", "2m2s", "61m", "nan"])
def test_a_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(BadBehaviour):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("20ms", Delay("fixed", 0.02)),
        ("20ms..40ms", Delay("uniform", 0.02, 0.04)),
        ("uniform:5ms..50ms", Delay("uniform", 0.005, 0.05)),
        ("exp:20ms", Delay("exp", 0.02)),
        ("lognormal:20ms,0.5", Delay("lognormal", 0.02, 0.5)),
    ],
)
def test_each_delay_form_is_understood(text: str, delay: Delay) -> None:
    assert parse_delay(text) == delay


@pytest.mark.parametrize(
    "text",
    ["fast", "40ms..20ms", "uniform:5ms", "exp:0", "exp:", "lognormal:20ms", "normal:1ms,1"],
)
def test_a_bad_delay_is_refused(text: str) -> None:
    with pytest.raises(BadBehaviour):
        parse_delay(text)


def test_uniform_delays_stay_inside_their_range_and_fill_it() -> None:
    random = Random(1)
    drawn = [parse_delay("10ms..30ms").draw(random) for _ in range(5000)]
    assert 0.010 <= min(drawn) < 0.011
    assert 0.029 < max(drawn) <= 0.030
    assert fmean(drawn) == pytest.approx(0.020, rel=0.02)


def test_exponential_delays_have_the_mean_that_was_asked_for() -> None:
    random = Random(2)
    drawn = [parse_delay("exp:20ms").draw(random) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(0.020, rel=0.05)
    assert median(drawn) == pytest.approx(0.020 * 0.6931, rel=0.05)


def test_lognormal_delays_have_the_median_that_was_asked_for() -> None:
    random = Random(3)
    drawn = sorted(parse_delay("lognormal:20ms,0.5").draw(random) for _ in range(20_000))
    assert median(drawn) == pytest.approx(0.020, rel=0.03)
    # One sigma above the median is the 84.13 % point.
    assert drawn[16_826] == pytest.approx(0.020 * 1.6487, rel=0.05)


def test_one_status_has_the_weight_one_and_lists_keep_theirs() -> None:
    assert parse_statuses("503") == ((503, 1.0),)
    assert parse_statuses("200:9,503:1") == ((200, 9.0), (503, 1.0))


@pytest.mark.parametrize("text", ["", "99", "600", "abc", "200:x", "200:0", "200.5", "200:-1"])
def test_a_bad_status_is_refused(text: str) -> None:
    with pytest.raises(BadBehaviour):
        parse_statuses(text)


def test_weighted_statuses_come_in_their_proportion() -> None:
    behaviour = parse_query("status=200:9,503:1")
    random = Random(4)
    drawn = [behaviour.draw_status(random) for _ in range(10_000)]
    assert set(drawn) == {200, 503}
    assert drawn.count(503) / len(drawn) == pytest.approx(0.1, abs=0.01)


def test_a_share_of_errors_overrides_the_status() -> None:
    behaviour = parse_query("errors=0.25&status=201")
    random = Random(5)
    drawn = [behaviour.draw_status(random) for _ in range(10_000)]
    assert set(drawn) == {201, 500}
    assert drawn.count(500) / len(drawn) == pytest.approx(0.25, abs=0.02)


def test_the_same_seed_makes_the_same_choices() -> None:
    behaviour = parse_query("status=200:1,503:1&delay=exp:5ms")
    assert behaviour.delay is not None
    first, second = Random(7), Random(7)
    for _ in range(100):
        assert behaviour.draw_status(first) == behaviour.draw_status(second)
        assert behaviour.delay.draw(first) == behaviour.delay.draw(second)


def test_a_plain_query_changes_nothing() -> None:
    behaviour = parse_query("q=shoes&n=20")
    assert behaviour.steady and behaviour.prompt and behaviour.problem is None
    assert behaviour.draw_status(Random(0)) is None
    assert behaviour.next_hop("/search") is None
    assert behaviour.field("q") == "shoes"
    assert behaviour.field("absent") is None


def test_every_parameter_reaches_the_behaviour() -> None:
    behaviour = parse_query(
        "status=404&delay=5ms&size=10&chunked=3&gzip=1&errors=0.1&resets=0.2&close=1&cut=1"
        "&redirect=/x&redirects=2&cookie=a:b&header=X-Time:12&slow_headers=200ms&hang=1"
        "&count_field=user&count_field=sku"
    )
    assert behaviour.problem is None
    assert behaviour.statuses == ((404, 1.0),)
    assert behaviour.delay == Delay("fixed", 0.005)
    assert (behaviour.size, behaviour.chunks, behaviour.gzip) == (10, 3, True)
    assert (behaviour.errors, behaviour.resets) == (0.1, 0.2)
    assert behaviour.close and behaviour.cut and behaviour.hang
    assert (behaviour.redirect, behaviour.redirects) == ("/x", 2)
    assert behaviour.headers == (("Set-Cookie", "a=b; Path=/"), ("X-Time", "12"))
    assert behaviour.slow_headers_s == pytest.approx(0.2)
    assert behaviour.count_fields == ("user", "sku")
    assert not behaviour.steady and not behaviour.prompt


@pytest.mark.parametrize(
    "query",
    [
        "delay=soon",
        "status=9",
        "size=-1",
        "size=1e30",
        "errors=2",
        "resets=x",
        "close=maybe",
        "cookie=plain",
        "header=X-A%0d%0aX-B:1",
        "header=X-A:1%0d%0aX-B:2",
        "redirect=/a%0d%0aSet-Cookie:b",
        "redirects=101",
    ],
)
def test_a_bad_value_is_a_problem_that_names_the_parameter(query: str) -> None:
    problem = parse_query(query).problem
    assert problem is not None
    assert problem.startswith(query.partition("=")[0])


def test_a_cookie_with_attributes_is_taken_as_it_is() -> None:
    behaviour = parse_query("cookie=sid:7;%20Max-Age=0")
    assert behaviour.headers == (("Set-Cookie", "sid=7; Max-Age=0"),)


def test_a_chain_of_redirects_counts_down_and_keeps_the_other_parameters() -> None:
    behaviour = parse_query("redirects=2&size=5")
    hop = behaviour.next_hop("/a")
    assert hop == "/a?size=5&redirects=1"
    hop = parse_query(hop.partition("?")[2]).next_hop("/a")
    assert hop == "/a?size=5&redirects=0"
    assert parse_query(hop.partition("?")[2]).next_hop("/a") is None


def test_a_query_is_understood_once_and_the_cache_stays_bounded() -> None:
    behaviours = Behaviours()
    first = behaviours.get("delay=5ms")
    assert behaviours.get("delay=5ms") is first
    for n in range(2 * CACHE_ENTRIES):
        behaviours.get(f"id={n}")
    assert len(behaviours) <= CACHE_ENTRIES
