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

from squall.control.admission import Admission, Admitted, Overrun, Shed, Token
from squall.control.breaker import Blocked, Breaker, Permit
from squall.control.classes import SHARED_CLASSES, MessageClass
from squall.control.deadline import NEVER, Deadline
from squall.control.retry import Effect, Failure, GiveUp, Retry, RetryBudget
from squall.control.settings import (
    AdmissionSettings,
    BreakerSettings,
    RetryBudgetSettings,
    RetryPolicy,
)

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


class BreakerPlay:
    def __init__(self, words: list[str]) -> None:
        self.core = Breaker(made(BreakerSettings, words), "peer")
        self.permits: list[Permit] = []
        self.events: dict[str, Event] = {
            "ask": self.ask,
            "answer": self.answer,
            "fail": self.fail,
            "cancel": self.cancel,
            "state": self.state,
        }

    def ask(self, now: float, words: list[str]) -> str:
        answer = self.core.ask(MessageClass[words[0].upper()], now)
        if isinstance(answer, Blocked):
            return f"blocked for {answer.retry_after_s:g} s: {answer.reason}"
        self.permits.append(answer)
        return f"#{len(self.permits)} {'probes' if answer.probe is not None else 'passes'}"

    def permit(self, words: list[str]) -> Permit:
        return self.permits[int(words[0].removeprefix("#")) - 1]

    def answer(self, now: float, words: list[str]) -> str:
        self.core.succeeded(self.permit(words), now)
        return self.state(now, [])

    def fail(self, now: float, words: list[str]) -> str:
        self.core.failed(self.permit(words), now, " ".join(words[1:]))
        return self.state(now, [])

    def cancel(self, now: float, words: list[str]) -> str:
        self.core.abandoned(self.permit(words), now)
        return self.state(now, [])

    def state(self, now: float, words: list[str]) -> str:
        return self.core.state(now).value


class RetryPlay:
    def __init__(self, words: list[str]) -> None:
        self.policy = made(RetryPolicy, words)
        self.budget: RetryBudget | None = None
        self.core = Retry(self.policy, deadline=NEVER, idempotent=True)
        self.events: dict[str, Event] = {
            "budget": self.make_budget,
            "operation": self.operation,
            "try": self.begin,
            "fail": self.fail,
        }

    def make_budget(self, now: float, words: list[str]) -> str:
        self.budget = RetryBudget(made(RetryBudgetSettings, words), now)
        return "-"

    def operation(self, now: float, words: list[str]) -> str:
        chosen = options(words)
        seconds = chosen.get("deadline_s")
        self.core = Retry(
            self.policy,
            deadline=Deadline.after(now, float(seconds)) if seconds else NEVER,
            idempotent=chosen.get("idempotent", "yes") == "yes",
            budget=self.budget,
        )
        return "-"

    def begin(self, now: float, words: list[str]) -> str:
        timeout_s = self.core.begin(now)
        if timeout_s is None:
            return "no time"
        return f"attempt {self.core.attempts}, {timeout_s:g} s"

    def fail(self, now: float, words: list[str]) -> str:
        hint_s = float(options(words[1:]).get("retry_after_s", 0))
        decision = self.core.next_delay(Failure(Effect(words[0]), hint_s), now, upper)
        if isinstance(decision, GiveUp):
            return f"give up: {decision.reason.value}"
        return f"again in {decision.delay_s:g} s"


PLAYS = {"admission": AdmissionPlay, "breaker": BreakerPlay, "retry": RetryPlay}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_event_has_the_effects_that_the_file_says(file: Path) -> None:
    play: AdmissionPlay | BreakerPlay | RetryPlay | None = None
    played = 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("core "):
            _, name, *words = line.split()
            play = PLAYS[name](words)
            continue
        assert play is not None, f"{file.name}:{number} has no core before it"
        event, arrow, expected = line.partition("->")
        assert arrow, f"{file.name}:{number} says no effect; `-> -` says none is expected"
        time_s, name, *words = event.split()
        effect = play.events[name](float(time_s), words)
        assert effect == expected.strip(), f"{file.name}:{number}  {event.strip()}"
        played += 1
    assert played, f"{file.name} plays nothing"


def test_there_are_scenarios_for_every_core() -> None:
    cores = {file.read_text(encoding="utf-8").split("core ")[1].split()[0] for file in FILES}
    assert cores == set(PLAYS)
