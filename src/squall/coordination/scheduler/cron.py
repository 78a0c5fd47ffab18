"""The times of a cron expression: five fields, names, ranges, lists, steps, a time zone.

    minute 0-59   hour 0-23   day of month 1-31   month 1-12 or jan-dec
    day of week 0-7 or sun-sat (0 and 7 are Sunday)

A field is `*`, `a`, `a-b` or a list with commas; `/n` may follow `*`, a range or a number (from it
to the end). If both days are restricted, either one is enough, as in every cron. `@hourly`,
`@daily`, `@weekly`, `@monthly` and `@yearly` are known. A wrong expression is refused at once.

When the clocks go forward, a time that does not exist is left out. When they go back, a time that
exists twice counts once, the first time. Pure: no clock is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from squall.coordination.errors import ConfigurationError

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 7, DAYS),
)
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# There is a 29th of February at least every eight years.
SEARCH_DAYS = 366 * 8 + 2


class Cron:
    """One expression in one time zone."""

    def __init__(self, text: str, zone: str = "UTC") -> None:
        self.text = text
        self.zone = zone
        self._zone = _zone_of(zone)
        fields = ALIASES.get(text.strip().lower(), text).lower().split()
        if len(fields) != len(FIELDS):
            raise ConfigurationError(
                f"cron is {text!r}: it needs five fields: minute hour day month weekday;"
                " use for example '*/5 * * * *'"
            )
        sets = [_parsed(text, *spec, field) for spec, field in zip(FIELDS, fields, strict=True)]
        self._minutes, self._hours = sorted(sets[0]), sorted(sets[1])
        self._days, self._months = sets[2], sets[3]
        self._weekdays = {day % 7 for day in sets[4]}
        self._either_day = not fields[2].startswith("*") and not fields[4].startswith("*")
        if next(self._dates(date(2000, 1, 1)), None) is None:
            raise ConfigurationError(f"cron is {text!r}: no such day exists")

    def __repr__(self) -> str:
        return f"Cron({self.text!r}, {self.zone!r})"

    def after(self, time_s: float) -> float:
        """The first due time after this one, in seconds since 1970, UTC."""
        begin = datetime.fromtimestamp(time_s, self._zone)
        for day in self._dates(begin.date()):
            for hour in self._hours:
                if day == begin.date() and hour < begin.hour:
                    continue
                for minute in self._minutes:
                    local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self._zone)
                    found = self._existing(local)
                    if found is not None and found > time_s:
                        return found
        raise ConfigurationError(f"cron is {self.text!r}: it has no time after {begin}")

    def _existing(self, local: datetime) -> float | None:
        """The time in UTC; None if the clocks jump over it."""
        time_s = local.timestamp()
        back = datetime.fromtimestamp(time_s, self._zone)
        same = (back.hour, back.minute, back.day) == (local.hour, local.minute, local.day)
        return time_s if same else None

    def _dates(self, begin: date) -> Iterator[date]:
        for number in range(SEARCH_DAYS):
            day = begin + timedelta(days=number)
            if day.month in self._months and self._fits(day):
                yield day

    def _fits(self, day: date) -> bool:
        by_month = day.day in self._days
        by_week = (day.weekday() + 1) % 7 in self._weekdays
        return by_month or by_week if self._either_day else by_month and by_week


def _zone_of(name: str) -> tzinfo:
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(
            f"zone is {name!r}: no such time zone is known here; use a name such as 'Europe/Berlin'"
        ) from None


def _parsed(
    text: str, name: str, low: int, high: int, words: tuple[str, ...], field: str
) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step_text = part.partition("/")
        if slash and (not step_text.isdigit() or int(step_text) == 0):
            _refuse(text, name, part, "a step is a number above 0")
        step = int(step_text) if slash else 1
        first_text, dash, last_text = span.partition("-")
        if span == "*":
            first, last = low, high - (1 if name == "day of week" else 0)
        else:
            first = _number(text, name, low, words, first_text, part)
            last = first
            if dash:
                last = _number(text, name, low, words, last_text, part)
            elif slash:
                last = high
        if not low <= first <= last <= high:
            _refuse(text, name, part, f"it must be within {low} .. {high}, the lower one first")
        found.update(range(first, last + 1, step))
    return found


def _number(text: str, name: str, low: int, words: tuple[str, ...], word: str, part: str) -> int:
    if word.isascii() and word.isdigit():
        return int(word)
    if word in words:
        return words.index(word) + (low if name == "month" else 0)
    _refuse(text, name, part, "it is not a number" + (" or a name" if words else ""))
    raise AssertionError("refused")


def _refuse(text: str, name: str, part: str, rule: str) -> None:
    raise ConfigurationError(f"cron is {text!r}: {part!r} as {name}: {rule}")
