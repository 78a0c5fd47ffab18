"""Formats numbers: three significant digits, one unit per cell, no grouping.

Users grep these texts, so the format of a number never depends on locale, colour or its
neighbours. A proportion that is not quite 0 or 1 is never shown as 0 % or 100 %.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor

from squall.stats.short_numbers import (
    brief,
    brief_duration,
    duration,
    percent,
    percent_number,
    plural,
    three_digits,
    trimmed,
    whole_percent,
)

__all__ = [
    "brief",
    "brief_duration",
    "clock",
    "data_size",
    "duration",
    "judged",
    "length",
    "measured",
    "moment",
    "percent",
    "percent_cell",
    "percent_number",
    "plural",
    "rate",
    "three_digits",
    "tight_duration",
    "whole_percent",
]

_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
NO_SAMPLES = "no samples"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def tight_duration(seconds: float) -> str:
    """In a live line: as a cell, without the space."""
    return duration(seconds).replace(" ", "")


def rate(per_s: float) -> str:
    """A cell: `500/s`, `12.1/s`, `0.833/s`, `0`."""
    if per_s == 0:
        return "0"
    return f"{three_digits(per_s)}/s"


def measured(value: float, unit: str) -> str:
    """A value with the unit it is in: `912 ms`, `0.21 %`, `9.80/s`, `12.0 MB`."""
    if unit in _TIME_UNITS:
        return duration(value * _TIME_UNITS[unit])
    if unit == "%":
        return percent(value / 100.0)
    if unit == "/s":
        return rate(value)
    number = str(int(value)) if value == int(value) else three_digits(value)
    return f"{number} {unit}" if unit else number


def judged(value: float | None, unit: str, limit: float | None = None, note: str = "") -> str:
    """The value of a threshold: with as many digits as it takes to tell it from the limit, and
    without samples what is missing (`note`)."""
    if value is None:
        return note if note.startswith(NO_SAMPLES) else NO_SAMPLES
    text = measured(value, unit)
    if limit is None or value == limit or text != measured(limit, unit):
        return text
    digits = next(n for n in range(4, 18) if f"{value:.{n}g}" != f"{limit:.{n}g}")
    number = f"{value:.{digits}g}"
    return f"{number}{unit}" if unit == "/s" else f"{number} {unit}".rstrip()


def percent_cell(fraction: float) -> str:
    """A cell of the failed column: a plain `0` stands out less than `0 %`."""
    return percent(fraction) if fraction else "0"


def data_size(count: float) -> str:
    """`12 B`, `1.35 MB`, `405 MB`: powers of 1000."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value /= 1000.0
        unit += 1
    if unit == 0:
        return f"{value:.0f} B"
    return f"{three_digits(value)} {_BYTE_UNITS[unit]}"


def length(seconds: float) -> str:
    """A stretch of a run: `5m00s`, `1h02m03s`, `10s`, `3.4s`, `8.4ms`."""
    if 0 < seconds < 0.95:
        return f"{brief(seconds * 1e3)}ms"
    if seconds < 9.95:
        return f"{trimmed(f'{seconds:.1f}')}s"
    whole = int(seconds + 0.5)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m{left:02d}s"
    return f"{minutes}m{left:02d}s" if minutes else f"{left}s"


def clock(seconds: float) -> str:
    """Time on the run's clock: `00:12`, `05:00`, `1:02:03`."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes:02d}:{left:02d}"


def moment(time_s: float) -> str:
    """A time in whole seconds, in UTC, as in logs."""
    return datetime.fromtimestamp(floor(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
