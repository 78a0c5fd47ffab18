"""The columns of the step table, and the parser of `--columns`.

Imports little on purpose: names are checked before a run, before anything heavy is imported.
"""

from __future__ import annotations

import re

from squall.api.errors import UsageError

DEFAULT_COLUMNS = ("p50", "p90", "p95", "p99", "p99.9", "max")
_DROPPED_FIRST = ("p99.9", "p90", "max")
# The width of name, count, rate and failed. A column is a time such as `0.892 ms` plus two spaces.
_FIXED_WIDTH = 42
_COLUMN_WIDTH = 10
_ALIASES = {"med": "p50", "median": "p50", "avg": "mean", "p999": "p99.9"}
_PLAIN = ("min", "mean", "max")
_QUANTILE = re.compile(r"p\(?([0-9]{1,2}(?:\.[0-9]+)?)\)?")


def parse_columns(text: str) -> tuple[str, ...]:
    """Parses `p50,p(99),max`; count, rate and failed are always shown."""
    columns = [_column(part.strip()) for part in text.split(",") if part.strip()]
    if not columns:
        raise UsageError(f"--columns {text}: name at least one, such as p50,p99,max")
    return tuple(dict.fromkeys(columns))


def columns_that_fit(width: int) -> tuple[str, ...]:
    """The default columns that fit; on a narrow terminal the high percentiles go last."""
    room = (width - _FIXED_WIDTH) // _COLUMN_WIDTH
    left = list(DEFAULT_COLUMNS)
    for column in _DROPPED_FIRST:
        if len(left) > room:
            left.remove(column)
    return tuple(left)


def quantile_of(column: str) -> float | None:
    """0.99 for `p99`; None for `min`, `mean` and `max`."""
    return None if column in _PLAIN else float(column[1:]) / 100.0


def _column(name: str) -> str:
    known = _ALIASES.get(name.lower(), name.lower())
    if known in _PLAIN:
        return known
    match = _QUANTILE.fullmatch(known)
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"--columns {name}: there is no such column; "
            "use min, mean, med, max and percentiles such as p95 or p99.9"
        )
    return f"p{match[1]}"
