"""Was there one order of all operations that explains every answer? Per key, exactly.

Wing and Gong's search with Lowe's memory of (set of operations, value): an operation may
come next if none that is still open returned before it was invoked. An operation without
an answer may have happened at any time since, or never; if nobody ever saw its value it
is left out, because nothing can then depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER = float("inf")
STEPS_MAX = 400_000
"""A history that needs more is given up as undecided; none in the scenario does."""


@dataclass(slots=True)
class Operation:
    client: str
    key: str
    invoked: float
    value: str | None
    """What it wrote; None: a read."""
    expected: str | None = None
    """A compare-and-set wrote only if it found this."""
    returned: float = NEVER
    found: str | None = None
    """The value before it, as answered; None: no answer."""
    wrote: bool = False


def explain(operations: list[Operation]) -> str:
    """Empty, or why the history of one key is not linearizable."""
    seen = {op.found for op in operations if op.found is not None}
    kept = [
        op
        for op in operations
        if op.found is not None or (op.value is not None and op.value in seen)
    ]
    kept.sort(key=lambda op: op.invoked)
    if _search(kept):
        return ""
    shown = "\n".join(
        f"  {op.invoked:.4f}..{op.returned:.4f} {op.client} "
        + (f"read -> {op.found!r}" if op.value is None else f"write {op.value!r} -> {op.found!r}")
        for op in kept[-40:]
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
    """The value behind it, or None if its answer does not fit here."""
    if op.found is not None and op.found != value:
        return None
    if op.value is None:
        return value
    writes = op.expected is None or op.expected == value
    if op.found is not None and op.wrote != writes:
        return None
    return op.value if writes else value
