"""Whenever a row is folded and reported, its reports hold every sample exactly once."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.engine.measure.recorder import Row
from squall.stats.histogram import Histogram, merged

SECONDS = st.floats(1e-6, 100.0)
STATUSES = st.sampled_from([200, 404, 503])
ACTIONS = st.one_of(
    st.tuples(st.just("answered"), STATUSES, SECONDS),
    st.tuples(st.just("spread"), STATUSES, SECONDS, SECONDS),
    st.tuples(st.just("failed"), st.sampled_from(["reset", "timeout"]), SECONDS),
    st.just(("fold",)),
    st.just(("take",)),
)


@given(st.lists(ACTIONS, max_size=40))
@settings(max_examples=200, deadline=None)
def test_reports_hold_every_sample_once(actions: list[tuple[object, ...]]) -> None:
    row = Row("home", "http", [(200, 399)])
    service: defaultdict[str, list[float]] = defaultdict(list)
    first_byte: list[float] = []
    deltas = []
    for action in actions:
        match action:
            case ("answered", int(status), float(whole_s)):
                row.statuses[status](whole_s)
                service[str(status)].append(whole_s)
                first_byte.append(whole_s)
            case ("spread", int(status), float(first_s), float(whole_s)):
                row.spread(status, first_s, whole_s)
                service[str(status)].append(whole_s)
                first_byte.append(first_s)
            case ("failed", str(reason), float(seconds)):
                row.fail(reason, seconds, True)
                service[reason].append(seconds)
            case ("fold",):
                row.fold()
            case _:
                deltas.append(row.take())
    deltas.append(row.take())

    outcomes = [outcome for delta in deltas for outcome in delta.outcomes]
    assert {outcome.key for outcome in outcomes} == set(service)
    for key, seconds in service.items():
        of_key = [outcome for outcome in outcomes if outcome.key == key]
        assert sum(outcome.count for outcome in of_key) == len(seconds)
        assert sum(outcome.exchanges for outcome in of_key) == len(seconds)
        assert merged(outcome.service for outcome in of_key) == Histogram.from_seconds(seconds)
    reported = merged(delta.first_byte for delta in deltas if delta.first_byte is not None)
    assert reported == Histogram.from_seconds(first_byte)
