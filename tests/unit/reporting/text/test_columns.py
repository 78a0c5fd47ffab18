"""Names of columns."""

from __future__ import annotations

import pytest

from squall.api.errors import UsageError
from squall.reporting.text.columns import parse_columns, quantile_of


def test_the_spellings_people_use_are_one_column() -> None:
    assert parse_columns("p50, p(99) ,MAX,avg,med,p999,p99.99") == (
        "p50",
        "p99",
        "max",
        "mean",
        "p99.9",
        "p99.99",
    )


@pytest.mark.parametrize("text", ["p", "p0", "fast", "p100", "p(101)", ",", ""])
def test_an_unknown_column_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--columns"):
        parse_columns(text)


def test_a_percentile_is_a_share() -> None:
    assert quantile_of("p99.9") == pytest.approx(0.999)
    assert quantile_of("max") is None
