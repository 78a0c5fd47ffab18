"""Checks that a history is linearizable: one order of the operations explains every answer.

This is Wing and Gong's search with Lowe's cache of (set of operations, state), as in Porcupine.
An operation may come next if no remaining one returned before it was called. An operation
without an answer may have happened at any time after its call, or never.

A history of independent objects is linearizable if that of each object is, so a caller splits it
by object first: the search is exponential in the operations that overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
Request = TypeVar("Request")
Answer = TypeVar("Answer")

NEVER = float("inf")
STEPS_MAX = 400_000
"""The search gives up after this many steps: a history that needs more is too concurrent to be
checked, and counts as illegal so that the gap is noticed."""
SHOWN = 50
"""Operations in the report of an illegal history."""


@dataclass(slots=True)
class Operation(Generic[Request, Answer]):
    """One operation of a client, with its answer if there was one."""

    client: str
    request: Request
    called: float
    returned: float = NEVER
    answer: Answer | None = None

    def __str__(self) -> str:
        end = "         " if self.answer is None else f"{self.returned:9.4f}"
        shown = "?" if self.answer is None else str(self.answer)
        return f"{self.called:9.4f}..{end} {self.client}  {self.request} -> {shown}"


Step = Callable[[State, Request, Answer | None], Iterable[State]]
"""Returns the states that an operation may leave behind; none: its answer does not fit here. The
answer is None if the client got none; then every effect that the request may have is a state."""


def explain(
    operations: Sequence[Operation[Request, Answer]],
    initial: State,
    step: Step[State, Request, Answer],
) -> str:
    """Returns why the history of one object is not linearizable, or "" if it is."""
    ordered = sorted(operations, key=lambda op: (op.called, op.returned))
    search = _Search(ordered, step)
    if search.run(initial):
        return ""
    return search.report()


class _Search(Generic[State, Request, Answer]):
    """The search over one history, whose operations are sorted by call."""

    def __init__(
        self,
        operations: Sequence[Operation[Request, Answer]],
        step: Step[State, Request, Answer],
    ) -> None:
        self._operations = operations
        self._step = step
        # The longest order found, for the report: the operations in it, and the state after it.
        self._deepest = 0
        self._deepest_state: State | None = None
        self._gave_up = False

    def run(self, initial: State) -> bool:
        operations, step = self._operations, self._step
        answered = sum(1 << i for i, op in enumerate(operations) if op.answer is not None)
        visited: set[tuple[int, State]] = set()
        # Sets of operations are bit masks over their indexes.
        stack: list[tuple[int, State]] = [(0, initial)]
        self._deepest_state = initial
        while stack:
            node = stack.pop()
            if node in visited:
                continue
            visited.add(node)
            done, state = node
            if done & answered == answered:
                return True
            if len(visited) > STEPS_MAX:
                self._gave_up = True
                return False
            if done.bit_count() > self._deepest.bit_count():
                self._deepest, self._deepest_state = done, state
            # The stack is last in, first out: the operation that returned first is tried first.
            for index in reversed(self._next(done)):
                op = operations[index]
                stack.extend(
                    (done | 1 << index, after)
                    for after in step(state, op.request, op.answer)
                    # Without an answer and an effect, it is as if it never happened.
                    if op.answer is not None or after != state
                )
        return False

    def _next(self, done: int) -> list[int]:
        """The operations that may come next, by the time of their return."""
        operations = self._operations
        # All operations below the first bit that is not set are done.
        first = (~done & (done + 1)).bit_length() - 1
        found: list[int] = []
        first_return = NEVER
        for index in range(first, len(operations)):
            op = operations[index]
            if op.called > first_return:
                break
            if not done >> index & 1:
                found.append(index)
                first_return = min(first_return, op.returned)
        found = [i for i in found if operations[i].called <= first_return]
        return sorted(found, key=lambda i: operations[i].returned)

    def report(self) -> str:
        problem = "no order explains the answers"
        if self._gave_up:
            problem = f"no order was found in {STEPS_MAX:,} steps"
        candidates = set(self._next(self._deepest))
        lines = [
            f"{'*' if i in candidates else '.' if self._deepest >> i & 1 else ' '} {op}"
            for i, op in enumerate(self._operations)
        ]
        if len(lines) > SHOWN:
            # What fits into the order comes first and is of the least interest.
            stuck = min(candidates, default=len(lines))
            start = max(0, min(stuck - SHOWN // 2, len(lines) - SHOWN))
            lines = lines[start : start + SHOWN]
        return (
            f"{problem} ('.': in the longest order found, '*': none of these fits next), "
            f"after {self._deepest_state}:\n" + "\n".join(lines)
        )
