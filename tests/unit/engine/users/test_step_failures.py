"""Failures in words and numbers: reasons, latencies, first samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.api.http import HTTPResponse, ResponseHead
from squall.api.protocols.browser import PageResult
from squall.api.results import CustomResult
from squall.api.workflow import VU, Workflow
from squall.clients.http import HTTPShared
from squall.engine.core_protocol import frame
from squall.engine.measure.recorder import Recorder, Row
from squall.engine.users import step_failures
from squall.engine.users.step_failures import REASON_CHARS_MAX, SAMPLES_MAX, StepFailures, reason_of
from squall.stats.reports import ErrorSample


class Scene:
    """Faults of one share with a row to count in."""

    def __init__(self, protocol: str = "http", *, is_open: bool = False) -> None:
        self.samples: list[ErrorSample] = []
        # As a client is told of them, such as one that takes pictures.
        self.failed_steps: list[str] = []
        http = HTTPShared()
        recorder = Recorder("W", 0, is_open=is_open, http=http, on_error=self.samples.append)
        self.failures = StepFailures(recorder, {"home": "shop.py:7 in home"})
        self.row: Row = recorder.add_row("home", protocol, [(200, 399)], planned=True)

    def fail(self, error: BaseException, last: Any = None, planned: float = 0.0) -> None:
        client: Any = SimpleNamespace(
            last_exchange=lambda: last, on_step_failed=self.failed_steps.append
        )
        self.row.begin()
        self.failures.step_failed(self.row, error, client, planned)

    def outcomes(self) -> dict[str, tuple[int, int, int]]:
        """reason -> (count, samples, exchanges)"""
        return {
            outcome.key: (outcome.count, outcome.service.count, outcome.exchanges)
            for outcome in self.row.take().outcomes
        }


CLIENT: Any = SimpleNamespace(last_exchange=lambda: None, on_step_failed=None)
"""A client that made no call."""


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no good"), "ValueError: no good"),
        (ValueError(), "ValueError"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (TransportError("connection reset"), "connection reset"),
        (SystemExit(3), "SystemExit: 3"),
        (Unprintable(), "Unprintable: (its message cannot be shown)"),
        (ValueError("x" * 10_000), "ValueError: " + "x" * (REASON_CHARS_MAX - 12)),
    ],
)
def test_reasons_are_short_and_stable(error: BaseException, reason: str) -> None:
    assert reason_of(raised(error)) == reason


def answer() -> HTTPResponse:
    head = ResponseHead(b"HTTP/1.1 200 OK\r\n\r\n", 200, 0, False)
    source: Any = SimpleNamespace(method="GET", address="http://127.0.0.1/")
    return HTTPResponse(200, head, b"", source, 1.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("thing", "name", "hint"),
    [
        (answer(), "status", "; did you mean status_code?"),
        (answer(), "content", "; did you mean body?"),
        (answer(), "heders", "; did you mean headers?"),
        (answer(), "elapsed", "; did you mean timings?"),
        (answer(), "zebra", ""),
        (Workflow(), "chek", "; did you mean check?"),
        (VU(1, 0), "number", ""),
        (SimpleNamespace(status_code=1), "status", ""),
    ],
)
def test_an_unknown_attribute_suggests_the_right_one(thing: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(thing, name)
    kind = type(thing).__name__
    if kind == "SimpleNamespace":
        kind = "types.SimpleNamespace"
    text = f"AttributeError: '{kind}' object has no attribute '{name}'"
    assert reason_of(caught.value) == text + hint


def test_the_location_of_a_failure_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def location(error: BaseException) -> str:
        made.append(str(error))
        assert error.__traceback__ is not None
        return f"shop.py:{error.__traceback__.tb_lineno} in home"

    monkeypatch.setattr(step_failures, "author_location", location)
    scene = Scene()

    def first() -> None:
        raise ValueError("same")

    def second() -> None:
        raise ValueError("same")

    for function in (first, second) * 100:
        try:
            function()
        except ValueError as error:
            scene.fail(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
    assert len(made) == 2
    lines = [function.__code__.co_firstlineno + 1 for function in (first, second)]
    assert [sample.location for sample in scene.samples] == [
        f"shop.py:{line} in home" for line in lines
    ]


def test_a_client_that_asked_for_it_learns_which_steps_failed() -> None:
    scene = Scene("browser")
    told: Any = SimpleNamespace(
        last_exchange=lambda: None, on_step_failed=scene.failed_steps.append
    )
    source: Any = SimpleNamespace(address="http://127.0.0.1/", operation="OPEN")
    for error in ("", "404 Not Found"):
        page = PageResult(source, 1.0, 2.0, 2.0, error=error)
        assert scene.failures.custom(scene.row, page, told, 0.0) is not bool(error)
    assert scene.failed_steps == ["home"]
    scene.fail(raised(ValueError("no")))
    assert scene.failed_steps == ["home", "home"]


def test_a_failure_has_the_latency_of_the_last_exchange() -> None:
    scene = Scene()
    exchange = TransportError("reset", started=10.0, ended=10.25)
    scene.fail(AssertionError("late"), exchange)
    scene.fail(AssertionError("early"), None)
    scene.fail(TransportError("refused", started=5.0, ended=5.5))
    scene.fail(TransportError("never sent"))
    assert scene.outcomes() == {
        "AssertionError: late": (1, 1, 1),
        "AssertionError: early": (1, 0, 0),
        "refused": (1, 1, 1),
        "never sent": (1, 0, 0),
    }


def test_response_time_of_a_failure_counts_from_the_plan() -> None:
    scene = Scene(is_open=True)
    scene.fail(ValueError("late"), TransportError("reset", started=10.0, ended=10.25), 9.0)
    scene.fail(ValueError("early"), None, 9.0)
    response = scene.row.take().response
    assert response is not None
    assert (response.count, response.max_s) == (1, pytest.approx(1.25))


def test_the_first_of_each_kind_is_told_and_only_a_few_kinds() -> None:
    scene = Scene()
    for _ in range(3):
        scene.fail(ValueError("same"))
    assert [sample.reason for sample in scene.samples] == ["ValueError: same"]
    for number in range(500):
        scene.fail(ValueError(f"other {number}"))
        scene.failures.custom(scene.row, CustomResult(error=f"custom {number}"), CLIENT, 0.0)
    assert len(scene.samples) == SAMPLES_MAX
    other = Scene()
    other.failures.hook_failed("check a", ValueError("a"))
    other.failures.hook_failed("check b", ValueError("b"))
    assert [sample.row for sample in other.samples] == ["check a", "check b"]
    assert scene.failures.first_text == "W.home: ValueError: same"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (CustomResult(timings={"total": 0.5}), {"ok": (1, 1, 0)}),
        (CustomResult(), {"ok": (1, 0, 0)}),
        (CustomResult(timings={"total": 0.5}, error="cut"), {"cut": (1, 1, 0)}),
        (CustomResult(error=ValueError()), {"ValueError": (1, 0, 0)}),
        (
            CustomResult(timings={"total": float("nan")}),
            {'ValueError: timings["total"] is nan, not a time': (1, 0, 0)},
        ),
        (7, {"returned int instead of its declared result": (1, 0, 0)}),
    ],
)
def test_custom_results(result: Any, expected: dict[str, tuple[int, int, int]]) -> None:
    scene = Scene("custom")
    passed = scene.failures.custom(scene.row, result, CLIENT, 0.0)
    assert passed == ("ok" in expected)
    assert scene.outcomes() == expected


def test_a_result_type_that_raises_is_a_failed_execution() -> None:
    class Broken(CustomResult):
        @property
        def successful(self) -> bool:
            raise RuntimeError("never set up")

    scene = Scene("custom")
    assert not scene.failures.custom(scene.row, Broken(), CLIENT, 0.0)
    assert scene.outcomes() == {"RuntimeError: never set up": (1, 0, 0)}


def test_a_forgotten_await_is_told_in_so_many_words() -> None:
    async def get() -> None: ...

    scene = Scene()
    scene.row.begin()
    scene.failures.step_odd(scene.row, get(), CLIENT)
    reason = next(iter(scene.outcomes()))
    assert reason.startswith("returned a coroutine (")
    assert reason.endswith("get): write await in front of the call")


def test_texts_that_no_encoding_can_carry_still_travel() -> None:
    scene = Scene()
    scene.fail(ValueError("half \ud83d of it"))
    assert b"half ? of it" in frame(scene.samples[0])
