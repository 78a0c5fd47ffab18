"""The output of a step: its prefix, its limits, and that it never fails the step."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from squall.api.workflow import VU, Workflow
from squall.engine.measure import author_output as output
from squall.engine.measure.author_output import LINES_PER_S, OutputCapture, user_name


class Seen:
    """A capture with a clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 50.0
        self.lines: list[tuple[str, str]] = []
        self.capture = OutputCapture(self.sink, user_name, clock=lambda: self.now)

    def sink(self, prefix: str, line: str) -> None:
        self.lines.append((prefix, line))


@contextmanager
def captured() -> Iterator[Seen]:
    """Standard streams and root logger as in a core process. Not a fixture, because pytest
    puts its own streams back between set-up and test."""
    seen = Seen()
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    root.setLevel(logging.WARNING)
    seen.capture.install()
    try:
        yield seen
    finally:
        seen.capture.uninstall()
        root.handlers = handlers
        root.setLevel(level)


class Shop(Workflow):
    def say(self, *words: object, **options: Any) -> None:
        print(*words, **options)

    def deep(self, word: str) -> None:
        def inner() -> None:
            [print(word) for _ in range(1)]

        inner()

    def log(self, level: int, text: str, *values: object) -> None:
        logging.getLogger("shop").log(level, text, *values)

    def fail(self) -> None:
        try:
            raise KeyError("id")
        except KeyError:
            logging.getLogger("shop").exception("no id")


def user(number: int) -> Shop:
    shop = Shop()
    shop.vu = VU(number, 0)
    return shop


def test_a_line_carries_workflow_and_user() -> None:
    with captured() as seen:
        user(17).say("hello", 1)
        assert seen.lines == [("[Shop 17]", "hello 1")]


def test_a_line_from_below_a_step_carries_its_user() -> None:
    with captured() as seen:
        user(3).deep("below")
        assert seen.lines == [("[Shop 3]", "below")]


def test_a_line_of_nobody_has_no_prefix() -> None:
    with captured() as seen:
        print("plain")
        print("error", file=sys.stderr)
        assert seen.lines == [("", "plain"), ("", "error")]


def test_every_line_of_a_text_carries_the_prefix() -> None:
    with captured() as seen:
        user(1).say("a\nb\r\nc")
        assert seen.lines == [("[Shop 1]", "a"), ("[Shop 1]", "b"), ("[Shop 1]", "c")]


def test_a_partial_line_waits_for_its_end() -> None:
    with captured() as seen:
        shop = user(1)
        shop.say("a", end="")
        shop.say("b", end="", flush=True)
        assert seen.lines == []
        shop.say("c")
        assert seen.lines == [("[Shop 1]", "abc")]


def test_a_partial_line_is_not_mixed_with_another_users() -> None:
    with captured() as seen:
        user(1).say("a", end="")
        user(2).say("b")
        assert seen.lines == [("[Shop 1]", "a"), ("[Shop 2]", "b")]


def test_a_partial_line_is_bounded_and_not_lost_at_the_end() -> None:
    with captured() as seen:
        user(1).say("x" * (output.LONGEST_PARTIAL + 1), end="")
        assert len(seen.lines) == 1
        assert len(seen.lines[0][1]) == output.LONGEST_LINE
        user(1).say("rest", end="")
        seen.capture.uninstall()
        assert seen.lines[-1] == ("[Shop 1]", "rest")


def test_a_progress_bar_becomes_lines() -> None:
    with captured() as seen:
        user(1).say("\r10%\r20%\r\n", end="")
        assert [line for _, line in seen.lines] == ["10%", "20%"]


def test_nothing_that_moves_the_cursor_gets_through() -> None:
    with captured() as seen:
        user(1).say("\x1b[2J\x1b[31mred\x1b[0m\a\x1b]0;title\x07 end\x9b")
        assert seen.lines == [("[Shop 1]", "red end")]


def test_lines_beyond_the_limit_are_counted_and_told_once_a_second() -> None:
    with captured() as seen:
        shop = user(1)
        for number in range(LINES_PER_S + 132):
            shop.say("line", number)
        assert len(seen.lines) == LINES_PER_S
        seen.now += 0.5
        seen.capture.tick()
        assert len(seen.lines) == LINES_PER_S
        seen.now += 0.5
        seen.capture.tick()
        assert seen.lines[LINES_PER_S:] == [("", "[... 132 lines dropped]")]
        seen.capture.tick()
        assert len(seen.lines) == LINES_PER_S + 1


def test_after_a_second_lines_pass_again() -> None:
    with captured() as seen:
        shop = user(1)
        for _ in range(LINES_PER_S + 1):
            shop.say("old")
        seen.now += 1.0
        shop.say("new")
        assert seen.lines[-2:] == [("", "[... 1 line dropped]"), ("[Shop 1]", "new")]


