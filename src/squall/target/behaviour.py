"""Behaviours: what a query string asks of the target (status, delay, size, faults).

Decides only the content of one answer and its delay; never touches sockets, clocks or
counters. Unknown parameters are ignored, because any URL must work against the target. A known
parameter with a bad value is a `problem`: the server answers 400 with an explanation, so that a
typo in a test cannot pass as a fast answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

MAX_DELAY_S = 3600.0
MAX_SIZE_BYTES = 1 << 26
MAX_REDIRECTS = 100
CACHE_ENTRIES = 4096

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m)?")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BadBehaviour(ValueError):
    """A parameter of the query string is wrong; the text says which, and why."""


class Delay(msgspec.Struct, frozen=True):
    """A delay or a distribution of delays; `draw` returns the next one in seconds."""

    kind: str
    first: float
    second: float = 0.0

    def draw(self, random: Random) -> float:
        if self.kind == "fixed":
            return self.first
        if self.kind == "uniform":
            return random.uniform(self.first, self.second)
        if self.kind == "exp":
            return min(random.expovariate(1.0 / self.first), MAX_DELAY_S)
        return min(self.first * math.exp(random.gauss(0.0, self.second)), MAX_DELAY_S)


class Behaviour(msgspec.Struct, frozen=True):
    """A parsed query string. The defaults give a plain, fast answer."""

    statuses: tuple[tuple[int, float], ...] = ()
    delay: Delay | None = None
    size: int | None = None
    chunks: int = 0
    gzip: bool = False
    errors: float = 0.0
    resets: float = 0.0
    close: bool = False
    cut: bool = False
    redirect: str | None = None
    redirects: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    slow_headers_s: float = 0.0
    hang: bool = False
    count_fields: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    problem: str | None = None

    @property
    def steady(self) -> bool:
        """True if every answer has the same bytes."""
        return len(self.statuses) <= 1 and not self.errors and not self.resets

    @property
    def prompt(self) -> bool:
        """True if the answer is sent at once and whole, and the connection stays open."""
        return (
            self.delay is None
            and not self.slow_headers_s
            and not (self.hang or self.cut or self.close)
        )

    def draw_status(self, random: Random) -> int | None:
        """The status to force, or None for the path's own."""
        if self.errors and random.random() < self.errors:
            return 500
        if not self.statuses:
            return None
        if len(self.statuses) == 1:
            return self.statuses[0][0]
        point = random.random() * sum(weight for _, weight in self.statuses)
        for status, weight in self.statuses:
            point -= weight
            if point < 0:
                return status
        return self.statuses[-1][0]

    def next_hop(self, path: str) -> str | None:
        """The redirect target; a chain ends at the same path with 0 hops left."""
        if self.redirects:
            rest = [(name, text) for name, text in self.fields if name != "redirects"]
            return f"{path}?{urlencode([*rest, ('redirects', str(self.redirects - 1))])}"
        return self.redirect

    def field(self, name: str) -> str | None:
        return next((text for key, text in self.fields if key == name), None)


PLAIN = Behaviour()


class Behaviours:
    """Behaviours by raw query string, each parsed once.

    The cache is emptied when full: a run with a new query on every request must not
    make the target grow.
    """

    def __init__(self) -> None:
        self._known: dict[str, Behaviour] = {"": PLAIN}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, query: str) -> Behaviour:
        behaviour = self._known.get(query)
        if behaviour is None:
            if len(self._known) >= CACHE_ENTRIES:
                self._known = {"": PLAIN}
            behaviour = self._known[query] = parse_query(query)
        return behaviour


def parse_query(query: str) -> Behaviour:
    """Parses a raw query string (without the question mark)."""
    fields = tuple(parse_qsl(query, keep_blank_values=True))
    found: dict[str, Any] = {"fields": fields}
    for name, text in fields:
        rule = _RULES.get(name)
        if rule is None:
            continue
        attribute, parse = rule
        try:
            value = parse(text)
        except BadBehaviour as error:
            return Behaviour(fields=fields, problem=f"{name}={text}: {error}")
        if attribute in ("headers", "count_fields"):
            value = (*found.get(attribute, ()), value)
        found[attribute] = value
    return Behaviour(**found)


