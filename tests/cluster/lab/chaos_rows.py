"""What the cases of a datacenter and of store mode share: the load that runs while a fault
strikes, the row of the table, and what must be gone afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.cluster.lab.judge import (
    Load,
    below_target_s,
    problems,
    stated_and_real,
    too_wide,
    unsaid,
)
from tests.cluster.lab.nodes import Command, Ended
from tests.lab.machine import factor, start_s

CLOSED = """
class Load(Workflow):
    vus = {users}
    duration = "{seconds}s"

    @step()
    async def get(self) -> HTTPResponse:
        made = int(time.perf_counter() * 10)
        url = f"/?delay=20ms&count_field=made&made={{made}}"
        return await self.client.http.get(url, headers=SENDER)
"""
OPEN = """
class Load(Workflow):
    rate = {rate}
    max_vus = 50
    duration = "{seconds}s"

    @step()
    async def get(self) -> HTTPResponse:
        made = int(time.perf_counter() * 10)
        url = f"/?delay=20ms&count_field=made&made={{made}}"
        return await self.client.http.get(url, headers=SENDER)
"""
UNNOTICED_S = 0.5
"""A load that "does not notice" a fault may be short for so long on a busy machine."""
STARTS = 5.0
"""Two starts of Python, of a main process and of a core process, and twice as much to spare."""
REPORT_S = 1.0
"""The last report before a death may be so old."""
LAST_S = 0.5
"""The end of a plan is not judged: its last starts may come a little late."""
PROCESS_RATIO = 3.0
MACHINE_RATIO = 8.0
FOLDED_S = 0.3
"""The counters of a killed process are at most so old when it dies."""
REAPED_S = 0.6
"""The same where only the next boot finds out that it died."""


@dataclass(frozen=True)
class Expected:
    """What a fault may cost with the timers that people get."""

    full_within_s: float = 0.0
    """The load is back at its target after this time; 0: it does not notice."""
    ratio: float = 0.0
    """How many times wider than the truth the unknown interval may be; 0: nothing is unknown."""
    silent_s: float = 0.0
    """For how long the lost share may have gone on without a witness; 0: for its lease."""

    @property
    def name(self) -> str:
        return f"< {self.full_within_s:g} s" if self.full_within_s else "0 s"

    @property
    def limit_s(self) -> float:
        """The same on this machine, which may be busy."""
        if not self.full_within_s:
            return UNNOTICED_S * factor()
        return max(self.full_within_s, self.full_within_s - 3.0 + STARTS * start_s())


UNNOTICED = Expected()
PROCESS = Expected(3.0, PROCESS_RATIO, FOLDED_S)
MACHINE = Expected(25.0, MACHINE_RATIO)


@dataclass
class Watch:
    """The moments of a case, on the wall clock, as the target stamps arrivals."""

    command: Command
    seconds: int
    """The length of the plan."""
    struck_s: float = 0.0
    ended_s: float = 0.0
    _waiter: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # The command may end while the fault is still under way.
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def strike(self) -> None:
        self.struck_s = time.time()

    def end(self, within_s: float) -> Ended:
        ended = self.command.end(within_s)
        self._waiter.join()
        return ended

    def _wait(self) -> None:
        self.command.process.wait()
        self.ended_s = time.time()


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    fault: str
    moment: str
    expected: str
    status: str
    code: int
    counted: int
    target: int
    stated: int
    real: int
    losses: int
    below_s: float | None
    """How long the load was below its target; None if the plan sets no rate."""
    result_s: float
    """From the end of the plan to the end of the command; from the fault, if the job ended before
    that."""
    seconds: float
    found: tuple[str, ...]

    @property
    def ratio(self) -> str:
        if not self.stated:
            return "0/0" if not self.real else f"0/{self.real}"
        return f"{self.stated}/{self.real}"


@dataclass(frozen=True)
class Evidence:
    """What is judged of a case that ended with a results document."""

    ended: Ended
    watch: Watch
    counts: dict[str, Any]
    logs: str
    load: Load
    expected: Expected
    shares: int
    """How many nodes make the load."""

    @property
    def document(self) -> dict[str, Any]:
        return self.ended.document

    @property
    def below_s(self) -> float | None:
        if not self.load.rate_per_s or not self.counts["arrivals_s"]:
            return None
        arrivals_s = self.counts["arrivals_s"]
        until_s = arrivals_s[0] + self.watch.seconds - LAST_S
        return below_target_s(arrivals_s, self.load.rate_per_s, self.watch.struck_s, until_s)

    @property
    def result_s(self) -> float:
        first_s = next(iter(self.counts["arrivals_s"]), self.watch.struck_s)
        return self.watch.ended_s - first_s - self.watch.seconds

    def problems(
        self, *, worker_lost: bool, in_time: bool, result_within_s: float, lease_s: float
    ) -> list[str]:
        """`in_time`: the timers are those that people get, and the recovery is judged."""
        document, counts = self.document, self.counts
        found = problems(document, counts, self.load, worker_lost=worker_lost)
        found += unsaid(document, self.ended.err, self.logs)
        below_s = self.below_s
        if in_time and below_s is not None and below_s > (limit_s := self.expected.limit_s):
            found.append(
                f"the load was below its target for {below_s:.1f} s, limit {limit_s:.1f} s"
            )
        if in_time and self.result_s > result_within_s:
            found.append(f"the client had its result {self.result_s:.1f} s after the plan's end")
        stated, real = stated_and_real(document, counts)
        if self.load.rate_per_s and self.expected.ratio:
            found += too_wide(
                stated,
                real,
                ratio=self.expected.ratio,
                silent_s=self.expected.silent_s or lease_s + REPORT_S,
                rate_per_s=self.load.rate_per_s / self.shares * max(1, len(document["losses"])),
                in_flight=counts["max_concurrent_requests"],
            )
        return found


def row_of(
    fault: str,
    moment: str,
    evidence: Evidence,
    began: float,
    found: Sequence[str],
) -> Row:
    """The document is missing for a job whose result no manager could provide."""
    ended, counts = evidence.ended, evidence.counts
    document = ended.document if ended.results.exists() else None
    found = list(found)
    if "Traceback" in ended.err or "Traceback" in ended.out:
        found.append("a traceback was shown")
    losses = document["losses"] if document else []
    workflows = document["workflows"] if document else []
    stated, real = stated_and_real(document, counts) if document else (0, 0)
    watch = evidence.watch
    planned = document is not None and moment != "cancel"
    result_s = evidence.result_s if planned else watch.ended_s - watch.struck_s
    return Row(
        fault=fault,
        moment=moment,
        expected=evidence.expected.name if document else "-",
        status=document["verdict"]["state"] if document else "none",
        code=ended.code,
        counted=sum(each["requests"]["sent"] for each in workflows if each["requests"]),
        target=counts["total"],
        stated=stated,
        real=real,
        losses=len(losses),
        below_s=evidence.below_s if document else None,
        result_s=result_s,
        seconds=time.monotonic() - began,
        found=tuple(found),
    )


class Lab(Protocol):
    def leftovers(self) -> list[str]: ...


def left_behind(lab: Lab) -> tuple[str, ...]:
    """What still lives a while after everything was killed."""
    until = time.monotonic() + 5.0
    while (left := lab.leftovers()) and time.monotonic() < until:
        time.sleep(0.05)
    return (f"left behind: {left}",) if left else ()


NAMES = (
    "fault", "moment", "class", "below", "result", "u/real", "verdict", "exit", "counted",
    "target", "lost", "s",
)  # fmt: skip
WIDTHS = (46, 7, 7, 6, 7, 10, 9, 5, 8, 8, 5, 4)


def tell_head(*before: str) -> None:
    print(*(f"{name:<7}" for name in before), _line(*NAMES), flush=True)


def tell(row: Row, *before: str) -> None:
    shown = _line(
        row.fault, row.moment, row.expected, _below(row), f"{row.result_s:.1f}", row.ratio,
        row.status, row.code, row.counted, row.target, row.losses, f"{row.seconds:.0f}",
    )  # fmt: skip
    print(*(f"{name:<7}" for name in before), shown, flush=True)
    for problem in row.found:
        print(f"    PROBLEM {problem}", flush=True)


def tell_summary(rows: Sequence[tuple[tuple[str, ...], Row]], *before: str) -> None:
    """As Markdown, for docs/guarantees.md: a line for each fault in the middle of a test."""
    names = (*before, "fault", "class", "load below target", "result after", "unknown: stated/real")
    print()
    print(f"| {' | '.join(names)} |")
    print(f"|{'---|' * len(names)}")
    for words, row in rows:
        if row.moment == "mid" and row.code >= 0:
            below = f"{_below(row)} s" if row.below_s is not None else "-"
            cells = (*words, row.fault, row.expected, below, f"{row.result_s:.1f} s", row.ratio)
            print(f"| {' | '.join(cells)} |")


def not_played(fault: str, moment: str, error: Exception) -> Row:
    """The other cases are still reported."""
    found = (f"it could not be played: {error!r}",)
    return Row(fault, moment, "", "", -1, 0, 0, 0, 0, 0, None, 0.0, 0.0, found)


def _below(row: Row) -> str:
    return "-" if row.below_s is None else f"{row.below_s:.1f}"


def _line(*words: object) -> str:
    return " ".join(f"{word!s:<{width}}" for word, width in zip(words, WIDTHS, strict=True))
