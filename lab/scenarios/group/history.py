"""Checks that the operations on a key are linearizable: one order explains every answer.

The search is that of `lab.histories.linearizability`; this is its model of a register. If no answer
ever showed the value of an operation without an answer, the search leaves that operation out,
because no other one depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.histories import linearizability
from lab.histories.linearizability import NEVER


@dataclass(slots=True)
class Operation:
    """One operation of a client on a key, with its answer if there was one."""

    client: str
    key: str
    invoked: float
    value: str | None
    """The value that it wrote; None for a read."""
    expected: str | None = None
    """Makes it a compare-and-set: it wrote only if it found this value."""
    returned: float = NEVER
    found: str | None = None
    """The previous value, from the answer; None without an answer."""
    wrote: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return "read"
        return f"write {self.value!r}" + (f" over {self.expected!r}" if self.expected else "")


def explain(operations: list[Operation]) -> str:
    """Returns why the history of one key is not linearizable, or "" if it is."""
    seen = {op.found for op in operations if op.found is not None}
    relevant = [
        op
        for op in operations
        if op.found is not None or (op.value is not None and op.value in seen)
    ]
    history = [
        linearizability.Operation(op.client, op, op.invoked, op.returned, op.found)
        for op in relevant
    ]
    return linearizability.explain(history, "", _step)


def _step(value: str, op: Operation, found: str | None) -> Iterable[str]:
    """Returns the value after the operation; none if its answer does not fit here."""
    if found is not None and found != value:
        return []
    if op.value is None:
        return [value]
    writes = op.expected is None or op.expected == value
    if found is not None and op.wrote != writes:
        return []
    return [op.value if writes else value]
