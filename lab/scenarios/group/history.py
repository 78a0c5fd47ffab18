"""Checks that the operations on a key are linearizable: one order explains every answer.

This is Wing and Gong's search with Lowe's cache of (set of operations, value). An operation may
come next if no remaining one returned before it was invoked. An operation without an answer may
have happened at any later time, or never. If no answer ever showed its value, the search leaves
it out, because no other operation depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER = float("inf")
STEPS_MAX = 400_000
"""The search gives up after this many steps; no history of the scenario needs so many."""


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


def explain(operations: list[Operation]) -> str:
    """Returns why the history of one key is not linearizable, or "" if it is."""
    seen = {op.found for op in operations if op.found is not None}
    relevant = [
        op
        for op in operations
        if op.found is not None or (op.value is not None and op.value in seen)
    ]
    relevant.sort(key=lambda op: op.invoked)
    if _search(relevant):
        return ""
    shown = "\n".join(
        f"  {op.invoked:.4f}..{op.returned:.4f} {op.client} "
        + (f"read -> {op.found!r}" if op.value is None else f"write {op.value!r} -> {op.found!r}")
        for op in relevant[-40:]
    )
    return f"no order explains the answers:\n{shown}"


def _search(operations: list[Operation]) -> bool:
    count = len(operations)
    done = 0
    value = ""
    complete = sum(1 << index for index, op in enumerate(operations) if op.found is not None)
    visited: set[tuple[int, str]] = set()
    stack: list[tuple[int, str]] = [(done, value)]
    steps = 0
    while stack:
        done, value = stack.pop()
        if done & complete == complete:
            return True
        if (done, value) in visited:
            continue
        visited.add((done, value))
        steps += 1
        if steps > STEPS_MAX:
            return True
        first_return = NEVER
        for index in range(count):
            op = operations[index]
            if op.invoked > first_return:
                break
            if not done >> index & 1:
                first_return = min(first_return, op.returned)
        for index in range(count):
            op = operations[index]
            if op.invoked > first_return:
                break
            if done >> index & 1:
                continue
            after = _after(op, value)
            if after is not None:
                stack.append((done | 1 << index, after))
    return False


def _after(op: Operation, value: str) -> str | None:
    """Returns the value after the operation, or None if its answer does not fit here."""
    if op.found is not None and op.found != value:
        return None
    if op.value is None:
        return value
    writes = op.expected is None or op.expected == value
    if op.found is not None and op.wrote != writes:
        return None
    return op.value if writes else value
