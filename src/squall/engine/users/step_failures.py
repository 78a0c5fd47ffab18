"""Records failed steps and hooks: the reason, the latency, a sample of the first ones.

An exception after an exchange is one failed execution with the latency of the step's
last exchange; before any exchange it counts without a latency. Nothing here stops a user.
A target may fail every call, so what a sample needs (the author's line, the traceback, the body) is
made for the first failure of its kind only.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Coroutine, Mapping
from math import isfinite
from time import perf_counter
from types import CodeType
from typing import TYPE_CHECKING, Any

from squall.api.errors import StatusError, TransportError
from squall.api.feeds import FeedExhausted
from squall.api.http import RESPONSES, HTTPResponse
from squall.api.protocols.grpc import GRPCResponse
from squall.api.protocols.response import ProtocolResponse
from squall.api.results import CallResult, CustomResult
from squall.api.workflow import VU, Workflow
from squall.clients.http import HTTPClient
from squall.engine.measure.recorder import Recorder, Row
from squall.engine.plan.author_file import author_location, author_traceback
from squall.stats.manifest import START

if TYPE_CHECKING:
    from squall.clients.http.client import LastCall

REASON_CHARS_MAX = 200
BODY_CHARS_MAX = 2000
# First failures reported per row, one per (reason, line). A reason with an id in it would
# otherwise report every failure.
SAMPLES_MAX = 20
# What other libraries call the attributes of a response.
_OTHER_NAMES = {
    "status": "status_code",
    "code": "status_code",
    "content": "body",
    "data": "body",
    "is_success": "ok",
    "success": "ok",
    "elapsed": "timings",
    "duration": "timings",
    "header": "headers",
}
# Ways through the code whose text is kept; generated code must not fill the memory.
LOCATIONS_MAX = 1000


class StepFailures:
    """Records the failures of one share's steps and hooks."""

    def __init__(self, recorder: Recorder, places: Mapping[str, str]) -> None:
        """`places` are the lines of the steps, for failures that have no traceback."""
        self.recorder = recorder
        self._places = places
        # The first failure in words: the error of a workflow that is not a test.
        self.first_text = ""
        self._seen: dict[str, set[tuple[str, str]]] = {}
        self._locations = _KnownLocations()

    def step_failed(self, row: Row, error: BaseException, http: HTTPClient, planned: float) -> None:
        """Records a step that raised."""
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
            raised = not isinstance(error, TransportError | StatusError)
            sent = _was_sent(error, last)
            row.fail(reason, seconds, sent, raised=raised, status=_status(last))
        self._sample(row.name, reason, error, last)
        if http.on_step_failed is not None:
            http.on_step_failed(row.name)

    def step_odd(self, row: Row, result: Any, http: HTTPClient) -> None:
        """Records a step that returned something other than its annotation says."""
        if not row.protocol:
            row.begin()
        if inspect.iscoroutine(result):
            name = getattr(result, "__qualname__", "a coroutine")
            close_coroutine(result)
            reason = f"returned a coroutine ({name}): write await in front of the call"
        elif row.protocol in RESPONSES:
            wanted = RESPONSES[row.protocol].__name__
            reason = f"returned {type(result).__name__} instead of an {wanted}"
        else:
            reason = f"returned {type(result).__name__} instead of its declared result"
        if result is None:
            reason += ": write return"
        last = http.last_exchange()
        seconds, sent = _latency(None, last), _was_sent(None, last)
        row.fail(reason, seconds, sent, raised=True, status=_status(last))
        self._note(row.name, reason)
        if self._is_first(row.name, reason):
            self.recorder.error(row.name, reason, location=self._places.get(row.name, ""))

    def status_failed(self, row: Row, response: HTTPResponse) -> None:
        """Reports the first response with a status that the step does not expect."""
        reason = response.status_text
        self._note(row.name, reason)
        if self._is_first(row.name, reason):
            self.recorder.error(row.name, reason, **_exchange(response))

    def custom(self, row: Row, result: Any, http: HTTPClient, planned: float) -> bool:
        """Records a result of an author's own type; true if it was successful."""
        if isinstance(result, CallResult) and result.protocol == row.protocol:
            passed = self._client_result(row, result, planned)
            if not passed and http.on_step_failed is not None:
                http.on_step_failed(row.name)
            return passed
        if not isinstance(result, CustomResult):
            self.step_odd(row, result, http)
            return False
        try:
            seconds, reason = _read(result)
        except Exception as error:
            # The result type is the author's code, so its properties may raise as a step may.
            reason = reason_of(error)
            row.fail(reason, None, False, raised=True)
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

    def _client_result(self, row: Row, result: Any, planned: float) -> bool:
        """Records the answer of a client whose protocol has no HTTP status."""
        seconds = result.ended - result.started
        if planned and row.response is not None:
            row.response.append(result.ended - planned)
        reason = result.failure
        if not reason:
            row.ok.append(seconds)
            row.ok.exchanges += result.exchanges - row.counts_samples
            return True
        row.fail(reason, seconds, bool(result.exchanges))
        self._note(row.name, reason)
        if self._is_first(row.name, reason):
            self.recorder.error(row.name, reason, **_exchange(result))
        return False

    def start_failed(self, error: BaseException, source_of: Callable[[str], str]) -> str:
        """Records why a user could not start, and returns it in words; `source_of` names the file
        of a feed."""
        if not isinstance(error, FeedExhausted):
            self._sample(START, reason_of(error), error, None)
            return reason_of(error)
        reason = f"no rows left in {source_of(str(error))}"
        self._note(START, reason)
        if self._is_first(START, reason):
            self.recorder.error(START, reason)
        return reason

    def hook_failed(self, name: str, error: BaseException) -> None:
        """Records a check, metric or action that raised."""
        raised = not isinstance(error, TransportError | StatusError)
        self.recorder.hook_ended(name, raised=raised)
        self._sample(name, reason_of(error), error, None)

    def _failed_status(self, row: Row, error: StatusError, seconds: float | None) -> bool:
        """Counts `raise_for_status()` under its status; false if the step expects that status."""
        status = error.response.status_code
        if (
            row.protocol not in RESPONSES
            or seconds is None
            or any(low <= status <= high for low, high in row.statuses.ranges)
        ):
            return False
        row.statuses[status](seconds)
        return True

    def _sample(
        self, row: str, reason: str, error: BaseException, last: HTTPResponse | Any
    ) -> None:
        self._note(row, reason)
        if len(self._seen.get(row, ())) >= SAMPLES_MAX:
            return
        location = self._locations.of(error)
        if not self._is_first(row, reason, location):
            return
        details: dict[str, Any] = {"location": location}
        if not isinstance(error, TransportError):
            details["traceback"] = author_traceback(error)
        if isinstance(last, HTTPResponse):
            details.update(_exchange(last))
        elif isinstance(last, TransportError):
            details["request"] = last.request
        self.recorder.error(row, reason, **details)

    def _is_first(self, row: str, reason: str, location: str = "") -> bool:
        """Whether to report this failure: the first of its kind, up to `SAMPLES_MAX`."""
        seen = self._seen.setdefault(row, set())
        if (reason, location) in seen or len(seen) >= SAMPLES_MAX:
            return False
        seen.add((reason, location))
        return True

    def _note(self, row: str, reason: str) -> None:
        if not self.first_text:
            self.first_text = f"{self.recorder.workflow}.{row}: {reason}"


