"""Formats numbers: three significant digits, one unit per cell, no grouping.

Users grep these texts, so the format of a number never depends on locale, colour or its
neighbours. A proportion that is not quite 0 or 1 is never shown as 0 % or 100 %.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor, log10

_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
NO_SAMPLES = "no samples"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def three_digits(value: float) -> str:
    """Three significant digits, without exponent: 1.20, 12.1, 912, 4031, 0.0833."""
    if value == 0:
        return "0"
    size = abs(value)
    exponent = floor(log10(size))
    # Rounding may carry into the next power of ten: 9.996 is 10.0, not 10.00.
    if round(size, 2 - exponent) >= 10.0 ** (exponent + 1):
        exponent += 1
    decimals = max(0, 2 - exponent)
    return f"{value:.{decimals}f}"


def brief(value: float) -> str:
    """A number in a sentence: at most one decimal from 1 up to 10, and no trailing zero."""
    if value == 0:
        return "0"
    if abs(value) < 0.1:
        return _trimmed(f"{value:.2g}" if abs(value) >= 0.0001 else f"{value:.6f}")
    if abs(value) < 10:
        return _trimmed(f"{value:.1f}")
    return _trimmed(three_digits(value))


def duration(seconds: float) -> str:
    """A cell: `1.20 s`, `12.1 ms`, `0.812 ms`, `45.0 us`, `0`."""
    if seconds == 0:
        return "0"
    value, unit = _scaled(seconds)
    return f"{three_digits(value)} {unit}"


def brief_duration(seconds: float) -> str:
    """In a sentence: `4 ms`, `0.8 ms`, `1.9 ms`, `610 ms`, `0 ms`."""
    if seconds == 0:
        return "0 ms"
    value, unit = _scaled(seconds)
    return f"{brief(value)} {unit}"


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


def percent(fraction: float) -> str:
    """`0.02 %`, `0.77 %`, `12.5 %`, `99.4 %`, `0 %`, `100 %`."""
    return f"{percent_number(fraction)} %"


def percent_cell(fraction: float) -> str:
    """A cell of the failed column: a plain `0` stands out less than `0 %`."""
    return percent(fraction) if fraction else "0"


def percent_number(fraction: float) -> str:
    value = fraction * 100.0
    if value in (0.0, 100.0):
        return f"{value:.0f}"
    if 0 < value < 0.01:
        return f"{value:.1g}" if value >= 0.0001 else "<0.0001"
    if value < 9.995:
        return _trimmed(f"{value:.2f}")
    if 99.95 <= value < 100.0:
        # Rounded down: 99.999 % must not read as 100 %.
        return f"{floor(value * 100.0) / 100.0:.2f}" if value < 99.99 else "99.99"
    return _trimmed(f"{value:.1f}")


def whole_percent(fraction: float) -> str:
    """The load of a machine, where decimals mean nothing."""
    return f"{fraction * 100.0:.0f} %"


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
        return f"{_trimmed(f'{seconds:.1f}')}s"
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


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _scaled(seconds: float) -> tuple[float, str]:
    size = abs(seconds)
    # 999.5 ms would read as 1000 ms; microseconds only where milliseconds need four
    # leading zeros, so that a column of milliseconds stays one.
    if size >= 0.9995:
        return seconds, "s"
    if size >= 0.0001:
        return seconds * 1e3, "ms"
    return seconds * 1e6, "us"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
