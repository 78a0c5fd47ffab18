"""Whatever an author writes is either understood or refused in one line."""

from __future__ import annotations

import keyword

from hypothesis import example, given
from hypothesis import strategies as st

from squall.api.errors import ConfigError
from squall.stats.manifest import FileManifest, MetricManifest, StepManifest, WorkflowManifest
from squall.stats.thresholds.grammar import OPS, UNITS, Op, Unit
from squall.stats.thresholds.judge import bind, parse_threshold

MANIFEST = FileManifest(
    path="shop.py",
    workflows=[
        WorkflowManifest(
            name="Shop",
            steps=[StepManifest(name=name, protocol="http") for name in ("login", "pay")],
            metrics=[
                MetricManifest(name="orders", kind="counter"),
                MetricManifest(name="queue", kind="gauge"),
                MetricManifest(name="cached", kind="rate"),
                MetricManifest(name="size", kind="sample", unit="kB"),
            ],
        ),
        WorkflowManifest(name="Browse", steps=[StepManifest(name="login", protocol="http")]),
    ],
)

NAME_START = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_äé"
names = st.builds(
    str.__add__,
    st.sampled_from(NAME_START),
    st.text(NAME_START + "0123456789", max_size=8),
).filter(lambda name: not keyword.iskeyword(name))
percentiles = st.integers(5_000, 9_999).map(lambda hundredths: f"{hundredths / 100:g}")
spaces = st.sampled_from(["", " ", "  ", "\t"])
numbers = st.one_of(
    st.integers(0, 10**9).map(str), st.integers(0, 10**6).map(lambda n: f"{n / 100:.2f}")
)
durations = st.one_of(st.integers(1, 3600).map(lambda n: (f"{n}s", n)), st.just(("1m30s", 90)))

# Pieces of the grammar in any order reach deeper into the parser than plain text does.
PIECES = """
    pay login Shop Browse orders queue cached size errors checks dropped late rps iterations
    iteration http_req_duration http_reqs {step:pay} {step:} : . , p(95) p(99.99) p( ) p95 avg
    med max count rate value service connect first_byte < <= > >= == != = 5 0.01 -3 1e9 ms s us
    % /s over 10s abort after 30s
"""
pieces = st.sampled_from(PIECES.split())
mixtures = st.lists(st.tuples(pieces, spaces), max_size=14).map(
    lambda parts: "".join(piece + space for piece, space in parts)
)


@given(
    st.lists(names, min_size=1, max_size=4),
    st.none() | percentiles,
    st.sampled_from(OPS),
    numbers,
    st.sampled_from(("", *UNITS)),
    st.none() | durations,
    st.sampled_from(["no", "abort", "after"]),
    durations,
    st.lists(spaces, min_size=6, max_size=6),
)
def test_a_written_threshold_is_taken_apart_into_what_was_written(
    path: list[str],
    percentile: str | None,
    op: Op,
    number: str,
    unit: Unit,
    over: tuple[str, int] | None,
    abort: str,
    after: tuple[str, int],
    gaps: list[str],
) -> None:
    text = gaps[0] + ".".join(path) + (f".p({percentile})" if percentile else "")
    text += gaps[1] + op + gaps[2] + number + unit
    text += f" {gaps[3]}over {over[0]}" if over else ""
    if abort != "no":
        text += f"{gaps[4]},{gaps[5]}abort"
    if abort == "after":
        text += f" after {after[0]}"
    found = parse_threshold(text, default_workflow="Shop")
    assert str(found) == text
    assert found.names == tuple(path)
    assert found.percentile == (float(percentile) if percentile else None)
    assert (found.op, found.value, found.unit) == (op, float(number), unit)
    assert found.over_s == (over[1] if over else None)
    assert found.abort is (abort != "no")
    assert found.abort_after_s == (after[1] if abort == "after" else 0)
    assert parse_threshold(str(found), default_workflow="Shop") == found
    for name, column in zip(found.names, found.columns, strict=False):
        assert text[column - 1 :].startswith(name)


@given(names, st.none() | names, st.sampled_from(["p(95)", "avg", "rate", "count"]), spaces)
def test_the_k6_form_is_taken_apart_too(metric: str, step: str | None, stat: str, gap: str) -> None:
    tag = f"{{step:{step}}}" if step else ""
    found = parse_threshold(f"{metric}{tag}{gap}:{gap}{stat}{gap}<{gap}500")
    assert (found.k6, found.names[0], found.step) == (True, metric, step)
    assert (found.percentile == 95) is (stat == "p(95)")


@given(st.text(max_size=60) | mixtures, st.sampled_from([None, "Shop", "Browse", "Gone"]))
@example("0" * 500 + "<1", None)
@example("a<" + "9" * 5000, None)
@example("pay.p(95) < 1 over " + "9" * 400 + "s", None)
@example("pay.p(" + "9" * 400 + ") < 1", None)
@example("pay.p(95) < ٣", None)
@example("pay.p(95) < 1\nover 10s", None)
def test_any_text_is_understood_or_refused_in_one_line(text: str, workflow: str | None) -> None:
    try:
        bound = bind(parse_threshold(text, default_workflow=workflow), MANIFEST)
    except ConfigError as error:
        message = str(error)
        assert message.startswith('threshold "')
        assert "column " in message
        assert len(message.splitlines()) == 1
        assert len(message) < 1_000
    else:
        assert str(bound) == text
        assert bound.workflows
        assert bound.limit == bound.limit
