"""Plays the text files in `control/`: events on the left, expected effects on the right.

    core admission shared_max=4 data_max=2     the core, and its settings if not the default
    0.5  admit data from m1      -> #1 runs    time in seconds, event, all of its effects

A line that begins with `#` is a comment; `-> -` says that there is no effect.

Random draws take the upper end of their range, so that a file shows the longest delays.
Things are numbered in the order in which they appear.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from squall.cluster.control.admission import (
    SHARED_CLASSES,
    Admission,
    Admitted,
    Overrun,
    Shed,
    Token,
)
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.wire.header import MessageClass

FILES = sorted((Path(__file__).parent / "control").glob("*.txt"))

Event = Callable[[float, list[str]], str]


def upper(low: float, high: float) -> float:
    return high


def options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def made(struct: type[Any], words: list[str]) -> Any:
    return msgspec.convert(options(words), struct, strict=False)


class AdmissionPlay:
    def __init__(self, words: list[str]) -> None:
        self.core = Admission(made(AdmissionSettings, words), upper)
        self.events: dict[str, Event] = {
            "admit": self.admit,
            "release": self.release,
            "load": self.load,
            "totals": self.totals,
        }

    def admit(self, now: float, words: list[str]) -> str:
        source = words[2] if words[1:2] == ["from"] else ""
        decision = self.core.admit(MessageClass[words[0].upper()], now, source)
        match decision:
            case Shed():
                return f"shed, retry after {decision.retry_after_s:.3f} s"
            case Overrun():
                return f"close {decision.source}, {decision.waiting} waiting"
            case Admitted():
                effect = f"#{decision.token + 1} {'waits' if decision.waits else 'runs'}"
                warning = decision.warning
                return f"{effect}, {warning.limit} at {warning.percent} %" if warning else effect

    def release(self, now: float, words: list[str]) -> str:
        started = self.core.release(Token(int(words[0].removeprefix("#")) - 1), now)
        return ", ".join(f"#{token + 1} runs" for token in started) or "-"

    def load(self, now: float, words: list[str]) -> str:
        load = self.core.load()
        shared = " ".join(f"{each.name.lower()} {load.in_flight[each]}" for each in SHARED_CLASSES)
        control = f"control {load.in_flight[MessageClass.CONTROL]}+{load.control_waiting}"
        return f"{load.state.value}, {control} {shared}"

    def totals(self, now: float, words: list[str]) -> str:
        load = self.core.load()
        admitted = "/".join(str(load.admitted_total[each]) for each in MessageClass)
        shed = "/".join(str(load.shed_total[each]) for each in MessageClass)
        return f"admitted {admitted} shed {shed} overruns {load.overrun_total}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_event_has_the_effects_that_the_file_says(file: Path) -> None:
    play: AdmissionPlay | None = None
    played = 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("core "):
            play = AdmissionPlay(line.split()[2:])
            continue
        assert play is not None, f"{file.name}:{number} has no core before it"
        event, arrow, expected = line.partition("->")
        assert arrow, f"{file.name}:{number} says no effect; `-> -` says none is expected"
        time_s, name, *words = event.split()
        effect = play.events[name](float(time_s), words)
        assert effect == expected.strip(), f"{file.name}:{number}  {event.strip()}"
        played += 1
    assert played, f"{file.name} plays nothing"