def test_the_end_of_a_line_whose_beginning_was_dropped_is_dropped_too() -> None:
    with captured() as seen:
        shop = user(1)
        for _ in range(LINES_PER_S):
            shop.say("old")
        shop.say("begin", end="")
        seen.now += 1.0
        shop.say("end\nnext")
        assert [line for _, line in seen.lines[LINES_PER_S:]] == ["next"]


def test_the_limit_is_one_for_both_streams_and_logging() -> None:
    with captured() as seen:
        seen.capture.attach_logging()
        for _ in range(LINES_PER_S):
            print("x")
        print("y", file=sys.stderr)
        user(1).log(logging.ERROR, "z")
        assert len(seen.lines) == LINES_PER_S
        seen.now += 1.0
        seen.capture.tick()
        assert seen.lines[-1] == ("", "[... 2 lines dropped]")


def test_warnings_are_shown_and_information_is_not() -> None:
    with captured() as seen:
        seen.capture.attach_logging()
        user(5).log(logging.WARNING, "low on %s", "stock")
        user(5).log(logging.INFO, "fine")
        assert seen.lines == [("[Shop 5]", "WARNING shop: low on stock")]


def test_information_is_shown_when_asked() -> None:
    with captured() as seen:
        seen.capture.attach_logging(logging.INFO)
        user(5).log(logging.INFO, "fine")
        assert seen.lines == [("[Shop 5]", "INFO shop: fine")]


def test_an_authors_own_logging_is_left_alone_and_captured() -> None:
    with captured() as seen:
        logging.basicConfig(format="mine %(message)s")
        seen.capture.attach_logging(logging.INFO)
        assert len(logging.getLogger().handlers) == 1
        user(5).log(logging.WARNING, "x")
        user(5).log(logging.INFO, "y")
        assert seen.lines == [("[Shop 5]", "mine x")]


def test_a_logged_traceback_carries_the_prefix_on_every_line() -> None:
    with captured() as seen:
        seen.capture.attach_logging()
        user(5).fail()
        assert {prefix for prefix, _ in seen.lines} == {"[Shop 5]"}
        assert seen.lines[-1][1] == "KeyError: 'id'"


def test_a_bad_log_call_is_told_and_does_not_raise() -> None:
    with captured() as seen:
        seen.capture.attach_logging()
        user(5).log(logging.ERROR, "%d items", "many")
        assert len(seen.lines) == 1
        assert seen.lines[0][1].startswith("bad log call at test_author_output.py:")


def test_a_sink_that_raises_hurts_nobody() -> None:
    def broken(prefix: str, line: str) -> None:
        raise OSError("pipe")

    capture = OutputCapture(broken, user_name)
    capture.install()
    try:
        user(1).say("x")
    finally:
        capture.uninstall()


def test_a_sink_that_prints_does_not_call_itself() -> None:
    lines: list[str] = []

    def echo(prefix: str, line: str) -> None:
        lines.append(line)
        print("echo", line)

    capture = OutputCapture(echo, user_name)
    capture.install()
    try:
        print("x")
    finally:
        capture.uninstall()
    assert lines[0] == "x" and "echo x" not in lines


def test_an_object_that_raises_on_everything_is_not_a_user() -> None:
    with captured() as seen:

        def whose(value: object) -> str | None:
            raise RuntimeError

        capture = OutputCapture(seen.sink, whose)
        capture.install()
        try:
            user(1).say("x")
        finally:
            capture.uninstall()
        assert seen.lines == [("", "x")]


def test_the_streams_behave_like_streams() -> None:
    with captured() as seen:
        assert sys.stdout.encoding == "utf-8"
        assert not sys.stdout.isatty()
        assert sys.stdout.writable()
        assert sys.stdout.write("four\n") == 5
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        sys.stdout.close()
        print("still open")
        sys.stdout.buffer.write("ü".encode()[:1])
        sys.stdout.buffer.write("ü".encode()[1:] + b"\n")
        assert [line for _, line in seen.lines] == ["four", "still open", "ü"]


def test_the_descriptor_is_the_real_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null", "w") as real:
        monkeypatch.setattr(sys, "stdout", real)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        capture = OutputCapture(lambda prefix, line: None, user_name)
        capture.install()
        try:
            assert sys.stdout.fileno() == real.fileno()
            with pytest.raises(io.UnsupportedOperation):
                sys.stderr.fileno()
        finally:
            capture.uninstall()
        assert sys.stdout is real


def test_uninstalling_leaves_a_stream_alone_that_was_replaced_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = io.StringIO()
    with captured(), monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", mine)
        with captured() as seen:
            patch.setattr(sys, "stdout", mine)
            seen.capture.uninstall()
            assert sys.stdout is mine


def test_a_user_without_a_number_yet_is_named_by_its_workflow() -> None:
    assert user_name(Shop()) == "Shop"
    assert user_name(user(4)) == "Shop 4"
    assert user_name(object()) is None
