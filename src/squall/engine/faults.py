"""What happens when a step does not go well: reasons, latencies, first samples.

An exception after an exchange is one failed execution with the latency of the step's
last exchange; before any exchange it is counted and has no latency. Nothing here stops
a user. This is not the hot path: a failure may cost microseconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from math import isfinite
from time import perf_counter
from typing import Any

from squall.api.errors import StatusError, TransportError
from squall.api.http import HTTPResponse
from squall.api.results import CustomResult
from squall.clients.http import HTTPClient
from squall.engine.loading import author_location, author_traceback
from squall.engine.recorder import Recorder, Row

REASON_CHARS_MAX = 200
BODY_CHARS_MAX = 2000
SAMPLES_MAX = 20
"""First failures told per row: one per (reason, line). A reason with an id in it would
otherwise make one of every failure."""


class Faults:
    """Records failures of one share's steps and hooks."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.first_text = ""
        """The first failure in words, for a workflow that must not fail."""
        self._seen: dict[str, set[tuple[str, str]]] = {}

    def step_failed(self, row: Row, error: BaseException, http: HTTPClient, planned: float) -> bool:
        """The author's step raised. True when nothing was answered: a user that goes on at
        once would spin; after an answer the target itself sets the pace."""
        if not row.protocol:
            row.begin()
        last = http.last_exchange()
        seconds = _latency(error, last)
        if planned and row.response is not None and seconds is not None:
            row.response.append(_ended(error, last) - planned)
        if isinstance(error, StatusError) and self._failed_status(row, error, seconds):
            reason = error.reason
        else:
            reason = reason_of(error)
            row.fail(reason, seconds, _was_sent(error, last))
        self._sample(row.name, reason, error, last)
        return not isinstance(last, HTTPResponse)

    def step_odd(self, row: Row, result: Any, planned: float) -> None:
        """The step returned something that is not what its annotation says."""
        if not row.protocol:
            row.begin()
        if inspect.iscoroutine(result):
            name = getattr(result, "__qualname__", "a coroutine")
            close_coroutine(result)
            reason = f"returned a coroutine ({name}): write await in front of the call"
        elif row.protocol == "http":
            reason = f"returned {type(result).__name__} instead of an HTTPResponse"
        else:
            reason = f"returned {type(result).__name__} instead of its declared result"
        row.fail(reason, None, False)
        self._note(row.name, reason)
        if self._is_first(row.name, reason):
            self.recorder.error(row.name, reason)

    def status_failed(self, row: Row, response: HTTPResponse) -> None:
        """A response with a status that is not expected: keep the first of its kind."""
        reason = response.status_text
        self._note(row.name, reason)
        if self._is_first(row.name, reason):
            self.recorder.error(row.name, reason, **_exchange(response))

    def custom(self, row: Row, result: Any, planned: float) -> bool:
        """Records a result of the author's own kind; true when it was successful."""
        if not isinstance(result, CustomResult):
            self.step_odd(row, result, planned)
            return False
        try:
            seconds, reason = _read(result)
        except Exception as error:
            # A result type is the author's code: its properties may raise as a step may.
            reason = reason_of(error)
            row.fail(reason, None, False)
            self._sample(row.name, reason, error, None)
            return False
        if planned and row.response is not None:
            row.response.append(perf_counter() - planned)
        if reason is None:
            if seconds is None:
                row.ok.count += 1
            else:
                row.ok.append(seconds)
            return True
        row.fail(reason, seconds, False)
        self._note(row.name, reason)
        if self._is_first(row.name, reason):
            self.recorder.error(row.name, reason)
        return False

    def hook_failed(self, name: str, error: BaseException) -> None:
        """A check, metric or end action raised."""
        self._sample(name, reason_of(error), error, None)

    def _failed_status(self, row: Row, error: StatusError, seconds: float | None) -> bool:
        """`raise_for_status()` counts under the status, unless that status is expected."""
        status = error.response.status_code
        if seconds is None or any(low <= status <= high for low, high in row.statuses.ranges):
            return False
        row.statuses[status](seconds)
        return True

    def _sample(
        self, row: str, reason: str, error: BaseException, last: HTTPResponse | Any
    ) -> None:
        self._note(row, reason)
        location = author_location(error)
        if not self._is_first(row, reason, location):
            return
        details: dict[str, Any] = {"location": location}
        if not isinstance(error, TransportError):
            details["traceback"] = author_traceback(error)
        if isinstance(last, HTTPResponse):
            details.update(_exchange(last))
        self.recorder.error(row, reason, **details)

    def _is_first(self, row: str, reason: str, location: str = "") -> bool:
        """Whether to tell of this failure: the first of its kind, while there are few."""
        seen = self._seen.setdefault(row, set())
        if (reason, location) in seen or len(seen) >= SAMPLES_MAX:
            return False
        seen.add((reason, location))
        return True

    def _note(self, row: str, reason: str) -> None:
        if not self.first_text:
            self.first_text = f"{self.recorder.workflow}.{row}: {reason}"


def reason_of(error: BaseException) -> str:
    """Short and stable: the key under which this failure is counted."""
    if isinstance(error, (TransportError, StatusError)):
        return error.reason
    if isinstance(error, KeyError) and _raised_in_runner(error):
        return f"no value for argument {error.args[0]!r} in self.context"
    try:
        text = str(error).strip().split("\n", 1)[0]
    except Exception:
        text = "(its text cannot be shown)"
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return reason[:REASON_CHARS_MAX]


def _read(result: CustomResult) -> tuple[float | None, str | None]:
    """(latency, why it failed or None) of a result of the author's own kind."""
    total = result.timings.get("total")
    seconds = None if total is None else float(total)
    if seconds is not None and not isfinite(seconds):
        raise ValueError(f'timings["total"] is {seconds}, not a time')
    if result.successful:
        return seconds, None
    return seconds, str(result.context())[:REASON_CHARS_MAX]


def _raised_in_runner(error: BaseException) -> bool:
    """The generated code itself failed to find an argument, not the author's code."""
    tb = error.__traceback__
    return tb is not None and tb.tb_next is None


def _latency(error: BaseException, last: Any) -> float | None:
    if isinstance(error, TransportError):
        return error.ended - error.started if error.ended else None
    if isinstance(last, (HTTPResponse, TransportError)) and last.ended:
        return last.ended - last.started
    return None


def _ended(error: BaseException, last: Any) -> float:
    source = error if isinstance(error, TransportError) else last
    return source.ended or perf_counter()


def _was_sent(error: BaseException, last: Any) -> bool:
    """Whether an exchange of the client stands behind this execution."""
    if isinstance(error, TransportError):
        return bool(error.ended)
    return last is not None and bool(last.ended)


def _exchange(response: HTTPResponse) -> dict[str, Any]:
    try:
        body = response.text[:BODY_CHARS_MAX]
    except Exception:
        body = repr(response.raw_body[:BODY_CHARS_MAX])
    return {"request": response.url, "status": response.status_code, "body": body}


def close_coroutine(coroutine: Coroutine[Any, Any, Any]) -> None:
    """A coroutine nobody awaits would warn at collection time, far from its cause."""
    coroutine.close()