class _KnownLocations:
    """The author's lines of tracebacks: the text is made once for each way through the code."""

    def __init__(self) -> None:
        # The key is made of ids, because the hash of a code object reads all of it. The code
        # objects are kept with the text: a freed one could lend its id to another.
        self._texts: dict[tuple[int, ...], tuple[str, list[CodeType]]] = {}

    def of(self, error: BaseException) -> str:
        key: list[int] = []
        codes: list[CodeType] = []
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            codes.append(code)
            key += (id(code), trace.tb_lasti)
            trace = trace.tb_next
        known = self._texts.get(tuple(key))
        if known is None:
            if len(self._texts) >= LOCATIONS_MAX:
                self._texts.clear()
            known = self._texts[tuple(key)] = (author_location(error), codes)
        return known[0]


def reason_of(error: BaseException) -> str:
    """The key under which a failure is counted: short, and equal for equal failures."""
    if isinstance(error, (TransportError, StatusError)):
        return error.reason
    if isinstance(error, KeyError) and _raised_in_runner(error):
        return f"no value for argument {error.args[0]!r} in self.context"
    try:
        text = str(error).strip().split("\n", 1)[0]
    except Exception:
        text = "(its message cannot be shown)"
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, AttributeError):
        reason += _attribute_hint(error)
    return reason[:REASON_CHARS_MAX]


def _attribute_hint(error: AttributeError) -> str:
    """`; did you mean status_code?` for an attribute that an object of Squall does not have.

    A `__getattr__` of the response could say the same, but it would make each access to an
    attribute dearer, also in the generated loop.
    """
    # Python sets both where it raises the error itself.
    name, thing = getattr(error, "name", None), getattr(error, "obj", None)
    if not isinstance(name, str) or not isinstance(thing, CallResult | Workflow | VU):
        return ""
    known = [each for each in dir(thing) if not each.startswith("_")]
    other = _OTHER_NAMES.get(name, "") if isinstance(thing, CallResult) else ""
    close = other or "".join(difflib.get_close_matches(name, known, 1))
    return f"; did you mean {close}?" if close in known else ""


def _read(result: CustomResult) -> tuple[float | None, str | None]:
    """Returns the latency of an author's own result, and why it failed (None if it did not)."""
    total = result.timings.get("total")
    seconds = None if total is None else float(total)
    if seconds is not None and not isfinite(seconds):
        raise ValueError(f'timings["total"] is {seconds}, not a time')
    if result.successful:
        return seconds, None
    return seconds, str(result.context())[:REASON_CHARS_MAX]


def _raised_in_runner(error: BaseException) -> bool:
    """Whether the generated code failed to find an argument, and not the author's code."""
    tb = error.__traceback__
    return tb is not None and tb.tb_next is None


def _latency(error: BaseException | None, last: LastCall | None) -> float | None:
    if isinstance(error, TransportError):
        return error.ended - error.started if error.ended else None
    if last is not None and last.ended:
        return last.ended - last.started
    return None


def _ended(error: BaseException, last: LastCall | None) -> float:
    source = error if isinstance(error, TransportError) else last
    return (source.ended if source is not None else 0.0) or perf_counter()


def _was_sent(error: BaseException | None, last: LastCall | None) -> bool:
    """Whether the client made an exchange for this execution."""
    if isinstance(error, TransportError):
        return bool(error.ended)
    kinds = HTTPResponse | ProtocolResponse | TransportError | GRPCResponse
    return last is not None and isinstance(last, kinds) and bool(last.ended)


def _status(last: LastCall | None) -> int:
    return last.status_code if isinstance(last, HTTPResponse) else 0


def _exchange(response: Any) -> dict[str, Any]:
    """What a sample shows of a response of HTTP, gRPC or GraphQL."""
    try:
        body = response.text[:BODY_CHARS_MAX]
    except Exception:
        body = repr(response.raw_body[:BODY_CHARS_MAX])
    return {"request": response.request, "status": response.status_code, "body": body}


def close_coroutine(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Closes a coroutine that is never awaited; it would warn later, far from its cause."""
    coroutine.close()
