"""Parses the amounts that authors write: times, rates, counts, stages, statuses.

Every load profile, timeout and pause is parsed here, so a text means the same in a file, on the
command line and in Python. A text that cannot be parsed raises a `ConfigError` that quotes it and
shows a correct form. This module does not know what an amount is used for; `what` is only the
word that the error starts with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any, cast

from squall.api.errors import ConfigError

_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COUNT_UNIT = {"": 1, "k": 1_000, "m": 1_000_000}

_URL_SCHEMES = ("http", "https", "ws", "wss", "grpc", "grpcs")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION_PART = re.compile(rf"({_NUMBER})(us|ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_NUMBER}(?:us|ms|s|m|h|d))+|{_NUMBER}")
_RATE = re.compile(rf"({_NUMBER})(k?)(?:/([smh]))?")
_COUNT = re.compile(rf"([0-9]+(?:_[0-9]+)*|{_NUMBER})([km]?)", re.IGNORECASE)
_STATUS = re.compile(r"([1-5])xx|([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?", re.IGNORECASE)

_DURATION_HINT = 'write a number with a unit, such as "30s", "1m30s" or "250ms"'
_RATE_HINT = 'write starts per time, such as "500/s", "30/m" or "10/h"'
_COUNT_HINT = 'write a whole number, such as 1000, "10k" or "1m"'
_ITERATIONS_HINT = 'write a number for all users, such as "10k", or for each, such as "10/vu"'
_SPAN_HINT = 'write one time or two, such as "1s" or "1s..3s"'
_STAGE_HINT = 'write "<duration>:<target>", such as "30s:100" (users) or "1m:50/s" (starts)'
_EXPECT_HINT = (
    'write statuses from 100 to 599, such as 200, [200, 302], "2xx", "200-299" or "2xx,302"'
)

_LONGEST_SHOWN = 100
"""Characters of a wrong value that are shown."""

LONGEST_S = 366 * 86400.0
HIGHEST_PER_S = 1e6
"""The highest rate that can be planned; more than any machine reaches today."""
MOST = 10**12


def parse_duration(
    value: str | int | float, what: str = "duration", *, zero_ok: bool = False
) -> float:
    """Returns seconds. A number without a unit is in seconds; parts add up (`1m30s`)."""
    if isinstance(value, str):
        text = value.strip()
        if _DURATION.fullmatch(text) is None:
            raise wrong(what, value, "is not a duration", _DURATION_HINT)
        parts = _DURATION_PART.findall(text)
        # fsum over the parts, so that "1m0.1s" is the same float as "60.1s".
        seconds = math.fsum(_scaled(n, unit) for n, unit in parts) if parts else float(text)
    else:
        seconds = _finite(value, what, "is not a duration", _DURATION_HINT)
    if seconds < 0 or (seconds == 0 and not zero_ok) or math.isinf(seconds):
        raise wrong(what, value, "must be more than 0", _DURATION_HINT)
    if seconds > LONGEST_S:
        raise wrong(what, value, "is longer than a year", _DURATION_HINT)
    return seconds


def format_duration(seconds: float, *, compact: bool = False) -> str:
    """For people: `250ms`, `10s`, `5m00s`, `1h02m00s`; compact drops zero ends (`5m`, `1h02m`)."""
    if seconds < 0:
        return "-" + format_duration(-seconds, compact=compact)
    if seconds == 0:
        return "0s"
    # The limits are where three digits after the point would round up to the next unit.
    for limit_s, scale, unit in (
        (9.999995e-4, 1e6, "us"),
        (0.9999995, 1e3, "ms"),
        (59.9995, 1, "s"),
    ):
        if seconds < limit_s:
            return f"{_plain(seconds * scale, 3)}{unit}"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h{minutes:02}m" if hours else f"{minutes}m"
    if not compact or rest_s:
        return f"{text}{rest_s:02}s"
    return text if minutes else f"{hours}h"


def parse_rate(value: str | int | float, what: str = "rate", *, zero_ok: bool = False) -> float:
    """Starts per second. A number without a unit is per second."""
    if isinstance(value, str):
        match = _RATE.fullmatch(value.strip())
        if match is None:
            raise wrong(what, value, "is not a rate", _RATE_HINT)
        number, thousand, unit = match.groups()
        per_s = float(number) * (1000 if thousand else 1) / _UNIT_S[unit or "s"]
    else:
        per_s = _finite(value, what, "is not a rate", _RATE_HINT)
    if per_s < 0 or (per_s == 0 and not zero_ok) or math.isinf(per_s):
        raise wrong(what, value, "must be more than 0", _RATE_HINT)
    if per_s > HIGHEST_PER_S:
        raise wrong(what, value, "is more than a million a second", _RATE_HINT)
    return per_s


def format_rate(per_s: float) -> str:
    """For people: `500/s`, `0.5/s`."""
    return f"{_plain(per_s, 3) if per_s >= 1 else f'{per_s:.3g}'}/s"


def parse_count(value: str | int | float, what: str = "count", *, least: int = 1) -> int:
    """A whole number; `k` is a thousand, `m` a million."""
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip())
        if match is None:
            raise wrong(what, value, "is not a count", _COUNT_HINT)
        number, unit = match.groups()
        exact = float(number) * _COUNT_UNIT[unit.lower()]
    else:
        exact = _finite(value, what, "is not a count", _COUNT_HINT)
    if not exact.is_integer():
        raise wrong(what, value, "is not a whole number", _COUNT_HINT)
    if exact < least:
        raise wrong(what, value, f"must be at least {least}", _COUNT_HINT)
    if exact > MOST:
        raise wrong(what, value, "is too large", _COUNT_HINT)
    return int(exact)


def parse_iterations(value: str | int | float, what: str = "iterations") -> tuple[int, bool]:
    """(number, whether each user makes that many): `500` in all, `"10/vu"` by each user."""
    if isinstance(value, str):
        count, slash, unit = value.partition("/")
        if slash and unit.strip() in ("vu", "user"):
            return parse_count(count, what), True
        if slash:
            raise wrong(what, value, "is not a number of iterations", _ITERATIONS_HINT)
    return parse_count(value, what), False


def parse_span(value: str | int | float, what: str = "pause") -> tuple[float, float]:
    """Returns both ends of `1s..3s` in seconds; a single time is both ends. The lower may be 0."""
    if isinstance(value, str) and ".." in value:
        low, _, high = value.partition("..")
        if not low.strip() or not high.strip():
            raise wrong(what, value, "is not a span", _SPAN_HINT)
        low_s = parse_duration(low, what, zero_ok=True)
        high_s = parse_duration(high, what)
        if low_s > high_s:
            raise wrong(what, value, "ends before it begins", _SPAN_HINT)
        return low_s, high_s
    only_s = parse_duration(value, what)
    return only_s, only_s


def parse_stage(value: str, what: str = "stage") -> tuple[float, float, bool]:
    """(duration in seconds, target, whether the target is a rate).

    A duration of 0 jumps to the target: `"0s:50/s"` lets a ramp start at 50/s.
    """
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong(what, value, "is not a stage", _STAGE_HINT)
    duration, colon, target = value.partition(":")
    if not colon or not duration.strip() or not target.strip():
        raise wrong(what, value, "is not a stage", _STAGE_HINT)
    duration_s = parse_duration(duration, f"{what} {quoted(value)}: duration", zero_ok=True)
    target_what = f"{what} {quoted(value)}: target"
    if "/" in target:
        return duration_s, parse_rate(target, target_what, zero_ok=True), True
    return duration_s, float(parse_count(target, target_what, least=0)), False


def parse_expect(
    value: int | str | range | Iterable[int | str], what: str = "expect"
) -> list[tuple[int, int]]:
    """Returns inclusive status ranges, sorted; adjacent ones are joined."""
    ranges = sorted(_status_ranges(value, what))
    if not ranges:
        raise wrong(what, value, "names no status", _EXPECT_HINT)
    joined = [ranges[0]]
    for low, high in ranges[1:]:
        last_low, last_high = joined[-1]
        if low <= last_high + 1:
            joined[-1] = (last_low, max(last_high, high))
        else:
            joined.append((low, high))
    return joined


def _status_ranges(value: object, what: str) -> list[tuple[int, int]]:
    if isinstance(value, str):
        return [_status_text(part, value, what) for part in value.split(",")]
    if isinstance(value, bool):
        raise wrong(what, value, "is not a status", _EXPECT_HINT)
    if isinstance(value, int):
        if not 100 <= value <= 599:
            raise wrong(what, value, "is not a status", _EXPECT_HINT)
        return [(value, value)]
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        # Item by item: a wrong one ends a range of any length.
        items = cast("Iterable[object]", value)
        return [found for item in items for found in _status_ranges(item, what)]
    raise wrong(what, value, "is not a status", _EXPECT_HINT)


def _status_text(part: str, whole: str, what: str) -> tuple[int, int]:
    match = _STATUS.fullmatch(part.strip())
    if match is None:
        raise wrong(what, whole, "is not a status", _EXPECT_HINT)
    hundred, low, high = match.groups()
    if hundred:
        return int(hundred) * 100, int(hundred) * 100 + 99
    if high and int(high) < int(low):
        raise wrong(what, whole, "ends before it begins", _EXPECT_HINT)
    return int(low), int(high or low)


def _scaled(number: str, unit: str) -> float:
    # Division keeps "100ms" the float 0.1; multiplying by 1e-3 would not.
    scale = _UNIT_S[unit]
    return float(number) * scale if scale >= 1 else float(number) / round(1 / scale)


def _finite(value: object, what: str, problem: str, hint: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(what, value, problem, hint)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(what, value, problem, hint)
    return number


def _plain(number: float, digits: int) -> str:
    """The number without an exponent and without trailing zeros."""
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_host(value: Any, what: str = "host") -> str:
    """A URL. People write `127.0.0.1:8080`; as in curl, that means plain HTTP."""
    from urllib.parse import urlsplit

    hint = 'write a URL, such as "https://staging.example.com"'
    text = text_of(what, value, hint)
    url = text if not text or "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        # Reading the port raises if it is no number below 65,536.
        is_url = bool(parts.hostname) and parts.scheme in _URL_SCHEMES
        is_url = is_url and parts.port != 0 and not re.search(r"\s", parts.netloc)
    except ValueError:
        is_url = False
    if url and not is_url:
        raise wrong(what, text, "is not a URL", hint)
    return url


def one_of(what: str, value: Any, allowed: Sequence[str]) -> Any:
    """The value, if it is one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        *most, last = (f'"{word}"' for word in allowed)
        raise wrong(what, value, "is not known", f"write {', '.join(most)} or {last}")
    return value


def text_of(what: str, value: Any, hint: str) -> str:
    if not isinstance(value, str):
        raise wrong(what, value, "is not text", hint)
    return value


def quoted(value: object) -> str:
    """A value as a refusal shows it: in one line and short, a class or function by its name."""
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, type | FunctionType):
        text = value.__qualname__.rpartition("<locals>.")[2]
    else:
        try:
            text = repr(value)
        except Exception:
            text = f"<{type(value).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def wrong(what: str, value: object, problem: str, hint: str) -> ConfigError:
    """The refusal of a value: what it was for, the value, what is wrong, what is wanted."""
    return ConfigError(f"{what} {quoted(value)} {problem}; {hint}")
