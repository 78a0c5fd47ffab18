"""Stores and sends a user's cookies according to RFC 6265.

A jar changes only by expiry: storing returns another jar, so returning to the state after the
start actions is an assignment, and the Cookie header of a jar is built once per origin and path.
There is no public-suffix list: a load test talks to its author's own servers.
"""

from __future__ import annotations

import calendar
import ipaddress
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from squall.clients.http.origin import Origin

# A server that always sets new names must not fill memory, with 10,000 users in a process.
MOST_COOKIES = 300
_MOST_HEADERS = 64

# Written out, because the names in the calendar module depend on the locale.
_MONTHS = {
    text: number
    for number, text in enumerate(re.findall("...", "janfebmaraprmayjunjulaugsepoctnovdec"), 1)
}
_DATE_PART = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[^0-9].*)?")
_DAY = re.compile(r"([0-9]{1,2})(?:[^0-9].*)?")
_YEAR = re.compile(r"([0-9]{2,4})(?:[^0-9].*)?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Cookie(NamedTuple):
    name: str
    value: str
    domain: str
    host_only: bool
    path: str
    secure: bool
    expires: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.domain, self.path, self.name


class Jar:
    """The cookies of one user at one moment. `expires` is seconds since the epoch."""

    __slots__ = ("_cookies", "_headers", "_soonest")

    def __init__(self, cookies: dict[tuple[str, str, str], Cookie]) -> None:
        self._cookies = cookies
        self._soonest = _soonest(cookies)
        self._headers: dict[tuple[Origin, str], bytes] = {}

    def __len__(self) -> int:
        return len(self._cookies)

    def header(self, origin: Origin, path: str, now: float) -> bytes:
        """The value of the Cookie header for a request, empty if nothing matches."""
        if now >= self._soonest:
            # Built headers may contain the expired cookie, so they are dropped too.
            self._cookies = {key: c for key, c in self._cookies.items() if c.expires > now}
            self._soonest = _soonest(self._cookies)
            self._headers.clear()
        key = (origin, path)
        header = self._headers.get(key)
        if header is None:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            header = self._headers[key] = self._made(origin, path)
        return header

    def _made(self, origin: Origin, path: str) -> bytes:
        matching = [
            cookie
            for cookie in self._cookies.values()
            if (origin.tls or not cookie.secure)
            and path_matches(path, cookie.path)
            and (
                origin.host == cookie.domain
                if cookie.host_only
                else domain_matches(origin.host, cookie.domain)
            )
        ]
        # Longer paths first; the sort keeps the order of creation among equals.
        matching.sort(key=lambda cookie: -len(cookie.path))
        return "; ".join([f"{c.name}={c.value}" for c in matching]).encode("latin-1", "replace")


def stored(
    jar: Jar | None, lines: Iterable[str], origin: Origin, path: str, now: float
) -> Jar | None:
    """The jar after these Set-Cookie lines; the same object if nothing changed."""
    before = jar._cookies if jar is not None else {}  # pyright: ignore[reportPrivateUsage]
    after: dict[tuple[str, str, str], Cookie] | None = None
    for line in lines:
        cookie = read_cookie(line, origin.host, path, now)
        if cookie is None:
            continue
        current = before if after is None else after
        if current.get(cookie.key) == cookie:
            continue
        if cookie.expires <= now and cookie.key not in current:
            continue
        if after is None:
            after = dict(before)
        if cookie.expires <= now:
            del after[cookie.key]
        else:
            after[cookie.key] = cookie
    if after is None:
        return jar
    while len(after) > MOST_COOKIES:
        del after[next(iter(after))]
    return Jar(after) if after else None


def read_cookie(line: str, host: str, path: str, now: float) -> Cookie | None:
    """One Set-Cookie value (RFC 6265, 5.2 and 5.3); None if it must be ignored."""
    pair, _, rest = line.partition(";")
    name, equals, value = pair.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not name or _CONTROL.search(pair):
        return None
    attributes: dict[str, str] = {}
    for part in rest.split(";"):
        key, _, text = part.partition("=")
        attributes[key.strip().lower()] = text.strip()
    domain = attributes.get("domain", "").removeprefix(".").lower()
    if domain and not domain_matches(host, domain):
        return None
    where = attributes.get("path", "")
    return Cookie(
        name=name,
        value=value,
        domain=domain or host,
        host_only=not domain,
        path=where if where.startswith("/") else default_path(path),
        secure="secure" in attributes,
        expires=_expiry(attributes, now),
    )


def domain_matches(host: str, domain: str) -> bool:
    if host == domain:
        return True
    return host.endswith("." + domain) and not _is_ip(host)


def path_matches(path: str, cookie_path: str) -> bool:
    if path == cookie_path:
        return True
    return path.startswith(cookie_path) and (
        cookie_path.endswith("/") or path[len(cookie_path)] == "/"
    )


def default_path(path: str) -> str:
    return path[: path.rfind("/")] or "/" if path.startswith("/") else "/"


def read_date(text: str) -> float | None:
    """The forgiving cookie date of RFC 6265, 5.1.1, as seconds since the epoch."""
    clock: tuple[int, int, int] | None = None
    day = month = year = None
    for part in _DATE_PART.findall(text):
        if clock is None and (match := _TIME.fullmatch(part)):
            clock = (int(match[1]), int(match[2]), int(match[3]))
        elif day is None and (match := _DAY.fullmatch(part)):
            day = int(match[1])
        elif month is None and part[:3].lower() in _MONTHS:
            month = _MONTHS[part[:3].lower()]
        elif year is None and (match := _YEAR.fullmatch(part)):
            year = int(match[1])
    if clock is None or day is None or month is None or year is None:
        return None
    if 70 <= year <= 99:
        year += 1900
    elif year <= 69:
        year += 2000
    if not 1 <= day <= 31 or year < 1601 or clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    if day > calendar.monthrange(year, month)[1]:
        return None
    return float(calendar.timegm((year, month, day, *clock)))


def _expiry(attributes: dict[str, str], now: float) -> float:
    seconds = attributes.get("max-age", "")
    if seconds and re.fullmatch(r"-?[0-9]+", seconds):
        return now + int(seconds) if int(seconds) > 0 else -math.inf
    if "expires" in attributes:
        date = read_date(attributes["expires"])
        if date is not None:
            return date
    return math.inf


def _soonest(cookies: dict[tuple[str, str, str], Cookie]) -> float:
    return min((cookie.expires for cookie in cookies.values()), default=math.inf)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