def parse_duration(text: str) -> float:
    """Seconds in `20ms`, `1.5s`, `300us`, `1m`; a bare number means milliseconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadBehaviour(f"{text!r} is not a duration; write 20ms or 1.5s")
    seconds = float(match[1]) * _UNIT_S[match[2] or "ms"]
    if seconds > MAX_DELAY_S:
        raise BadBehaviour("at most one hour")
    return seconds


def parse_delay(text: str) -> Delay:
    """`20ms`, `5ms..50ms`, `uniform:5ms..50ms`, `exp:20ms` or `lognormal:20ms,0.5`."""
    kind, colon, rest = text.partition(":")
    if not colon:
        kind, rest = ("uniform" if ".." in text else "fixed"), text
    if kind == "fixed":
        return Delay(kind, parse_duration(rest))
    if kind == "uniform":
        low_text, _, high_text = rest.partition("..")
        low, high = parse_duration(low_text), parse_duration(high_text)
        if low > high:
            raise BadBehaviour("the lower end comes first")
        return Delay(kind, low, high)
    if kind == "exp":
        mean = parse_duration(rest)
        if not mean:
            raise BadBehaviour("the mean must be more than 0")
        return Delay(kind, mean)
    if kind == "lognormal":
        median_text, _, sigma_text = rest.partition(",")
        return Delay(kind, parse_duration(median_text), _number(sigma_text, 0.0, 10.0))
    raise BadBehaviour("a delay is 20ms, 5ms..50ms, uniform:, exp: or lognormal:")


def parse_statuses(text: str) -> tuple[tuple[int, float], ...]:
    """`503`, or weights as in `200:9,503:1`."""
    found: list[tuple[int, float]] = []
    for part in text.split(","):
        code, colon, weight = part.partition(":")
        status = _whole(code, 200, 599)
        found.append((status, _number(weight, 0.0, 1e9) if colon else 1.0))
    if not any(weight for _, weight in found):
        raise BadBehaviour("at least one weight must be more than 0")
    return tuple(found)


def _number(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadBehaviour(f"{text!r} is not a number") from None
    if not low <= value <= high:
        raise BadBehaviour(f"must lie between {low:g} and {high:g}")
    return value


def _whole(text: str, low: int, high: int) -> int:
    value = _number(text, low, high)
    if value != int(value):
        raise BadBehaviour(f"{text!r} is not a whole number")
    return int(value)


def _share(text: str) -> float:
    return _number(text, 0.0, 1.0)


def _flag(text: str) -> bool:
    if text not in ("0", "1", "", "true", "false"):
        raise BadBehaviour("write 1 or 0")
    return text not in ("0", "false")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    return _checked_name(name, colon), _checked_text(value.strip())


def _cookie(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    # Attributes may follow the value (`sid:7; Max-Age=0`); without any, it is valid for
    # every path.
    attributes = "" if ";" in value else "; Path=/"
    return "Set-Cookie", f"{_checked_name(name, colon)}={_checked_text(value)}{attributes}"


def _checked_name(name: str, colon: str) -> str:
    if not colon or _TOKEN.fullmatch(name) is None:
        raise BadBehaviour("write name:value")
    return name


def _checked_text(text: str) -> str:
    if not text.isprintable() or not text.isascii():
        raise BadBehaviour("a header takes printable ASCII only")
    return text


_RULES: dict[str, tuple[str, Callable[[str], object]]] = {
    "status": ("statuses", parse_statuses),
    "delay": ("delay", parse_delay),
    "size": ("size", lambda text: _whole(text, 0, MAX_SIZE_BYTES)),
    "chunked": ("chunks", lambda text: _whole(text, 0, 10_000)),
    "gzip": ("gzip", _flag),
    "errors": ("errors", _share),
    "resets": ("resets", _share),
    "close": ("close", _flag),
    "cut": ("cut", _flag),
    "redirect": ("redirect", _checked_text),
    "redirects": ("redirects", lambda text: _whole(text, 0, MAX_REDIRECTS)),
    "cookie": ("headers", _cookie),
    "header": ("headers", _header),
    "slow_headers": ("slow_headers_s", parse_duration),
    "hang": ("hang", _flag),
    "count_field": ("count_fields", str),
}
