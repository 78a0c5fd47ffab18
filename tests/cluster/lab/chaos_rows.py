"""What the cases of a datacenter and of store mode share: the load that runs while a fault
strikes, the row of the table, and what must be gone afterwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.cluster.lab.nodes import Ended
from tests.lab.target import TargetHandle

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


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    fault: str
    moment: str
    status: str
    code: int
    counted: int
    target: int
    unknown: int
    losses: int
    seconds: float
    found: tuple[str, ...]


def row_of(
    fault: str,
    moment: str,
    ended: Ended,
    document: dict[str, Any] | None,
    target: TargetHandle,
    began: float,
    found: Sequence[str],
) -> Row:
    """`document` is None for a job whose result no manager could provide."""
    found = list(found)
    if "Traceback" in ended.err or "Traceback" in ended.out:
        found.append("a traceback was shown")
    losses = document["losses"] if document else []
    workflows = document["workflows"] if document else []
    return Row(
        fault=fault,
        moment=moment,
        status=document["status"] if document else "unreachable",
        code=ended.code,
        counted=sum(each["requests"]["sent"] for each in workflows if each["requests"]),
        target=target.counts()["total"],
        unknown=sum(loss.get("unknown_requests") or 0 for loss in losses),
        losses=len(losses),
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


def tell_head(*before: str) -> None:
    names = ("fault", "moment", "status", "exit", "counted", "target", "u", "lost", "s")
    print(*(f"{name:<7}" for name in before), _line(*names), flush=True)


def tell(row: Row, *before: str) -> None:
    shown = _line(
        row.fault, row.moment, row.status, row.code, row.counted, row.target, row.unknown,
        row.losses, f"{row.seconds:.0f}",
    )  # fmt: skip
    print(*(f"{name:<7}" for name in before), shown, flush=True)
    for problem in row.found:
        print(f"    PROBLEM {problem}", flush=True)


def not_played(fault: str, moment: str, error: Exception) -> Row:
    """The other cases are still reported."""
    found = (f"it could not be played: {error!r}",)
    return Row(fault, moment, "", -1, 0, 0, 0, 0, 0.0, found)


def _line(*words: object) -> str:
    widths = (40, 7, 12, 5, 8, 8, 6, 5, 4)
    return " ".join(f"{word!s:<{width}}" for word, width in zip(words, widths, strict=True))
