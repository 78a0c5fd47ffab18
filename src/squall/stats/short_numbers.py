"""Formats single numbers in sentences and cells: three significant digits, never an exponent.

`reporting.number_format` has these and what only reports need.
"""

from __future__ import annotations

from math import floor, log10


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
        return trimmed(f"{value:.2g}" if abs(value) >= 0.0001 else f"{value:.6f}")
    if abs(value) < 10:
        return trimmed(f"{value:.1f}")
    return trimmed(three_digits(value))


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


def percent(fraction: float) -> str:
    """`0.02 %`, `0.77 %`, `12.5 %`, `99.4 %`, `0 %`, `100 %`."""
    return f"{percent_number(fraction)} %"


def percent_number(fraction: float) -> str:
    value = fraction * 100.0
    if value in (0.0, 100.0):
        return f"{value:.0f}"
    if 0 < value < 0.01:
        return f"{value:.1g}" if value >= 0.0001 else "<0.0001"
    if value < 9.995:
        return trimmed(f"{value:.2f}")
    if 99.95 <= value < 100.0:
        # Rounded down: 99.999 % must not read as 100 %.
        return f"{floor(value * 100.0) / 100.0:.2f}" if value < 99.99 else "99.99"
    return trimmed(f"{value:.1f}")


def whole_percent(fraction: float) -> str:
    """The load of a machine, where decimals mean nothing."""
    return f"{fraction * 100.0:.0f} %"


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


def trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
