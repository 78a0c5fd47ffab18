"""Parses thresholds: from an author's text to its parts.

    threshold = [scope ":"] subject op value [" over " duration] [", abort" [" after " duration]]
    scope     = the name of a datacenter of the run
    subject   = name {"." name} ["." "p(" number ")"]
    k6 form   = metric ["{step:" step "}"] ":" stat op value [over] [abort]
    op        = < <= > >= == !=
    value     = number with ms (default for times), s, us, %, /s or nothing

This module knows only the syntax; `binding.py` resolves names and units. For any text, the
only exception is a `ConfigError` that quotes the text and names the column.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Literal, NoReturn, TypeAlias

import msgspec

from squall.api.errors import ConfigError
from squall.api.quantities import parse_duration

Op: TypeAlias = Literal["<", "<=", ">", ">=", "==", "!="]
Unit: TypeAlias = Literal["", "ms", "s", "us", "%", "/s"]

OPS: tuple[Op, ...] = ("<=", ">=", "==", "!=", "<", ">")
UNITS: tuple[Unit, ...] = ("ms", "us", "s", "%", "/s")
LEAST_PERCENTILE, MOST_PERCENTILE = 50.0, 99.99
MAX_OVER_S = 3_600

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d]\w*")
_PERCENTILE = re.compile(r"p\(\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*\)")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_UNIT = re.compile(r"[a-zA-Z%/µμ]+")
_DURATION = re.compile(r"[0-9][0-9a-zA-Z.]*")
_K6 = re.compile(r"\s*([^\W\d]\w*)\s*(\{[^{}]*\})?\s*:")
_SCOPE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*:")
# After the colon of the k6 form comes a statistic, which has no parts.
_DOTTED = re.compile(r"\s*[^\W\d]\w*\s*[.:]")
_TAG = re.compile(r"\{\s*step\s*:\s*([^{}]*?)\s*\}")
_WRONG_OPS = {"=<": "<=", "=>": ">=", "=": "==", "<>": "!=", "!": "!="}
_QUOTED_LENGTH = 160


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed threshold. `str()` returns the author's text."""

    text: str
    scope: str = ""
    """The datacenter that it is about; empty: all of the run."""
    default_workflow: str | None = None
    """The workflow whose class holds the text; None for one from the command line."""
    names: tuple[str, ...]
    """`Shop.pay.service` without a percentile at the end; in the k6 form metric and stat."""
    columns: tuple[int, ...]
    """The column of each name, from 1; one more entry for the percentile if there is one."""
    percentile: float | None = None
    k6: bool = False
    step: str | None = None
    """`{step:pay}` of the k6 form."""
    op: Op
    value: float
    unit: Unit = ""
    value_column: int = 1
    over_s: int | None = None
    abort: bool = False
    abort_after_s: float = 0.0

    def __str__(self) -> str:
        return self.text

    def holds(self, measured: float, limit: float) -> bool:
        match self.op:
            case "<":
                return measured < limit
            case "<=":
                return measured <= limit
            case ">":
                return measured > limit
            case ">=":
                return measured >= limit
            case "==":
                return measured == limit
            case "!=":
                return measured != limit


def parse_threshold(
    text: str, *, default_workflow: str | None = None, scopes: Collection[str] = ()
) -> Threshold:
    """Parses a threshold of a run in the datacenters `scopes`. Raises a `ConfigError` that says
    where and why it fails."""
    reader = _Reader(text)
    scope = _scope(reader, scopes)
    k6 = _K6.match(text, reader.at)
    step: str | None = None
    if k6 is not None:
        step = _k6_head(reader, k6)
    names, columns, percentile = _subject(reader, k6)
    op = _op(reader)
    value_column = reader.column
    value, unit = _value(reader)
    over_s = _over(reader)
    abort, abort_after_s = _abort(reader)
    reader.expect_end()
    return Threshold(
        text=text,
        scope=scope,
        default_workflow=default_workflow,
        names=names,
        columns=columns,
        percentile=percentile,
        k6=k6 is not None,
        step=step,
        op=op,
        value=value,
        unit=unit,
        value_column=value_column,
        over_s=over_s,
        abort=abort,
        abort_after_s=abort_after_s,
    )


