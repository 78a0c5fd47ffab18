"""The exact exit code of a run, on a machine that may be busy.

A generator that other work delays makes its run INVALID, which is 98 unless the run was
interrupted or aborted. That is right, and no test can rule it out for real processes. So a test
names the code that the run ends with, and 98 counts only if the document blames nothing but the
machine.
"""

from __future__ import annotations

from typing import Any, Protocol

from squall.reporting.loss_lines import STARTED_LATE

INVALID = 98
INTERRUPTED = 105
OF_THE_MACHINE = (
    "loop lag p", " CPU for ", " starts late ", " planned starts ", " started late at ",
)  # fmt: skip


class Ended(Protocol):
    @property
    def code(self) -> int: ...
    @property
    def err(self) -> str: ...
    @property
    def document(self) -> dict[str, Any]: ...


def check_code(ended: Ended, code: int = 0, *, loss_of: str = "") -> None:
    """`loss_of` is a worker whose loss the document may blame too."""
    verdict = ended.document["verdict"]
    if verdict["state"] == "INVALID":
        others = [
            reason
            for reason in verdict["reasons"]
            if not any(part in reason for part in OF_THE_MACHINE)
            and not (
                loss_of
                and reason.startswith((f"worker {loss_of} lost", f"worker {loss_of} restarted"))
            )
        ]
        assert not others, others
        if code != INTERRUPTED and not ended.document["aborted_by"]:
            code = INVALID
    assert ended.code == code, ended.err


def losses(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The losses, except shares that a busy machine only started late."""
    return [loss for loss in document["losses"] if loss["reason"] != STARTED_LATE]
