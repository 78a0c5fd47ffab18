"""Structured logs: form, levels, rate, secrets."""

from __future__ import annotations

import io
import json

import pytest

from squall.runtime.log import HIDDEN, Log, LogRecord, MemorySink, StreamSink
from tests.unit.runtime.lab.manual_clock import ManualClock


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_a_line_for_people_has_time_level_event_and_fields() -> None:
    stream = io.StringIO()
    log = Log(StreamSink(stream), ManualClock()).bind(node="gate-1", boot="5f2a")
    log.info("peer_connected", peer="10.0.0.7:7000", took_s=0.0123456789, tries=2, tls=True)
    assert lines(stream) == [
        "2023-11-14T22:15:00.000Z info    peer_connected node=gate-1 boot=5f2a "
        "peer=10.0.0.7:7000 took_s=0.0123457 tries=2 tls=true"
    ]


def test_a_json_line_holds_the_same_and_its_head_cannot_be_replaced() -> None:
    stream = io.StringIO()
    log = Log(StreamSink(stream, as_json=True), ManualClock()).bind(node="gate-1")
    log.warning("odd", time="never", level="none", none=None, items=("a", 1), ratio=0.5)
    assert json.loads(lines(stream)[0]) == {
        "time": "2023-11-14T22:15:00.000Z",
        "level": "warning",
        "event": "odd",
        "node": "gate-1",
        "none": None,
        "items": ["a", 1],
        "ratio": 0.5,
    }


@pytest.mark.parametrize(
    "value", ["two words", 'a"b', "a=b", "", "line\nbreak", "\x1b[31mred", "\x85next", "\u2028"]
)
def test_a_value_can_neither_break_its_line_nor_forge_a_field(value: str) -> None:
    stream = io.StringIO()
    Log(StreamSink(stream), ManualClock()).info("odd", value=value)
    [line] = lines(stream)
    assert json.loads(line.partition("value=")[2]) == value
    assert line.isprintable()


def test_levels_below_the_chosen_one_are_not_written() -> None:
    sink = MemorySink()
    log = Log(sink, ManualClock(), level="warning")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert sink.events() == ["c", "d"]
    assert log.dropped == 0


def test_each_event_has_a_bounded_rate_and_tells_what_was_left_out() -> None:
    sink, clock = MemorySink(), ManualClock()
    log = Log(sink, clock, events_per_s=2.0, burst=3)
    for number in range(10):
        log.info("flood", number=number)
        log.bind(job=1).info("flood", number=number)
    log.info("other")
    assert sink.events() == ["flood"] * 3 + ["other"]
    assert log.dropped == 17
    clock.time += 1.0
    for _ in range(3):
        log.info("flood")
    assert [record.fields.get("suppressed") for record in sink.records[4:]] == [17, None]


def test_an_event_name_made_up_by_a_peer_cannot_grow_the_memory() -> None:
    log = Log(MemorySink(capacity=10), ManualClock())
    for number in range(5000):
        log.info(f"event{number}")
    assert len(log._shared._buckets) <= 1024  # pyright: ignore[reportPrivateUsage]


def test_secrets_are_hidden_by_the_name_of_their_field() -> None:
    sink = MemorySink()
    Log(sink, ManualClock()).info(
        "start", cluster_secret="hunter2", Authorization="Basic x", api_key=7, has_token=True
    )
    assert sink.records[0].fields == {
        "cluster_secret": HIDDEN,
        "Authorization": HIDDEN,
        "api_key": HIDDEN,
        "has_token": True,
    }


def test_secrets_are_hidden_by_their_value_wherever_they_turn_up() -> None:
    sink = MemorySink()
    log = Log(sink, ManualClock())
    log.hide("hunter2")
    try:
        raise ValueError("cannot log in with hunter2")
    except ValueError as error:
        log.error("failed", error=error, tried=["hunter2", "x"], url="http://u:hunter2@h")
    assert "hunter2" not in repr(sink.records)
    assert sink.records[0].fields["tried"] == [HIDDEN, "x"]


def test_bytes_are_never_written() -> None:
    sink = MemorySink()
    Log(sink, ManualClock()).info("frame", data=b"\x00key material")
    assert sink.records[0].fields == {"data": "<13 bytes>"}


def test_an_error_says_its_kind_its_text_and_where_it_was_raised() -> None:
    sink = MemorySink()

    def commit() -> None:
        raise KeyError("op 7")

    try:
        commit()
    except KeyError as error:
        Log(sink, ManualClock()).error("task_failed", error=error)
    fields = sink.records[0].fields
    assert fields["error"] == "KeyError: 'op 7'"
    assert str(fields["trace"]).startswith("test_log.py:")
    assert "in commit < test_log.py:" in str(fields["trace"])


def test_logging_never_raises_into_the_code_that_logs() -> None:
    class Full:
        def write(self, record: LogRecord) -> None:
            raise OSError("no space left")

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log = Log(Full(), ManualClock())
    log.info("a")
    Log(MemorySink(), ManualClock()).info("b", value=Broken())
    assert log.dropped == 1


def test_long_values_are_cut_and_special_numbers_are_text() -> None:
    sink = MemorySink()
    Log(sink, ManualClock()).info("odd", text="x" * 10_000, ratio=float("nan"))
    assert len(str(sink.records[0].fields["text"])) < 2100
    assert sink.records[0].fields["ratio"] == "nan"