def threshold_error(text: str, column: int, problem: str, hint: str = "") -> ConfigError:
    """An error in one line: the text, the column, what is wrong, and what would be right."""
    tail = f"; {_one_line(hint)}" if hint else ""
    where = f'threshold "{_one_line(text)}", column {column}'
    return ConfigError(f"{where}: {_one_line(problem)}{tail}")


def did_you_mean(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else ""


def _one_line(text: str) -> str:
    """Makes a text fit one line of a message: it may have line breaks or be very long."""
    shown = " ".join(text.split())
    return shown if len(shown) <= _QUOTED_LENGTH else shown[:_QUOTED_LENGTH] + "..."


class _Reader:
    """Reads tokens from a text; spaces before a token are ignored."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def column(self) -> int:
        """The column of the next token, from 1."""
        self._skip()
        return self.at + 1

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip()
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def take_text(self, token: str) -> bool:
        self._skip()
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def take_word(self, word: str) -> bool:
        """A whole word: `over`, but not the start of `overall`."""
        self._skip()
        match = _NAME.match(self.text, self.at)
        if match is None or match.group() != word:
            return False
        self.at = match.end()
        return True

    def rest(self) -> str:
        self._skip()
        return self.text[self.at :]

    def fail(self, problem: str, hint: str = "", *, column: int | None = None) -> NoReturn:
        at = self.column if column is None else column
        raise threshold_error(self.text, at, problem, hint)

    def found(self) -> str:
        """The next few characters, for a message."""
        rest = self.rest()
        return f'found "{rest.split()[0][:20]}"' if rest else "the text ends here"

    def expect_end(self) -> None:
        rest = self.rest()
        if not rest:
            return
        hint = 'write "over 10s" or ", abort after 30s" after the value'
        if rest.split()[0] == "abort":
            hint = 'write ", abort" with a comma'
        self.fail(f"{self.found()} after the end of the threshold", hint)

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        if match is not None:
            self.at = match.end()


def _scope(reader: _Reader, scopes: Collection[str]) -> str:
    """Reads `eu:`. A name that is no datacenter may be a metric of the k6 form."""
    head = _SCOPE.match(reader.text)
    if head is None:
        return ""
    name = head.group(1)
    if name in scopes:
        reader.at = head.end()
        return name
    if _K6.match(reader.text) is None or _DOTTED.match(reader.text, head.end()) is not None:
        reader.fail(f'no datacenter "{name}"', scope_hint(scopes), column=head.start(1) + 1)
    return ""


def name_before_colon(text: str) -> str:
    """The datacenter, or the metric of the k6 form, that a threshold begins with; "" without."""
    head = _SCOPE.match(text)
    return "" if head is None else head.group(1)


def scope_hint(scopes: Collection[str]) -> str:
    """Ends an error about an unknown datacenter."""
    if scopes:
        return f"there are {', '.join(scopes)}"
    return "this run has no datacenters: name them with --to eu=HOST:PORT,... or --dc"


def _k6_head(reader: _Reader, head: re.Match[str]) -> str | None:
    """Reads `metric{step:pay}:` and returns the step."""
    reader.at = head.end()
    tag = head.group(2)
    if tag is None:
        return None
    match = _TAG.fullmatch(tag)
    if match is None or not match.group(1):
        reader.fail(
            f"{tag} is not a tag that thresholds know",
            "write {step:name}",
            column=head.start(2) + 1,
        )
    return match.group(1)


def _subject(
    reader: _Reader, k6: re.Match[str] | None
) -> tuple[tuple[str, ...], tuple[int, ...], float | None]:
    names: list[str] = []
    columns: list[int] = []
    if k6 is not None:
        names.append(k6.group(1))
        columns.append(k6.start(1) + 1)
    while True:
        columns.append(reader.column)
        percentile = _percentile(reader, is_first=not names)
        if percentile is not None:
            break
        name = reader.take(_NAME)
        if name is None:
            hint = 'write what to judge, such as "pay.p(95)" or "errors"'
            reader.fail(f"expected a name; {reader.found()}", hint)
        names.append(name.group())
        if k6 is not None or not reader.take_text("."):
            break
    if percentile is not None and reader.rest().startswith("."):
        reader.fail("nothing may follow a percentile but a comparison")
    return tuple(names), tuple(columns), percentile


def _percentile(reader: _Reader, *, is_first: bool) -> float | None:
    column = reader.column
    match = reader.take(_PERCENTILE)
    if match is None:
        _refuse_near_percentile(reader)
        return None
    if is_first:
        hint = f'write which step: "pay.{match.group()}" or "iteration.{match.group()}"'
        reader.fail(f"{match.group()} of what", hint, column=column)
    percentile = float(match.group(1))
    if not LEAST_PERCENTILE <= percentile <= MOST_PERCENTILE:
        hint = "use min, med or max beyond that"
        problem = f"a percentile lies between 50 and 99.99, not at {match.group(1)}"
        reader.fail(problem, hint, column=column)
    return percentile


def _refuse_near_percentile(reader: _Reader) -> None:
    """Refuses `P(95)`, `p(95` and `p()` with the right form: they cannot be names."""
    match = re.match(r"[pP]\(\s*([0-9]{1,2}(?:\.[0-9]{1,9})?)?", reader.rest())
    if match is not None:
        hint = f'write "p({match.group(1) or 95})"'
        reader.fail(f'"{match.group()}" is not a percentile', hint)


def _op(reader: _Reader) -> Op:
    rest = reader.rest()
    for wrong, right in _WRONG_OPS.items():
        if rest.startswith(wrong) and rest[:2] not in OPS:
            reader.fail(f'"{wrong}" is not a comparison', f'write "{right}"')
    for op in OPS:
        if reader.take_text(op):
            return op
    hint = f"write one of {' '.join(sorted(OPS))}"
    reader.fail(f"expected a comparison; {reader.found()}", hint)


def _value(reader: _Reader) -> tuple[float, Unit]:
    number = reader.take(_NUMBER)
    if number is None:
        hint = "write a number with a unit, such as 800ms, 2s, 1% or 10/s"
        reader.fail(f"expected a value; {reader.found()}", hint)
    column = reader.column
    # A unit follows the number directly or after one space; `over` is not a unit.
    ahead = reader.rest()
    if ahead.startswith(("over", "abort")):
        return float(number.group()), ""
    unit = reader.take(_UNIT)
    if unit is None:
        return float(number.group()), ""
    for known in UNITS:
        if unit.group() == known:
            return float(number.group()), known
    hints = {"m": "write seconds: 60s", "sec": 'write "s"', "µs": 'write "us"', "μs": 'write "us"'}
    hint = hints.get(unit.group(), "units are ms, s, us, % and /s")
    reader.fail(f'"{unit.group()}" is not a unit', hint, column=column)


def _over(reader: _Reader) -> int | None:
    if not reader.take_word("over"):
        return None
    column = reader.column
    seconds = _duration(reader, "over")
    if seconds != int(seconds) or not 1 <= seconds <= MAX_OVER_S:
        problem = "windows are whole seconds, from 1s to 1h"
        reader.fail(problem, 'write for example "over 10s"', column=column)
    return int(seconds)


def _abort(reader: _Reader) -> tuple[bool, float]:
    if not reader.take_text(","):
        return False, 0.0
    if not reader.take_word("abort"):
        reader.fail(f'expected "abort" after the comma; {reader.found()}')
    if not reader.take_word("after"):
        return True, 0.0
    return True, _duration(reader, "abort after")


def _duration(reader: _Reader, what: str) -> float:
    column = reader.column
    match = reader.take(_DURATION)
    if match is None:
        reader.fail(f'expected a duration after "{what}"', f'write for example "{what} 10s"')
    try:
        return parse_duration(match.group(), what)
    except ConfigError as error:
        reader.fail(str(error), column=column)
