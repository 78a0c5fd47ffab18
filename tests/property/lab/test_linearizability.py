"""The search agrees with trying every order, on small histories."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.histories.linearizability import NEVER, Operation, explain

Change = tuple[str, int]
"""Sets the number to a value, adds to it, or reads it."""
Counter = Operation[Change, int]


def step(state: int, request: Change, answer: int | None) -> Iterable[int]:
    """A request answers with the number before it. "either" adds or does nothing."""
    if answer is not None and answer != state:
        return []
    kind, value = request
    match kind:
        case "set":
            return [value]
        case "add":
            return [state + value]
        case "either":
            return [state, state + value]
        case _:
            return [state]


@st.composite
def histories(draw: st.DrawFn) -> list[Counter]:
    """Up to six operations with short, overlapping times; few values, so that some are legal."""
    operations: list[Counter] = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["set", "add", "either", "read"]))
        called = draw(st.integers(0, 6))
        answer = draw(st.none() | st.integers(0, 2))
        returned = NEVER if answer is None else called + draw(st.integers(0, 4))
        request = (kind, draw(st.integers(0, 2)))
        operations.append(Operation(f"c{number}", request, called, returned, answer))
    return operations


def is_legal(operations: list[Counter]) -> bool:
    """Tries every order of every choice of the operations without an answer."""
    answered = [op for op in operations if op.answer is not None]
    rest = [op for op in operations if op.answer is None]
    for mask in range(1 << len(rest)):
        chosen = answered + [op for at, op in enumerate(rest) if mask >> at & 1]
        if any(_fits(order) for order in permutations(chosen)):
            return True
    return False


def _fits(order: tuple[Counter, ...]) -> bool:
    for at, op in enumerate(order):
        if any(later.returned < op.called for later in order[at + 1 :]):
            return False
    states = {0}
    for op in order:
        states = {after for state in states for after in step(state, op.request, op.answer)}
    return bool(states)


@settings(max_examples=400, deadline=None)
@given(histories())
def test_the_search_agrees_with_every_order(operations: list[Counter]) -> None:
    assert (explain(operations, 0, step) == "") == is_legal(operations)
